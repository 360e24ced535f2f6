"""Does the learned cost choose K well? Scored on measured throughput of cells that were left out.

Cost comes from models that have not seen the batch size; acceptance comes from groups that differ in the
column named by `--evaluate-choice` (another dataset, another day). Regret is the share of the best
throughput that the chosen K gives away. Three naive rules are scored on the same cells in the same run.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from steersman_controller.train.cells import Cells, shapes
from steersman_controller.train.foreign import translated
from steersman_controller.train.models import Model
from steersman_controller.train.physics import PhysicsModel
from steersman_controller.train.reduction import Group
from steersman_controller.train.report import LOW_LOAD, ChoiceReport, ChoiceScore
from steersman_controller.train.selection import Selected
from steersman_controller.train.step_times import SERVED, Source, agrees, load_rows, mapped
from steersman_controller.train.survival import Survival, parse_survival
from steersman_controller.train.table_file import TableFile, database

MATTERS = 0.05
"""Only cells whose throughput differs by more than this between K say anything about a choice."""

Choice: TypeAlias = Callable[[Group, int], int]


class Served(Struct, frozen=True):
    """Measured throughput by group, batch and K, and the survivals that went with it."""

    throughput: dict[Group, dict[int, dict[int, float]]]
    survivals: dict[Group, dict[int, list[tuple[float, ...]]]]


def read_served(source: Source, groups: Mapping[Group, Any]) -> Served:
    """Throughput and survival of the rows of a file. K = 0 rows go to the groups that took their cells in."""
    file = translated(TableFile(source.path))
    theirs = mapped(file, source)
    missing = [name for name in SERVED if name not in theirs]
    if missing:
        raise ValueError(
            f"{source.path}: --evaluate-choice needs {missing[0]}; say --columns {missing[0]}=THEIRS"
        )
    with database() as connection:
        load_rows(connection, file, theirs, source, None)
        by = "".join(f", by{i}" for i in range(len(source.by)))
        rows = connection.execute(
            f"select row, batch_size, num_draft_tokens, throughput_tok_s, position_survival{by} from steps "
            "where throughput_tok_s is not null order by row"
        ).fetchall()
    throughput: dict[Group, dict[int, dict[int, list[float]]]] = {}
    survivals: dict[Group, dict[int, list[tuple[float, ...]]]] = {}
    for row, batch, k, tok_s, survival, *tags in rows:
        for group in _homes(tuple(tags), int(k), groups):
            throughput.setdefault(group, {}).setdefault(int(batch), {}).setdefault(int(k), []).append(tok_s)
            if survival is not None and k:
                shares = parse_survival(survival, int(k), f"{source.path}: row {row}, position_survival")
                survivals.setdefault(group, {}).setdefault(int(k), []).append(shares)
    means = {
        group: {
            batch: {k: float(np.mean(all_)) for k, all_ in by_k.items()} for batch, by_k in batches.items()
        }
        for group, batches in throughput.items()
    }
    return Served(means, survivals)


def evaluate_choice(
    served: Served,
    selected: Mapping[Group, Selected],
    cells: Mapping[Group, Cells],
    by: tuple[str, ...],
    column: str,
) -> ChoiceReport:
    """Score the choice of K. Raises ValueError where there is nothing to learn acceptance from."""
    place = by.index(column)
    scored = [
        (group, batch)
        for group in selected
        for batch, by_k in sorted(served.throughput.get(group, {}).items())
        if len(by_k) > 1 and max(by_k.values()) > (1.0 + MATTERS) * min(by_k.values())
    ]
    if not scored:
        raise ValueError(
            f"--evaluate-choice: no batch size has throughputs that differ by {MATTERS:.0%} between K"
        )
    survival = {group: _elsewhere(served, group, place, column) for group in selected}
    learned = _by_cost(served, survival, _models(selected, affine=False), cells)
    rules: dict[str, Choice] = {
        "constant_k_in_hindsight": _constant(served, scored, place),
        "neighbouring_batch_best_k": _neighbour(served),
        "affine_fit": _by_cost(served, survival, _models(selected, affine=True), cells),
    }
    regrets = [
        (_regret(served, group, batch, learned(group, batch)), group, batch) for group, batch in scored
    ]
    worst = sorted(regrets, reverse=True)[:5]
    return ChoiceReport(
        column=column,
        cells=len(scored),
        cells_to_64=sum(batch <= LOW_LOAD for _, batch in scored),
        learned=_score(served, scored, learned),
        naive={name: _score(served, scored, rule) for name, rule in rules.items()},
        worst=tuple(
            {
                "group": list(group),
                "batch_size": batch,
                "chosen_k": learned(group, batch),
                "best_k": _best(served, group, batch),
                "regret": regret,
            }
            for regret, group, batch in worst
        ),
    )


def _homes(tags: Group, k: int, groups: Mapping[Group, Any]) -> list[Group]:
    if tags in groups:
        return [tags]
    return [home for home in groups if k == 0 and agrees(tags, home)]


def _elsewhere(served: Served, group: Group, place: int, column: str) -> Survival:
    by_k: dict[int, list[tuple[float, ...]]] = {}
    for other, measured in served.survivals.items():
        same = [
            mine == theirs for i, (mine, theirs) in enumerate(zip(group, other, strict=True)) if i != place
        ]
        if all(same) and other[place] != group[place]:
            for k, rows in measured.items():
                by_k.setdefault(k, []).extend(rows)
    if not by_k:
        raise ValueError(f"--evaluate-choice: no acceptance for {'/'.join(group)} where {column} differs")
    return Survival(by_k)


def _models(selected: Mapping[Group, Selected], *, affine: bool) -> Callable[[Group, int], Model]:
    """The model of a group that has not seen a batch size."""

    def model(group: Group, batch: int) -> Model:
        out = selected[group].out_of_fold
        if not out.models:
            raise ValueError(f"--evaluate-choice: {'/'.join(group)} has too few batch sizes to leave one out")
        fold = out.fold[out.nearest(np.array([float(batch)]))]
        return (out.affine if affine else out.models)[int(fold[0])]

    return model


def _by_cost(
    served: Served,
    survival: Mapping[Group, Survival],
    models: Callable[[Group, int], Model],
    cells: Mapping[Group, Cells],
) -> Choice:
    """The K with the most tokens per second, by the model of the batch size and acceptance from elsewhere."""

    def choose(group: Group, batch: int) -> int:
        model = models(group, batch)

        def goodput(k: int) -> float:
            # K = 0 is what was served: without a drafter, if that is what the group's K = 0 steps are.
            loaded = k > 0 or bool(cells[group].loaded[cells[group].k == 0].all())
            cell = shapes(np.array([float(batch)]), np.array([float(k)]), loaded=loaded)
            running = model.running(cell) if isinstance(model, PhysicsModel) else cell.batch
            return float(running[0]) * survival[group].tokens_per_step(k) / float(model.seconds(cell)[0])

        return max(sorted(served.throughput[group][batch]), key=goodput)

    return choose


def _constant(served: Served, scored: list[tuple[Group, int]], place: int) -> Choice:
    """One K for all that differ only in the column: the best in hindsight."""

    def key(group: Group) -> Group:
        return group[:place] + group[place + 1 :]

    best: dict[Group, int] = {}
    for mine, together in groupby(
        sorted(scored, key=lambda cell: key(cell[0])), key=lambda cell: key(cell[0])
    ):
        them = list(together)
        every = sorted({k for group, batch in them for k in served.throughput[group][batch]})
        best[mine] = min(every, key=lambda k: sum(_regret(served, *cell, k) for cell in them))

    def choose(group: Group, batch: int) -> int:
        del batch
        return best[key(group)]

    return choose


def _neighbour(served: Served) -> Choice:
    """The best K of the nearest other batch size, by ratio; of two equally near the smaller one."""

    def choose(group: Group, batch: int) -> int:
        others = sorted(b for b in served.throughput[group] if b != batch)
        nearest = min(others, key=lambda other: abs(np.log(other / batch)), default=batch)
        return _best(served, group, nearest)

    return choose


def _best(served: Served, group: Group, batch: int) -> int:
    by_k = served.throughput[group][batch]
    return max(sorted(by_k), key=lambda k: by_k[k])


def _regret(served: Served, group: Group, batch: int, k: int) -> float:
    """A K that was not measured there counts as the worst that was."""
    by_k = served.throughput[group][batch]
    return 1.0 - by_k.get(k, min(by_k.values())) / max(by_k.values())


def _score(served: Served, scored: list[tuple[Group, int]], rule: Choice) -> ChoiceScore:
    regrets = np.array([_regret(served, group, batch, rule(group, batch)) for group, batch in scored])
    low = regrets[np.array([batch <= LOW_LOAD for _, batch in scored])]
    return ChoiceScore(
        float(regrets.mean()),
        float(regrets.max()),
        float(low.mean()) if len(low) else 0.0,
        float(low.max()) if len(low) else 0.0,
    )
