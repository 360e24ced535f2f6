"""The plots of one simulated run."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct

from steersman_simulator.report.svg import SEGMENT_COLOURS, drawn, floats, one, rows
from steersman_simulator.report.timeline import Timeline

_POINTS = 400
"""Of a distribution; more show no more and make a heavy page."""


class RunView(Struct, frozen=True):
    """What is drawn of a run."""

    timeline: Timeline
    seconds: Mapping[str, Sequence[float]]
    """Latencies of requests by name."""
    position_acceptance: Mapping[str, Sequence[float]]
    """By segment."""


def run_figures(view: RunView) -> dict[str, str]:
    """Every plot by its name, as an `<svg>` element."""
    makers: dict[str, Callable[[RunView], Figure]] = {
        "load": _load,
        "k_over_time": _k_over_time,
        "latency": _latency,
        "position_acceptance": _position_acceptance,
    }
    return {name: drawn(name, partial(make, view)) for name, make in makers.items()}


def _load(view: RunView) -> Figure:
    line = view.timeline
    figure, axes = rows(3, height=1.5)
    axes[0].plot(_times(line), floats(line.mean("running")), color="#1f7a8c", label="running")
    axes[0].plot(_times(line), floats(line.mean("waiting")), color="#c8553d", label="waiting")
    axes[0].legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1.02))
    axes[1].plot(_times(line), line.tokens_per_s(), color="#6a4c93")
    axes[2].plot(_times(line), floats(line.mean("kv_used_fraction")), color="#588157")
    for axis, label in zip(axes, ("requests", "tokens/s", "KV in use"), strict=True):
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[2].set_ylim(0, 1.03)
    axes[2].set_xlabel("seconds")
    return figure


def _k_over_time(view: RunView) -> Figure:
    figure, axis = one(9.0, 2.4)
    found = view.timeline.k_by_segment()
    for (segment, values), colour in zip(found.items(), _colours(len(found)), strict=True):
        axis.step(_times(view.timeline), floats(values), where="mid", lw=1.5, color=colour, label=segment)
    axis.set_ylabel("K")
    axis.set_ylim(bottom=-0.2)
    axis.set_xlabel("seconds")
    _legend(axis)
    return figure


def _latency(view: RunView) -> Figure:
    figure = Figure(figsize=(9.0, 2.8), layout="constrained")
    names = (("ttft", "TTFT, s", 1.0), ("tpot", "TPOT, ms", 1e3), ("e2el", "E2E, s", 1.0))
    for axis, (name, label, scale) in zip(figure.subplots(1, 3, sharey=True), names, strict=True):
        values = np.sort(np.array(view.seconds.get(name, ()))) * scale
        if len(values):
            shares = np.linspace(0.0, 1.0, min(_POINTS, len(values) + 1))
            axis.plot(np.quantile(values, shares), shares, color="#1f7a8c")
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.set_ylim(0, 1.02)
    figure.axes[0].set_ylabel("share of requests")
    return figure


def _position_acceptance(view: RunView) -> Figure:
    figure, axis = one(7.4, 2.9)
    found = {name: values for name, values in view.position_acceptance.items() if values}
    for (segment, values), colour in zip(found.items(), _colours(len(found)), strict=True):
        axis.plot(range(1, len(values) + 1), values, "o-", ms=4, lw=1.4, color=colour, label=segment)
    axis.set_ylim(0, 1.03)
    axis.set_xlabel("draft position")
    axis.set_ylabel("accepted / reached")
    _legend(axis)
    return figure


def _legend(axis: Axes) -> None:
    if axis.lines:
        axis.legend(ncols=6, loc="lower left", bbox_to_anchor=(0, 1.02))


def _colours(count: int) -> list[str]:
    return [SEGMENT_COLOURS[number % len(SEGMENT_COLOURS)] for number in range(count)]


def _times(line: Timeline) -> list[float]:
    return [(number + 0.5) * line.width_s for number in range(len(line.bins))]
