"""What `steersman validate` prints for people."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from steersman_simulator.validate.suite import Result

_COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def show(results: Sequence[Result]) -> None:
    """One row a check, what failed below it, and the count."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "check", "closest figure", "expected", "found", "allowed", "verdict", "s"):
        right = column in {"expected", "found", "allowed", "s"}
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for r in results:
        numbers = [_number(r.expected), _number(r.found), _number(r.allowed)]
        colour = _COLOURS[r.verdict]
        verdict = f"[{colour}]{r.verdict}[/]"
        table.add_row(r.check, r.name, r.figure, *numbers, verdict, f"{r.seconds:.1f}")
    console = Console(file=sys.stdout, highlight=False)
    console.print(table)
    for r in results:
        if r.verdict == "failed":
            console.print(f"\n{r.check} {r.name}: {r.reason}; tolerance: {r.tolerance}", markup=False)
            for f in r.outside:
                line = f"  {f.what}: expected {_number(f.expected)}, found {_number(f.found)}"
                console.print(f"{line}, allowed {_number(f.tolerance)}", markup=False)
    reasons: dict[str, list[str]] = {}
    for r in results:
        if r.verdict != "failed" and r.reason:
            reasons.setdefault(r.reason, []).append(r.check)
    for reason, checks in reasons.items():
        console.print(f"\n{', '.join(checks)}: {reason}", markup=False)
    verdicts = [r.verdict for r in results]
    console.print(
        f"\n{verdicts.count('passed')} passed, {verdicts.count('failed')} failed, "
        f"{verdicts.count('skipped')} skipped"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
