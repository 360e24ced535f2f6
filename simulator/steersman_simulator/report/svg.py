"""Plots as inline SVG: no script, no font, nothing fetched, and the same bytes for the same figures."""

import io
import re
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SEGMENT_COLOURS = ("#1f7a8c", "#c8553d", "#6a4c93", "#588157", "#e0a52c", "#3d5a80", "#b56576", "#6c757d")
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa3b2",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ef",
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def drawn(name: str, make: Callable[[], Figure]) -> str:
    """A figure in our style, as an `<svg>` element."""
    # The salt keeps the ids of two plots in one document apart, and equal from run to run.
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        return svg(make())


def svg(figure: Figure) -> str:
    """The bare `<svg>` element of a figure, scaled to the width of its place."""
    out = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=metadata, bbox_inches="tight")
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(
        r'(<svg [^>]*?)width="[^"]*pt" height="[^"]*pt"|(<svg [^>]*?)height="[^"]*pt"', r"\1\2", text, count=1
    )


def rows(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Plots above each other with one time axis."""
    figure = Figure(figsize=(9.0, height * count + 0.4), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(count, 1, sharex=True)))


def one(width: float, height: float) -> tuple[Figure, Axes]:
    """A single plot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def floats(values: Sequence[float | None]) -> list[float]:
    """For a plot: nothing is a gap in the line."""
    return [float("nan") if value is None else value for value in values]
