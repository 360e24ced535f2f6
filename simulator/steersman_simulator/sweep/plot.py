"""A sweep as a picture: the figure over one varied number, a line for every other setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steersman_simulator.dotted import said
from steersman_simulator.sweep.best import Goal
from steersman_simulator.sweep.cells import Cell
from steersman_simulator.sweep.results import OK, STATUS, Row

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raises ValueError for a kind of picture that cannot be drawn."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot: {path} ends in {path.suffix or 'nothing'}; allowed: {', '.join(FORMATS)}")


def draw(cells: Sequence[Cell], rows: Mapping[str, Row], goal: Goal, path: Path) -> None:
    """Mean over seeds, and their range as a band. Raises ValueError where no number is varied."""
    from matplotlib.figure import Figure

    axis = _axis(cells)
    lines: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        value = rows[cell.key].get(goal.figure)
        if axis in cell.varied and rows[cell.key][STATUS] == OK and isinstance(value, int | float):
            rest = {key: value for key, value in cell.varied.items() if key != axis}
            label = ", ".join(f"{key}={said(value)}" for key, value in rest.items()) or goal.figure
            lines.setdefault(label, {}).setdefault(float(cell.varied[axis]), []).append(float(value))
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    plane = figure.subplots()
    for label, points in lines.items():
        places = sorted(points)
        plane.plot(places, [np.mean(points[x]) for x in places], marker="o", label=label)
        low, high = ([pick(points[x]) for x in places] for pick in (min, max))
        plane.fill_between(places, low, high, alpha=0.15)
    plane.set_xlabel(axis)
    plane.set_ylabel(f"{goal.figure} ({goal.better} is better)")
    plane.grid(alpha=0.3)
    plane.legend(fontsize="small")
    figure.savefig(path)


def _axis(cells: Sequence[Cell]) -> str:
    """The varied key with the most numbers."""
    numbers: dict[str, set[float]] = {}
    for cell in cells:
        for key, value in cell.varied.items():
            if _is_number(value):
                numbers.setdefault(key, set()).add(value)
    if not numbers:
        raise ValueError("--plot: no number is varied, so there is nothing to draw along")
    return max(numbers, key=lambda key: len(numbers[key]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
