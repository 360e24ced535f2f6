"""The final tables of `steersman demo --vllm` on a terminal."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from steersman_simulator.demo.console import acceptance_table, arms_table, cell, lengths_table

MEASURES = (("busy s per token", "busy_s_per_token"), ("mean E2E", "e2e_mean_s"))


def show(result: dict[str, Any], folder: Path, console: Console) -> None:
    """Print what `result.json` says."""
    for table in (arms_table, speed_table, sweep_table, lengths_table, acceptance_table):
        console.print(table(result))
    for line in summary_lines(result):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def speed_table(result: dict[str, Any]) -> Table:
    """The steered arm against each other arm, with lower bounds."""
    table = Table(title="Speed of the steered arm against ... (lower 95 % bound)")
    table.add_column("")
    for arm in result["speed"]["busy_s_per_token"]["overall"]["steered_vs"]:
        table.add_column(arm, justify="right")
    for label, measure in MEASURES:
        for place, found in result["speed"][measure].items():
            table.add_row(f"{label}, {place}", *map(_bounded, found["steered_vs"].values()))
        table.add_section()
    return table


def sweep_table(result: dict[str, Any]) -> Table:
    """What the sweep for vLLM's own table measured."""
    rows = result["sweep"]["busy_s_per_token_by_batch_and_k"]
    table = Table(title="Sweep: busy ms per token by requests at a time and K")
    table.add_column("", justify="right")
    for k in next(iter(rows.values())):
        table.add_column(f"K = {k}", justify="right")
    for batch, by_k in rows.items():
        table.add_row(batch, *(cell(seconds, 1e3) for seconds in by_k.values()))
    return table


def summary_lines(result: dict[str, Any]) -> list[str]:
    """The findings in sentences."""
    busy = result["speed"]["busy_s_per_token"]
    lines = []
    for place, found in busy.items():
        best = found["steered_vs_best"]
        lines.append(
            f"Steered against the best other arm, {place}: {_bounded(best)} against {best['best']}, "
            "in busy seconds per token."
        )
    overall, outputs = busy["overall"], result["outputs"]
    lines += [
        f"Steered against K = 4 at every batch, over all: {_bounded(overall['steered_vs']['static4'])}.",
        "vLLM launched without speculation against K = 0 in an engine launched with it: "
        f"{_bounded(overall['off_vs_k0'])}.",
        f"vLLM's own table, from the sweep: {[list(band) for band in result['sweep']['table']]}.",
    ]
    differing = ", ".join(f"{arm} {count}" for arm, count in outputs["differing"].items())
    lines.append(
        f"Of {outputs['requests']} requests, with a text that {outputs['against']} never gave: {differing}; "
        f"{outputs['against']} itself has several texts for {outputs['differing_in_itself']}."
    )
    if result["failed_requests"]:
        lines.append(f"{len(result['failed_requests'])} requests failed; see failed_requests in result.json.")
    lines += [f"Missed: {line}." for line in result["missed"]] or ["Every mark was met."]
    return lines


def _bounded(found: dict[str, Any]) -> str:
    low = "-" if found["low"] is None else f"{found['low']:.3f}"
    return f"{found['ratio']:.3f}x ({low})"
