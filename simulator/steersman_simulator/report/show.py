"""What a person sees of a simulated run."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from steersman_simulator.report.summary import rounded

_COUNTS = (
    ("Successful requests", "completed", "{:d}"),
    ("Benchmark duration (s)", "duration", "{:.2f}"),
    ("Total input tokens", "total_input_tokens", "{:d}"),
    ("Total generated tokens", "total_output_tokens", "{:d}"),
    ("Request throughput (req/s)", "request_throughput", "{:.3f}"),
    ("Output token throughput (tok/s)", "output_throughput", "{:.2f}"),
    ("Total token throughput (tok/s)", "total_token_throughput", "{:.2f}"),
    ("Busy seconds per token (ms)", "busy_s_per_token", "ms"),
    ("Goodput (tokens per busy second)", "goodput_tokens_per_busy_s", "{:.2f}"),
    ("Busy fraction", "busy_fraction", "{:.3f}"),
    ("Mean batch", "mean_batch", "{:.2f}"),
    ("Steps", "num_steps", "{:d}"),
    ("Draft acceptance rate", "draft_acceptance_rate", "{:.3f}"),
    ("Tokens per step and request", "tokens_per_step", "{:.3f}"),
    ("Preemptions", "preemptions", "{:d}"),
    ("SLO attainment", "slo_attainment", "{:.3f}"),
    ("Request goodput (req/s)", "request_goodput", "{:.3f}"),
)
_LATENCIES = (
    ("Time to first token", "ttft"),
    ("Time per output token (excl. 1st token)", "tpot"),
    ("Inter-token latency, per delivery", "itl"),
    ("Inter-token latency, per token", "itl_per_token"),
    ("End-to-end latency", "e2el"),
    ("Queueing", "queue"),
)
_BARS = " ▁▂▃▄▅▆▇█"


def encode_result(result: dict[str, Any]) -> bytes:
    """The JSON of a result: same result, same bytes."""
    return msgspec.json.encode(rounded(result), order="sorted")


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print a result as tables."""
    console = console or Console(file=sys.stdout, highlight=False)
    if result.get("warning"):
        Console(file=sys.stderr).print(f"warning: {result['warning']}", highlight=False)
    console.print(_fit_line(result) if "fitted" in result else _end_line(result))
    table = Table(title=f"Serving Benchmark Result (simulated): {result['policy']}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, key, form in _COUNTS:
        if result.get(key) is None:
            continue
        value = result[key]
        table.add_row(label, f"{value * 1e3:.3f}" if form == "ms" else form.format(value))
    for label, name in _LATENCIES:
        if f"mean_{name}_ms" in result:
            table.add_section()
            table.add_row(f"[bold]{label}[/bold]", "")
            for figure in ("mean", "median", "p99"):
                value = result[f"{figure}_{name}_ms"]
                table.add_row(f"  {figure.capitalize()} (ms)", f"{value:.2f}")
    console.print(table)
    console.print(_segments(result))


def _end_line(result: dict[str, Any]) -> str:
    parts = [f"{result['name']}: {result['arrived']} requests arrived, {result['completed']} finished"]
    parts += [f"{count} rejected ({why})" for why, count in result["rejected_by_reason"].items()]
    parts += [f"{result['unfinished']} unfinished"] if result["unfinished"] else []
    parts += [f"{count} rows left out ({why})" for why, count in result["left_out"].items()]
    return ", ".join(parts) + "."


def _fit_line(result: dict[str, Any]) -> str:
    fitted = result["fitted"]
    windows = ", ".join(dict.fromkeys(window["policy"] for window in fitted["windows"]))
    steps = sum(window["steps"] for window in fitted["windows"])
    error = fitted["step_error_fraction"]
    parts = [("on these steps", "fitted"), ("held out", "held_out"), ("other windows", "other_windows")]
    shown = [f"{error[key]:.1%} {words}" for words, key in parts if error[key] is not None]
    return f"Fitted on {steps} steps under {windows}; step error {', '.join(shown)}."


def _segments(result: dict[str, Any]) -> Table:
    table = Table(title="By segment")
    for column in ("segment", "tokens per step", "drafted", "accepted", "position acceptance", "K over time"):
        table.add_column(column)
    for name, segment in result["segments"].items():
        acceptance = " ".join(f"{a:.2f}" for a in segment["position_acceptance"][:8])
        table.add_row(
            name,
            f"{segment['tokens_per_step']:.2f}",
            str(segment["drafted_tokens"]),
            str(segment["accepted_tokens"]),
            acceptance,
            _spark(result["k_by_segment"].get(name, [])),
        )
    return table


def _spark(values: Sequence[float | None]) -> str:
    top = max([1.0, *(v for v in values if v is not None)])
    bars = (_BARS[round(v / top * (len(_BARS) - 1))] if v is not None else "·" for v in values)
    return f"{''.join(bars)} (max {top:.1f})"
