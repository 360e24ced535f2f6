"""The step-time model: selection, monotonicity, ceilings, intervals, and the choice of K."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import train_truth as truth

from steersman_controller.train.cells import Cells, shapes
from steersman_controller.train.choice import evaluate_choice, read_served
from steersman_controller.train.compiled import compile_tables
from steersman_controller.train.intervals import Residuals, residuals
from steersman_controller.train.models import CANDIDATES, AffineModel, Model
from steersman_controller.train.physics import PhysicsModel, fit_physics
from steersman_controller.train.selection import choose, left_out, relative_error, select
from steersman_controller.train.step_times import Source, read_step_times
from steersman_controller.train.survival import Survival, parse_survival, tokens_per_step

PHYSICS = {name: fit for name, fit in CANDIDATES.items() if name != "boosting"}


def measured(table: list[dict[str, Any]]) -> Cells:
    """Cells of one row each."""
    columns = {name: np.array([row[name] for row in table], dtype=float) for name in table[0]}
    cells = shapes(columns["batch_size"], columns["num_draft_tokens"])
    seconds = columns["step_ms"] / 1e3
    return replace(cells, seconds=seconds, steps=np.ones(len(cells)))


@pytest.fixture(scope="module")
def cells() -> Cells:
    return measured(truth.rows())


def test_left_out_batch_sizes_are_predicted_and_better_than_by_the_affine_fit(cells: Cells) -> None:
    """On a machine that is none of the candidates, errors inside the range stay below 4 %."""
    found = select(cells, PHYSICS)
    errors = np.abs(found.out_of_fold.seconds / cells.seconds - 1.0)
    affine = np.abs(found.out_of_fold.affine_s / cells.seconds - 1.0)
    inside = (cells.batch > 1) & (cells.batch < 128)
    assert errors[inside].mean() < 0.04
    assert errors.mean() < affine.mean()


def test_requests_may_cost_something_whatever_their_k_is() -> None:
    """Sampling and scheduling cost per request, not per token: that is predicted, and planners are told."""
    rng = np.random.default_rng(0)
    batch, k = (grid.ravel() for grid in np.meshgrid([1.0, 2, 4, 8, 16, 32], [0.0, 1, 2, 3, 4]))
    cells = shapes(batch, k)
    true_s = (10.0 + 0.3 * batch + 0.05 * cells.tokens + np.where(k > 0, 2.0 + k, 0.0)) / 1e3
    noise = np.exp(0.02 * rng.standard_normal(len(cells)))
    cells = replace(cells, seconds=true_s * noise, steps=np.ones(len(cells)))
    found = select(cells, CANDIDATES)
    errors = np.abs(found.out_of_fold.seconds / cells.seconds - 1.0)
    affine = np.abs(found.out_of_fold.affine_s / cells.seconds - 1.0)
    assert errors.mean() < 1.5 * affine.mean()
    tables = compile_tables(fit_physics(cells, requests=True), cells, 0.02)
    assert tables.cost.other_at(32) - tables.cost.other_at(1) == pytest.approx(31 * 0.3e-3, rel=0.15)
    assert tables.cost_error < 1e-6


def test_no_model_is_scored_on_a_batch_size_that_it_has_seen(cells: Cells) -> None:
    """Every fold leaves out whole batch sizes, in the outer loop and in the inner one."""
    seen: list[set[float]] = []
    scored: list[tuple[set[float], set[float]]] = []

    class Spy:
        def __init__(self, evidence: Cells) -> None:
            self.batches = set(evidence.batch.tolist())
            self.model = AffineModel(evidence)
            seen.append(self.batches)

        def seconds(self, asked: Cells) -> Any:
            scored.append((self.batches, set(asked.batch.tolist())))
            return self.model.seconds(asked)

    select(cells, {"spy": Spy})
    assert scored
    assert all(not (known & asked) for known, asked in scored)
    assert set(map(len, seen)) > {len(truth.BATCHES)}, "the last one is fitted on everything"


def test_a_model_that_only_remembers_is_not_chosen(cells: Cells) -> None:
    """A lookup table has no error where it has looked; the folds find it out."""

    class Memory:
        def __init__(self, evidence: Cells) -> None:
            self.known = {
                (b, k): s for b, k, s in zip(evidence.batch, evidence.k, evidence.seconds, strict=True)
            }

        def seconds(self, asked: Cells) -> Any:
            return np.array(
                [self.known.get((b, k), 0.001) for b, k in zip(asked.batch, asked.k, strict=True)]
            )

    assert relative_error(cells, Memory(cells)).max() == 0.0
    name, scores = choose(cells, {"memory": Memory, "physics": CANDIDATES["physics"]}, 8)
    assert name == "physics"
    assert scores["memory"] > 0.9


def is_monotone(model: Model) -> bool:
    """Whether time never falls when requests or draft tokens are added."""
    batch, k = np.meshgrid(np.arange(1.0, 129.0), np.arange(6.0), indexing="ij")
    grid = model.seconds(shapes(batch.ravel(), k.ravel())).reshape(batch.shape)
    return bool((np.diff(grid, axis=0) >= -1e-12).all() and (np.diff(grid, axis=1) >= -1e-12).all())


def test_boosting_is_monotone_in_time(cells: Cells) -> None:
    """More requests or more draft tokens never take less time; the check can fail."""
    assert is_monotone(CANDIDATES["boosting"](cells))
    falling = replace(cells, seconds=cells.seconds[::-1])
    assert not is_monotone(AffineModel(falling))


def test_physics_without_buckets_is_monotone_in_time() -> None:
    """Every term but the extra cost of a graph bucket adds time when work is added, whatever the evidence."""
    noisy = measured(truth.rows(noise=0.5, seed=3))
    for name, fit in PHYSICS.items():
        model = fit(noisy)
        assert isinstance(model, PhysicsModel)
        assert min(model.coefficients) >= 0.0, name
        kept = [i for i, term in enumerate(model.terms) if not term.startswith("bucket")]
        smooth = PhysicsModel(tuple(model.terms[i] for i in kept), tuple(model.coefficients[i] for i in kept))
        assert is_monotone(smooth), name


def test_a_ceiling_on_concurrency_is_found_and_only_where_there_is_one() -> None:
    """Time that stops growing at 48 requests shows as a ceiling; the batch size beyond is then predicted."""
    limited = measured(truth.rows(ceiling=48.0))
    model = fit_physics(limited, jumps=False)
    assert model.ceiling is not None
    assert 32.0 < model.ceiling <= 64.0
    asked = shapes(np.full(6, 256.0), np.arange(6.0))
    assert model.seconds(asked) * 1e3 == pytest.approx([truth.true_ms(48, k) for k in range(6)], rel=0.05)
    assert fit_physics(measured(truth.rows()), jumps=False).ceiling is None


def test_measured_parts_decide_what_is_drafting() -> None:
    """Where drafting was timed apart, the draft table says what was measured, not what the sum suggests."""
    cells = measured(truth.rows(noise=0.0))
    apart = replace(cells, draft_s=np.where(cells.k > 0, 0.25 * cells.seconds, np.nan))
    model = fit_physics(apart, jumps=False)
    drafting = apart.k > 0
    predicted = model.part_s(apart, "draft")[drafting]
    assert np.abs(predicted / apart.draft_s[drafting] - 1.0).mean() < 0.25
    whole = fit_physics(cells, jumps=False).part_s(cells, "draft")[drafting]
    assert np.abs(whole / apart.draft_s[drafting] - 1.0).mean() > 0.25


def test_intervals_cover_what_they_promise() -> None:
    """With exchangeable noise the 90 % interval covers 90 % of what was left out; a narrow one fails."""
    rng = np.random.default_rng(5)
    noise, fold = 0.05 * rng.standard_normal(600), np.arange(600.0) % 10
    honest = Residuals(noise, np.ones(600), fold)
    assert honest.coverage() == pytest.approx(0.90, abs=0.03)
    found = honest.interval()
    assert found is not None
    assert found.q05 < 1.0 < found.q95
    narrow = Residuals(0.3 * noise, np.ones(600), fold).interval()
    assert narrow is not None
    assert np.mean((np.exp(noise) > narrow.q05) & (np.exp(noise) < narrow.q95)) < 0.6


def test_single_rows_are_predicted_by_models_that_have_not_seen_their_batch_size(cells: Cells) -> None:
    """Rows of a batch size merged into another go with it; the outermost batch sizes are left aside."""
    found = select(cells, PHYSICS)
    rows = measured(truth.rows(seed=9, batches=(1, 2, 3, 9, 16, 128)))
    got = residuals(rows, cells, found.out_of_fold)
    assert len(got.values) == 4 * len(truth.KS)
    folds = dict(zip(cells.batch, found.out_of_fold.fold, strict=True))
    assert set(got.fold) == {folds[2.0], folds[4.0], folds[8.0], folds[16.0]}
    assert np.abs(got.values).max() < 0.2


def test_with_two_batch_sizes_nothing_is_claimed() -> None:
    """Too little evidence gives a model without errors, never an error of zero."""
    few = measured(truth.rows(batches=(1, 8)))
    assert residuals(few, few, select(few, PHYSICS).out_of_fold).interval() is None
    name, scores = choose(few, PHYSICS, 10)
    assert (name, scores) == ("physics", {})
    assert left_out(measured(truth.rows(batches=(4,))), 10) == []
    only = select(measured(truth.rows(batches=(4,))), PHYSICS)
    assert np.isnan(only.out_of_fold.seconds).all()


def served_table(acceptance: float = 0.7) -> list[dict[str, Any]]:
    """Step times with the throughput and the survivals of the same machine, on two days."""
    return [
        {
            **row,
            "day": day,
            "throughput_tok_s": row["batch_size"]
            * truth.tokens_per_step(row["num_draft_tokens"], acceptance)
            / truth.true_ms(row["batch_size"], row["num_draft_tokens"])
            * 1e3,
            "position_survival": ";".join(
                f"{acceptance**j:.4f}" for j in range(1, row["num_draft_tokens"] + 1)
            ),
        }
        for day, seed in (("mon", 0), ("tue", 1))
        for row in truth.rows(seed=seed)
    ]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Scores the choice on a table; `spoil` may change the selected models before."""
    folder = tmp_path_factory.mktemp("served")

    def evaluate(table: list[dict[str, Any]], spoil: Callable[[Any], Any] = lambda selected: selected) -> Any:
        source = Source(truth.write(folder / "served.csv", table), by=("day",))
        groups = read_step_times(source).groups
        selected = {group: spoil(select(cells, PHYSICS)) for group, cells in groups.items()}
        return evaluate_choice(read_served(source, groups), selected, groups, source.by, "day")

    return evaluate


def test_k_is_chosen_better_than_by_the_naive_rules(evaluated: Callable[..., Any]) -> None:
    """Cost of left-out batch sizes and the other day's acceptance lose less than a constant K."""
    report = evaluated(served_table())
    assert report.cells > 8
    assert report.learned.mean_regret < report.naive["constant_k_in_hindsight"].mean_regret
    assert report.learned.mean_regret < 0.02


def test_a_cost_model_that_knows_nothing_is_found_out(evaluated: Callable[..., Any]) -> None:
    """The same evaluation with every step taking the same time shows a large regret."""

    class Flat:
        def seconds(self, asked: Cells) -> Any:
            return np.full(len(asked), 0.02)

    def spoil(selected: Any) -> Any:
        out = selected.out_of_fold
        return replace(selected, out_of_fold=replace(out, models=tuple(Flat() for _ in out.models)))

    assert evaluated(served_table(), spoil).learned.max_regret > 0.1


def test_too_few_batch_sizes_to_score_a_choice_are_named(evaluated: Callable[..., Any]) -> None:
    """One batch size cannot be left out of itself; the line says which group has no other."""
    table = [row for row in served_table() if row["batch_size"] == 64]
    with pytest.raises(ValueError, match="mon has too few batch sizes to leave one out"):
        evaluated(table)


def test_survival_is_read_as_shares_or_percent_and_beyond_what_was_measured() -> None:
    """A K of its own speaks for itself; another one follows the chain of position acceptances."""
    assert parse_survival("72 50", 2, "x") == (0.72, 0.5)
    with pytest.raises(ValueError, match="allowed are 3 shares for K = 3"):
        parse_survival("0.5 0.2", 3, "x")
    survival = Survival({2: [(0.8, 0.4), (0.6, 0.2)]})
    assert survival.tokens_per_step(2) == pytest.approx(1.0 + 0.7 + 0.3)
    assert survival.position_acceptance == pytest.approx((0.7, 0.3 / 0.7))
    assert survival.tokens_per_step(3) == pytest.approx(1.0 + 0.7 + 0.3 + 0.3 * 0.3 / 0.7)
    assert tokens_per_step((0.5,), 3) == pytest.approx(1.875)


def test_a_missing_column_for_the_choice_is_named(tmp_path: Path) -> None:
    """The evaluation says which column it needs."""
    source = Source(truth.write(tmp_path / "a.csv", [{**r, "day": "mon"} for r in truth.rows()]), by=("day",))
    with pytest.raises(ValueError, match="needs throughput_tok_s; say --columns throughput_tok_s=THEIRS"):
        read_served(source, {("mon",): None})
