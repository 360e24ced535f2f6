"""The final tables on a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from steersman_simulator.demo.measure import busy_by_place, most_drafting

_ROWS = (
    ("TTFT p50 ms", "ttft_p50_s", 1e3),
    ("TPOT p50 ms", "tpot_p50_s", 1e3),
    ("E2E p50 s", "e2e_p50_s", 1.0),
    ("E2E p99 s", "e2e_p99_s", 1.0),
    ("saturated tokens/s", "saturated_tokens_per_s", 1.0),
    ("draft seconds", "draft_s", 1.0),
    ("verify seconds", "verify_s", 1.0),
    ("tokens per step and request", "tokens_per_step", 1.0),
)


def show(result: dict[str, Any], folder: Path, console: Console) -> None:
    """Print what `result.json` says."""
    console.print(arms_table(result))
    console.print(lengths_table(result))
    console.print(acceptance_table(result))
    if result["fidelity"]:
        console.print(_fidelity(result["fidelity"]))
    else:
        console.print(f"No simulation: {result['simulation_reason']}", highlight=False)
    for line in summary_lines(result):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def summary_lines(result: dict[str, Any]) -> list[str]:
    """The findings in sentences."""
    versus, outputs = result["steered_vs_best"], result["outputs"]
    if versus["low"] is None:
        interval = f"no interval: {versus['reason']}"
    else:
        bounds = f"{versus['low']:.3f} to {versus['high']:.3f}"
        interval = f"95 % interval {bounds} over {versus['units']} {versus['unit']}"
    lines = [
        f"Steered against the better other arm ({versus['best']}): {versus['ratio']:.3f}x the speed "
        f"in busy seconds per token ({interval}).",
    ]
    for arm in ("off", "fixed"):
        worst = result["contrast"][f"{arm}_loses"]
        if worst is not None:
            loss = f"{worst['loses_fraction']:.0%}"
            lines.append(f"{arm} loses {loss} of its speed to {worst['to']} in {worst['where']}.")
    error = result["prediction"].get("mean_relative_error_fraction")
    if error is not None:
        lines.append(
            f"The controller predicted step times with a mean error of {error:.1%}, before each step."
        )
    lines.append(
        f"Outputs: {outputs['equal']} of {outputs['requests']} requests have the same text in every arm."
    )
    if result["failed_requests"]:
        lines.append(f"{len(result['failed_requests'])} requests failed; see failed_requests in result.json.")
    return lines


def cell(value: float | None, scale: float = 1.0) -> str:
    """Three significant digits, or a dash where nothing was measured.

    >>> cell(0.01234, 1e3), cell(512.0), cell(None)
    ('12.3', '512', '-')
    """
    if value is None:
        return "-"
    scaled = value * scale
    return f"{scaled:.0f}" if abs(scaled) >= 100 else f"{scaled:#.3g}".rstrip(".")


def arms_table(result: dict[str, Any]) -> Table:
    """The arms side by side."""
    arms = result["arms"]
    table = Table(
        title=f"Arms ({result['rounds']} rounds, {result['workload']['requests_per_arm']} requests each)"
    )
    table.add_column("")
    for arm in arms:
        table.add_column(arm, justify="right")
    for label, key, scale in _ROWS:
        table.add_row(label, *(cell(figures[key], scale) for figures in arms.values()))
    table.add_section()
    for place, by_arm in busy_by_place(result).items():
        table.add_row(f"busy ms per token, {place}", *(cell(by_arm[arm], 1e3) for arm in arms))
    return table


def lengths_table(result: dict[str, Any]) -> Table:
    """K by segment and phase."""
    phases = result["arms"]["steered"]["by_phase"]
    table = Table(title="Mean K by segment, steered arm")
    table.add_column("segment")
    for phase in phases:
        table.add_column(phase, justify="right")
    for segment in _segments(phases.values(), "mean_k_by_segment"):
        ks = (figures["mean_k_by_segment"].get(segment) for figures in phases.values())
        table.add_row(segment, *("-" if k is None else f"{k:.1f}" for k in ks))
    return table


def acceptance_table(result: dict[str, Any]) -> Table:
    """How often each draft position was accepted, steered and in the arm that drafted most."""
    other = most_drafting(result, "steered")
    figures = {arm: result["arms"][arm] for arm in (other, "steered")}
    table = Table(title="Position acceptance by segment")
    for column in ("segment", "tokens per step", f"{other} arm, positions 1, 2, ...", "steered arm"):
        table.add_column(column)
    for segment in _segments(figures.values(), "position_acceptance_by_segment"):
        table.add_row(
            segment,
            cell(figures[other]["tokens_per_step_by_segment"].get(segment)),
            *(_positions(f["position_acceptance_by_segment"].get(segment)) for f in figures.values()),
        )
    return table


def _fidelity(found: dict[str, Any]) -> Table:
    table = Table(title=f"Simulated against measured, {found['arm']} arm")
    for column in ("", "simulated", "measured", "simulated / measured"):
        table.add_column(column, justify="right" if column else "left")
    for key, ratio in found["simulated_over_measured"].items():
        pair = (cell(found[side][key]) for side in ("simulated", "measured"))
        table.add_row(key, *pair, "-" if ratio is None else f"{ratio:.2f}")
    return table


def _segments(figures: Any, key: str) -> list[str]:
    return sorted({segment for one in figures for segment in one[key]})


def _positions(acceptance: Sequence[float] | None) -> str:
    return " ".join(f"{a:.2f}" for a in acceptance) if acceptance else "-"
