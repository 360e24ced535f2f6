"""Comparisons with measured runs: made here, with planted faults, and public ones where they are."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_truth_specs import operator_tables

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import StepCost
from steersman_simulator.acceptance.by_position import by_position
from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.fidelity import choice_of_k, runs, show
from steersman_simulator.fidelity.k_table import Fit, ServedRow, TableSpec, fit_table, is_fitted, read_table
from steersman_simulator.fidelity.measured_run import arrivals_of, read_run
from steersman_simulator.fidelity.overhead import Overhead
from steersman_simulator.fidelity.serve import serve
from steersman_simulator.fidelity.spec import compare, read_fidelity
from steersman_simulator.fidelity.verbs import bench_fidelity
from steersman_simulator.truths.bundle import BundleSteps
from steersman_simulator.truths.spec import OperatorSteps, SurchargedSteps, build_truth
from steersman_simulator.truths.surcharges import Surcharges
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import stream
from steersman_simulator.world.shape import Shape

DATA = Path(os.environ.get("STEERSMAN_SHARED", Path(__file__).parents[2].parent / "shared")) / "data"
SHIPPED = Path(runs.__file__).parent

LAYERS = {"small": 8, "large": 24}
ENGINE = {"max_batch": 24, "token_budget": 512}
OVERHEAD_S = 1e-4
ACCEPTANCE = (0.8, 0.7, 0.6)


def silent(text: str, done: float) -> None:
    """No progress."""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make_run(folder: Path, name: str, layers: int) -> None:
    """A run of an engine with this many layers and the overhead, as vLLM would stamp it."""
    chance = stream(7, layers)
    at_s, arrivals = 0.0, []
    for _ in range(120):
        arrivals.append(Arrival(at_s, UNKNOWN_SEGMENT, chance.randrange(20, 400), chance.randrange(20, 120)))
        at_s += chance.expovariate(3000.0 / layers)
    spec = SurchargedSteps(OperatorSteps("toy", layers), Surcharges(step_s=OVERHEAD_S))
    reports = serve(
        arrivals,
        shape=Shape(**ENGINE),
        truth=build_truth(spec, folder),
        acceptance=ConstantAcceptance(0.0),
        k=0,
        seed=0,
    )
    rows = [
        {
            "arrival_s": r.arrived_s,
            "input_tokens": r.prompt_tokens,
            "output_tokens": r.output_tokens,
            "scheduled_s": r.arrived_s + r.queue_s,
            "first_token_s": r.arrived_s + r.ttft_s,
            "last_token_s": r.arrived_s + r.e2e_s,
        }
        for r in reports
    ]
    write(folder / f"{name}.csv", rows)


@pytest.fixture(scope="module")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small and a large model on one card."""
    folder = tmp_path_factory.mktemp("runs")
    operator_tables(folder)
    for name, layers in LAYERS.items():
        make_run(folder, name, layers)
    return folder


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """The comparison of both, as a file."""
    truth = {"kind": "operators", "tables": "toy"}
    tree = {
        "kind": "runs",
        "runs": [
            {"name": n, "requests": f"{n}.csv", "engine": ENGINE, "truth": truth | {"layers": layers}}
            for n, layers in LAYERS.items()
        ],
    }
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path / "runs.yaml"


def test_the_overhead_of_one_run_predicts_the_other(
    two_runs: Path, made_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planted constant is found in either run, and both predictions are within the limits."""
    assert bench_fidelity(two_runs, made_runs, as_json=True) == 0
    result = json.loads(capsys.readouterr().out)
    for found in result["overheads"].values():
        assert found["seconds"] == pytest.approx(OVERHEAD_S, rel=0.1)
    assert [pair["is_score"] for pair in result["pairs"]] == [False, True, True, False]
    assert all(pair["e2e"] < 0.02 for pair in result["pairs"])
    assert list(show.lines(result))[-1].startswith("within the limits")


def test_a_missing_overhead_is_seen(two_runs: Path, made_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing around the forwards."""
    monkeypatch.setattr(runs, "overhead_of", lambda requests, seconds: Overhead(0.0, 99, (0.0, 0.0)))
    result = compare(read_fidelity(two_runs), made_runs, silent)
    assert not result["passed"]
    assert result["pairs"][2]["tpot"] > 0.06


def test_a_wrong_layer_count_is_seen(two_runs: Path, made_runs: Path) -> None:
    """Planted: a fifth of the layers forgotten."""
    tree = yaml.safe_load(two_runs.read_text())
    tree["runs"][1]["truth"]["layers"] = 19
    two_runs.write_text(yaml.safe_dump(tree))
    assert not compare(read_fidelity(two_runs), made_runs, silent)["passed"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"runs": []}, "two runs at least"),
        ({"kind": "run"}, "kind: found 'run', did you mean 'runs'"),
        ({"sedes": 3}, "unknown key 'compare.sedes'"),
    ],
)
def test_a_bad_comparison_is_named(two_runs: Path, changed: dict[str, Any], said: str) -> None:
    """File, key and what is allowed."""
    two_runs.write_text(yaml.safe_dump(yaml.safe_load(two_runs.read_text()) | changed))
    with pytest.raises(ValueError, match=said):
        read_fidelity(two_runs)


def test_a_bad_row_is_named(made_runs: Path, tmp_path: Path) -> None:
    """File, line and column of a first token before the request was scheduled."""
    lines = (made_runs / "large.csv").read_text().splitlines()
    parts = lines[3].split(",")
    parts[4] = "0"
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([*lines[:3], ",".join(parts), *lines[4:]]))
    with pytest.raises(ValueError, match=r"bad.csv:4: first_token_s: found .*from scheduled_s"):
        read_run(bad, {})


def test_prefixes_reach_the_engine(made_runs: Path, tmp_path: Path) -> None:
    """With ids of its blocks, the second of two equal prompts is read in no time."""
    stamps = {"scheduled_s": 0.1, "first_token_s": 0.2, "last_token_s": 0.3}
    shared = {"input_tokens": 400, "output_tokens": 5, "hash_ids": " ".join(map(str, range(25)))} | stamps
    ttft_s = []
    for block_tokens in (0, 16):
        both = [shared | {"hash_block_tokens": block_tokens, "arrival_s": at_s} for at_s in (0.0, 0.1)]
        write(tmp_path / "run.csv", both)
        reports = serve(
            arrivals_of(read_run(tmp_path / "run.csv", {})),
            shape=Shape(4, token_budget=512, kv_blocks=1000),
            truth=build_truth(OperatorSteps("toy", 24), made_runs),
            acceptance=ConstantAcceptance(0.0),
            k=0,
            seed=0,
        )
        ttft_s.append(reports[1].ttft_s)
    assert ttft_s[1] < 0.9 * ttft_s[0]


COST = StepCost(
    tokens_grid=(1, 48, 1024),
    context_grid_tokens=(0,),
    prefill_grid_tokens=(0,),
    verify_s=(((0.020, 0.024, 0.220),),),
    requests_grid=(1, 64),
    draft_s=((0.0, 0.0), (0.002, 0.004), (0.004, 0.008), (0.006, 0.012)),
    other_s=(0.0, 0.0),
    relative_error=0.0,
)


def made_rows() -> list[dict[str, Any]]:
    """Two data sets at K = 0 to 3 and concurrency 1 to 32, served by an engine with `COST`."""
    spec = TableSpec("", "chat", Shape(256, token_budget=2048))
    fit = Fit({"d": COST}, {("chat", "d"): ACCEPTANCE, ("code", "d"): ACCEPTANCE})
    out = []
    for dataset, prompt in (("chat", 30), ("code", 60)):
        for concurrency in (1, 2, 4, 8, 16, 32):
            for k in (0, 1, 2, 3):
                requests = 6 + 2 * concurrency
                row = ServedRow(
                    dataset, "d" if k else "", k, concurrency, 8000 if k else 16000, requests,
                    prompt * requests, 40 * requests, 1.0, 1.0, (),
                )  # fmt: skip
                survival = [round(100 * s, 1) for s in (0.8, 0.56, 0.336)[:k]]
                step_s = COST.verify_at(concurrency * (k + 1), 0.0) + COST.draft_at(k, concurrency)
                out.append(
                    {
                        "dataset": dataset,
                        "draft_model": row.drafter,
                        "num_spec_tokens": k,
                        "concurrency": concurrency,
                        "kv_cache_tokens": row.kv_tokens,
                        "successful_requests": requests,
                        "input_tokens": row.input_tokens,
                        "output_tokens": row.output_tokens,
                        "output_tok_s": choice_of_k.tokens_per_s(spec, fit, row, "d"),
                        "median_itl_ms": 1e3 * step_s,
                        "num_drafts": 100 if k else "",
                        "per_position_accept_pct": " ".join(map(str, survival)),
                    }
                )
    return out


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows as a file, and its comparison."""
    folder = tmp_path_factory.mktemp("table")
    write(folder / "table.csv", made_rows())
    tree = {
        "kind": "k_table",
        "table": "table.csv",
        "fit_dataset": "chat",
        "fit_concurrency": 16,
        "engine": {"max_batch": 256, "token_budget": 2048},
    }
    (folder / "table.yaml").write_text(yaml.safe_dump(tree))
    return folder / "table.yaml"


def test_low_concurrency_predicts_the_rest(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fitted on one data set up to 16, the other and 32 are within the limits; no fitted row is scored."""
    assert bench_fidelity(table) == 0
    assert "28 rows predicted" in capsys.readouterr().out


def _no_drafts_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_of_k, "by_position", lambda _: by_position({UNKNOWN_SEGMENT: (0.0,)}))


def _fast_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    verify_s = BundleSteps.verify_s
    monkeypatch.setattr(BundleSteps, "verify_s", lambda self, work: 0.85 * verify_s(self, work))


def _no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_of_k, "_shape", lambda engine, row: engine)


@pytest.fixture(scope="module")
def fit(table: Path) -> Fit:
    """What is known before anything is predicted."""
    spec = read_fidelity(table)
    assert isinstance(spec, TableSpec)
    path = table.parent / "table.csv"
    return fit_table(spec, path, read_table(path, {}))


@pytest.mark.parametrize("fault", [None, _no_drafts_accepted, _fast_forwards, _no_queue])
def test_a_wrong_table_world_is_seen(
    table: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    """Planted: drafts that are never accepted, forwards that are too fast, more at once than said."""
    spec = read_fidelity(table)
    assert isinstance(spec, TableSpec)
    rows = read_table(table.parent / "table.csv", {})
    if fault is not None:
        fault(monkeypatch)
    unseen = [row for row in rows if not is_fitted(spec, row) and row.concurrency > 4]
    result = choice_of_k.scores(choice_of_k.predicted(spec, fit, unseen, silent))
    assert result["passed"] == (fault is None)


def test_acceptance_is_pooled_over_drafts(fit: Fit) -> None:
    """Conditional shares of the positions, as the rows were made."""
    assert fit.acceptance["code", "d"] == pytest.approx(ACCEPTANCE, abs=0.01)


def test_a_drafter_without_rows_to_fit_on_is_named(table: Path, tmp_path: Path) -> None:
    """The data set that has none."""
    lines = (table.parent / "table.csv").read_text().splitlines()
    (tmp_path / "table.csv").write_text("\n".join(line for line in lines if not line.startswith("chat,d")))
    with pytest.raises(ValueError, match="no drafts of 'd' on 'chat' up to 16"):
        compare(read_fidelity(table), tmp_path, silent)


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the public measurements in ../shared/data")


@needs_data
@pytest.mark.slow
def test_real_vllm_runs() -> None:
    """One overhead constant from either of two runs predicts the other within the limits."""
    result = compare(read_fidelity(SHIPPED / "vllm_runs.yaml"), DATA, silent)
    assert result["passed"], result["pairs"]


@needs_data
@pytest.mark.slow
def test_real_runs_by_k_and_concurrency(tmp_path: Path) -> None:
    """One of the drafters of the public table, up to 128 at once: errors and regret within the limits."""
    source = DATA / "specdec" / "vllm_qwen3-32b_h100_k_by_concurrency.csv"
    with source.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["draft_model"] in ("", "Qwen/Qwen3-1.7B")]
    write(tmp_path / source.name, [r for r in rows if int(r["concurrency"]) <= 128])
    tree = yaml.safe_load((SHIPPED / "k_by_concurrency.yaml").read_text()) | {
        "table": source.name,
        "seeds": 1,
    }
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(tree))
    result = compare(read_fidelity(tmp_path / "table.yaml"), tmp_path, silent)
    assert result["passed"], result
