"""Which setting wins where: choices against each other under the same conditions and seeds.

A choice is what an operator sets: the policy with its parameters, the controller, its prior. All else
that is varied (load, workload, truth, engine) is a condition; choices are compared within one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from scipy.stats import t as student

from steersman_policies.policy import did_you_mean
from steersman_simulator.dotted import said
from steersman_simulator.sweep.cells import SEED, Cell
from steersman_simulator.sweep.results import CELL, OK, STATUS, Row

CHOSEN = ("policy", "controller", "prior")
CONFIDENCE = 0.95


class Goal(Struct, frozen=True):
    """The figure by which settings are compared."""

    figure: str = "busy_s_per_token"
    better: Literal["less", "more"] = "less"


class Standing(Struct, frozen=True):
    """One choice under one condition."""

    choice: dict[str, Any]
    seeds: int
    mean: float
    speedup: float | None
    """Of the best choice over this one on their common seeds; None for the best itself and without any."""
    low: float | None = None
    """Bounds of the 95 % interval of `speedup`; None with fewer than two common seeds."""
    high: float | None = None


class Group(Struct, frozen=True):
    """Choices under one condition, the best first."""

    where: dict[str, Any]
    standings: tuple[Standing, ...]


def groups_of(cells: Sequence[Cell], rows: Mapping[str, Row], goal: Goal) -> list[Group]:
    """One group per condition, in the order of the cells; failed cells take no part.

    Raises ValueError where no cell has the figure.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    labels: dict[str, dict[str, Any]] = {}
    for cell in cells:
        row = rows[cell.key]
        value = row.get(goal.figure)
        if row[STATUS] != OK or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        chosen = {key: value for key, value in cell.varied.items() if key.split(".")[0] in CHOSEN}
        where = {key: value for key, value in cell.varied.items() if key not in chosen}
        labels[said(chosen)], labels[said(where)] = chosen, where
        found.setdefault(said(where), {}).setdefault(said(chosen), {})[cell.seed] = float(value)
    if not found:
        _refuse_unknown(goal.figure, rows)
    return [
        Group(labels[where], _standings({said: (labels[said], by) for said, by in choices.items()}, goal))
        for where, choices in found.items()
    ]


def speedup(mine: Mapping[int, float], other: Mapping[int, float], goal: Goal) -> tuple[float, ...]:
    """How much better `mine` is than `other` on their common seeds, and the bounds of its 95 % interval.

    The geometric mean of the ratios, with Student's t on their logarithms: seeds are paired, since both
    met the same requests. Empty without a common seed or with a figure that is not above 0; without
    bounds for one seed.

    >>> speedup({1: 2.0}, {1: 3.0}, Goal("busy_s_per_token", "less"))
    (1.5,)
    """
    common = [(mine[seed], other[seed]) for seed in mine if seed in other]
    if not common or min(min(pair) for pair in common) <= 0.0:
        return ()
    logs = np.log([theirs / own if goal.better == "less" else own / theirs for own, theirs in common])
    middle = float(logs.mean())
    if len(logs) < 2:
        return (math.exp(middle),)
    half = float(student.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _standings(
    choices: Mapping[str, tuple[dict[str, Any], dict[int, float]]], goal: Goal
) -> tuple[Standing, ...]:
    sign = 1.0 if goal.better == "less" else -1.0
    ordered = sorted(choices.values(), key=lambda found: sign * float(np.mean(list(found[1].values()))))
    best = ordered[0][1]
    out = []
    for choice, by_seed in ordered:
        found = speedup(best, by_seed, goal) if by_seed is not best else ()
        ratio, low, high = [*found, None, None, None][:3]
        out.append(Standing(choice, len(by_seed), float(np.mean(list(by_seed.values()))), ratio, low, high))
    return tuple(out)


def _refuse_unknown(figure: str, rows: Mapping[str, Row]) -> None:
    fine = [row for row in rows.values() if row[STATUS] == OK]
    names = sorted({name for row in fine for name, value in row.items() if isinstance(value, int | float)})
    names = [name for name in names if name not in {CELL, SEED}]
    if fine and figure not in names:
        raise ValueError(f"no figure {figure!r} in any row{did_you_mean(figure, names)}")
