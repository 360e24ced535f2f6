"""The report's plots as inline SVG: no script, no font, nothing fetched."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steersman_simulator.demo.measure import FIDELITY, busy_by_place, most_drafting
from steersman_simulator.demo.result import Findings, by_arm
from steersman_simulator.demo.timeline import Timeline, timeline
from steersman_simulator.report.svg import SEGMENT_COLOURS, drawn, floats, one, rows

ARM_COLOURS = {
    "off": "#8a94a6",
    "k0": "#4b5563",
    "fixed": "#e08a3c",
    "static4": "#e08a3c",
    "table": "#8e6bbf",
    "steered": "#1f7a8c",
}


def all_figures(findings: Findings) -> dict[str, str]:
    """Every plot of a report by its name, as an `<svg>` element; no fidelity without a simulation."""
    makers: dict[str, Callable[[Findings], Figure]] = {
        "k_over_time": k_over_time,
        "load_over_time": load_over_time,
        "busy_by_phase": busy_by_phase,
        "position_acceptance": position_acceptance,
        "prediction": prediction,
        "latency": latency,
    }
    if "fidelity" in findings.result:
        makers["fidelity"] = fidelity
    return {name: drawn(name, partial(make, findings)) for name, make in makers.items()}


def k_over_time(findings: Findings) -> Figure:
    """Mean K by segment along the steered runs, one row a round."""
    lines = [timeline(run) for run in by_arm(findings.runs)["steered"]]
    figure, axes = rows(len(lines), height=1.9)
    colours = _segment_colours(findings)
    for number, (line, axis) in enumerate(zip(lines, axes, strict=True), start=1):
        for segment, values in line.k_by_segment.items():
            axis.step(
                _times(line), floats(values), where="mid", color=colours[segment], lw=1.6, label=segment
            )
        _phases(axis, line)
        axis.set_ylabel(f"K, round {number}" if len(lines) > 1 else "K")
        axis.set_ylim(bottom=-0.2)
    axes[0].legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.08))
    axes[-1].set_xlabel("seconds from the start of the arm")
    return figure


def load_over_time(findings: Findings) -> Figure:
    """Live and waiting requests along round 1 of each arm."""
    runs = by_arm(findings.runs)
    figure, axes = rows(2, height=1.7)
    for arm, found in runs.items():
        line = timeline(found[0])
        for axis, values in zip(axes, (line.live_requests, line.waiting_requests), strict=True):
            axis.plot(_times(line), floats(values), color=ARM_COLOURS[arm], lw=1.5, label=arm)
    for axis, label in zip(axes, ("live", "waiting"), strict=True):
        _phases(axis, timeline(runs["off"][0]))
        axis.set_ylabel(f"{label} requests")
        axis.set_ylim(bottom=0)
    axes[0].legend(ncols=len(runs), loc="lower left", bbox_to_anchor=(0, 1.08))
    axes[-1].set_xlabel("seconds from the start of the arm")
    return figure


def busy_by_phase(findings: Findings) -> Figure:
    """Busy milliseconds per token of each arm, by phase and in all."""
    arms = findings.result["arms"]
    places = busy_by_place(findings.result)
    figure, axis = one(7.4, 2.9)
    _bars(
        axis,
        list(places),
        {arm: [(found[arm] or 0.0) * 1e3 for found in places.values()] for arm in arms},
        ARM_COLOURS,
    )
    axis.set_ylabel("busy ms per token")
    axis.legend(ncols=len(arms), loc="lower left", bbox_to_anchor=(0, 1.0))
    return figure


def position_acceptance(findings: Findings) -> Figure:
    """Share of reached positions that were accepted, by segment, steered and in the arm that drafted most."""
    figure, axis = one(7.4, 2.9)
    colours = _segment_colours(findings)
    other = most_drafting(findings.result, "steered")
    for arm, style in ((other, "o--"), ("steered", "o-")):
        found = findings.result["arms"][arm]["position_acceptance_by_segment"]
        for segment, values in found.items():
            axis.plot(
                range(1, len(values) + 1),
                values,
                style,
                ms=4,
                lw=1.4,
                color=colours[segment],
                alpha=0.55 if arm == other else 1.0,
                label=f"{segment}, {arm}",
            )
    axis.set_ylim(0, 1.03)
    axis.set_xlabel("draft position")
    axis.set_ylabel("accepted / reached")
    axis.legend(ncols=1, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def prediction(findings: Findings) -> Figure:
    """Predicted against actual milliseconds of every step."""
    figure, axis = one(4.6, 4.0)
    actual = np.array([p.actual_s for p in findings.predictions]) * 1e3
    predicted = np.array([p.predicted_s for p in findings.predictions]) * 1e3
    if len(actual):
        # Thousands of vector dots make a heavy page and show no more.
        axis.scatter(actual, predicted, s=6, alpha=0.35, color="#1f7a8c", lw=0, rasterized=True)
        axis.set_xscale("log")
        axis.set_yscale("log")
        ends = [float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))]
        axis.plot(ends, ends, color="#9aa3b2", lw=1)
    axis.set_xlabel("actual step, ms")
    axis.set_ylabel("predicted before the step, ms")
    return figure


def fidelity(findings: Findings) -> Figure:
    """Simulated over measured figures of the steered arm."""
    figure, axis = one(7.4, 2.6)
    found = findings.result["fidelity"]
    ratios = {key: found["simulated_over_measured"][key] for key in FIDELITY} if found else {}
    kept = {key: ratio for key, ratio in ratios.items() if ratio is not None}
    axis.barh(list(kept), [ratio - 1.0 for ratio in kept.values()], left=1.0, color="#1f7a8c", height=0.55)
    for row, ratio in enumerate(kept.values()):
        axis.annotate(
            f"{ratio:.2f}",
            (ratio, row),
            xytext=(5 if ratio >= 1 else -5, 0),
            textcoords="offset points",
            va="center",
            ha="left" if ratio >= 1 else "right",
        )
    axis.axvline(1.0, color="#3b4252", lw=1)
    reach = max([0.15, *(abs(ratio - 1.0) * 1.35 for ratio in kept.values())])
    axis.set_xlim(1.0 - reach, 1.0 + reach)
    axis.invert_yaxis()
    axis.set_xlabel("simulated / measured, 1 is exact")
    return figure


def latency(findings: Findings) -> Figure:
    """Distributions over requests, one curve an arm."""
    figure = Figure(figsize=(9.0, 2.8), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, key, label, scale in zip(
        axes, ("ttft_s", "tpot_s", "e2e_s"), ("TTFT, s", "TPOT, ms", "E2E, s"), (1.0, 1e3, 1.0), strict=True
    ):
        for arm, runs in by_arm(findings.runs).items():
            values = [getattr(o, key) for run in runs for o in run.served]
            values = sorted(value * scale for value in values if value is not None)
            if values:
                axis.step(
                    values, np.arange(1, len(values) + 1) / len(values), color=ARM_COLOURS[arm], label=arm
                )
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
    axes[0].set_ylabel("share of requests")
    axes[0].legend(loc="lower right")
    return figure


def _times(line: Timeline) -> list[float]:
    return [(index + 0.5) * line.bin_s for index in range(len(line.live_requests))]


def _phases(axis: Axes, line: Timeline) -> None:
    for number, (name, start_s) in enumerate(line.phases):
        end_s = line.phases[number + 1][1] if number + 1 < len(line.phases) else len(line.live_requests)
        if number % 2:
            axis.axvspan(start_s, end_s, color="#f1f4f8", lw=0, zorder=0)
        axis.annotate(
            name.replace("_", " "),
            (start_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 2),
            textcoords="offset points",
            color="#6b7280",
            fontsize=8.5,
        )


def _bars(axis: Axes, groups: Sequence[str], series: dict[str, list[float]], colours: dict[str, str]) -> None:
    width = 0.8 / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        at = np.arange(len(groups)) + (index - (len(series) - 1) / 2) * width
        bars = axis.bar(at, values, width * 0.92, label=name, color=colours[name])
        axis.bar_label(bars, fmt="%.3g", padding=1, fontsize=8, color="#4b5563")
    axis.set_xticks(range(len(groups)), [group.replace("_", " ") for group in groups])
    axis.grid(axis="x", visible=False)


def _segment_colours(findings: Findings) -> dict[str, Any]:
    segments = sorted({o.segment for run in findings.runs for o in run.outcomes} | {"unknown"})
    return {name: SEGMENT_COLOURS[index % len(SEGMENT_COLOURS)] for index, name in enumerate(segments)}
