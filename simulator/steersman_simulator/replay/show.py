"""What a person sees of a replay, and the files it leaves."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from steersman_simulator.report.show import encode_result

_WIDTH = 120
"""Of what goes into a file or a pipe."""


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print a result as tables."""
    console = console or _console()
    if result["warning"]:
        Console(file=sys.stderr).print(f"warning: {result['warning']}", highlight=False)
    for line in lines(result):
        console.print(line, markup=False)
    console.print(_policies(result))
    for policy in result["policies"]:
        if policy["refused"]:
            console.print(f"{policy['policy']}: refused. {policy['refused']}", markup=False)
    for policy in result["policies"]:
        if not policy["refused"]:
            console.print(_segments(policy))
    console.print(_calibration(result))


def _console() -> Console:
    found = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if not found.is_terminal:
        found.width = _WIDTH
    return found


def lines(result: dict[str, Any]) -> list[str]:
    """What was recorded, and what the figures are."""
    recorded = result["recorded"]
    return [
        f"Recorded under {', '.join(recorded['policies'])}: {recorded['steps']:,} steps of engine "
        f"{result['engine']}, {recorded['explored_steps']:,} of them explored, mean K "
        f"{recorded['mean_k']:.2f}, {recorded['goodput_tokens_per_busy_s']:.1f} tokens per busy second.",
        *result["notes"],
    ]


def prepare(folder: Path) -> None:
    """Make the folder for `write`, before any work. Raises ValueError where it holds a result already."""
    path = folder / "result.json"
    if path.exists():
        raise ValueError(f"--out: {path} exists already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)


def write(folder: Path, result: dict[str, Any]) -> None:
    """`result.json`, `report.html` and `ratio.png`."""
    from steersman_simulator.replay.figure import ratio_figure

    (folder / "report.html").write_text(render(result), encoding="utf-8")
    plain = {"Software": None}
    ratio_figure(result).savefig(folder / "ratio.png", dpi=160, facecolor="white", metadata=plain)
    (folder / "result.json").write_bytes(encode_result(result) + b"\n")


def render(result: dict[str, Any]) -> str:
    """A page that opens anywhere, without a network; it holds its plot and the whole result."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from steersman_simulator.replay.figure import ratio_figure
    from steersman_simulator.report.svg import drawn

    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader(f"steersman_simulator.{package}", ".") for package in ("replay", "report")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figure = Markup(drawn("ratio", lambda: ratio_figure(result)))  # noqa: S704 - ours
    raw = encode_result(result).decode()
    return environment.get_template("replay.html.j2").render(
        result=result, summary=lines(result)[:1], figure=figure, raw=raw
    )


def _policies(result: dict[str, Any]) -> Table:
    table = Table(title="Estimated step goodput")
    table.add_column("policy")
    for column in ("tokens/s", "vs recorded", "vs off", "K", "basis", "sample", "exact", "probed", "model"):
        table.add_column(column, justify="right", no_wrap=True)
    for policy in result["policies"]:
        figures = ["-", "-", "-"]
        if not policy["refused"]:
            figures = [f"{policy['goodput_tokens_per_busy_s']:.1f}"]
            figures += [_interval(policy[name]) for name in ("against_recorded", "against_off")]
        table.add_row(
            policy["policy"],
            *figures,
            f"{policy['mean_k']:.2f}",
            "refused" if policy["refused"] else policy["basis"],
            f"{policy['effective_sample_size']:.0f}",
            *(f"{policy[name]:.0%}" for name in ("exact_share", "corrected_share", "model_share")),
        )
    return table


def _interval(found: dict[str, float]) -> str:
    return f"{found['ratio']:.3f} ({found['low']:.3f} - {found['high']:.3f})"


def _segments(policy: dict[str, Any]) -> Table:
    table = Table(title=f"{policy['policy']} by segment")
    table.add_column("segment")
    for column in ("request-steps", "K", "tokens per step", "exact", "K raised", "explored", "sample"):
        table.add_column(column, justify="right")
    for segment in policy["segments"]:
        table.add_row(
            segment["segment"],
            f"{segment['request_steps']:,}",
            f"{segment['recorded_mean_k']:.2f} -> {segment['mean_k']:.2f}",
            f"{segment['recorded_tokens_per_step']:.2f} -> {segment['tokens_per_step']:.2f}",
            f"{segment['exact_share']:.0%}",
            f"{segment['raised_share']:.0%}",
            f"{segment['explored_steps']:,}",
            f"{segment['effective_sample_size']:.0f}",
        )
    return table


def _calibration(result: dict[str, Any]) -> Table:
    table = Table(title="The recorded K, estimated from the other stretches, against what was measured")
    for column in ("from, s", "to, s", "measured", "estimated", "ratio", "inside"):
        table.add_column(column, justify="right")
    for stretch in result["calibration"]:
        table.add_row(
            f"{stretch['from_s']:.0f}",
            f"{stretch['to_s']:.0f}",
            f"{stretch['measured']:.1f}",
            f"{stretch['estimated']:.1f}",
            _interval(stretch),
            "yes" if stretch["inside"] else "no",
        )
    return table
