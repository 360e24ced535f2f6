"""`steersman bench recording`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steersman_simulator.fidelity.recorded import Fidelity


def bench_recording(
    recording: Annotated[Path, typer.Argument(help="Journal, Parquet, or the folder that holds it.")],
    fit_policies: Annotated[
        str, typer.Option(help="Fit on windows under these policies, as a,b; by default off,fixed.")
    ] = "",
    fit_windows: Annotated[
        str, typer.Option(help="Fit on these windows too, as 0,1,2; a window ends where the policy changes.")
    ] = "",
    engine: Annotated[str, typer.Option(help="The recorded engine; by default the first with steps.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Simulations of the whole recording.")] = 5,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Fit the simulator on some windows of a recording and score it on all others.

    Exit code 1 where the median of E2E or TPOT is more than 6 % off, their p99 more than 15 %, or goodput
    more than 4 %.
    """
    import msgspec

    from steersman_controller.progress import progress_on
    from steersman_simulator.fidelity.recorded import fidelity_of
    from steersman_simulator.report.summary import rounded

    with progress_on(sys.stderr) as progress:
        found = fidelity_of(
            recording,
            fit_policies=[word.strip() for word in fit_policies.split(",") if word.strip()],
            fit_numbers=_numbers(fit_windows),
            engine_id=engine,
            seeds=seeds,
            progress=progress,
        )
    if json_output:
        print(msgspec.json.encode(rounded(msgspec.to_builtins(found))).decode())
    else:
        _show(found)
    return 0 if found.passed else 1


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not word.isdecimal():
            raise ValueError(f"--fit-windows: {word!r} is no number of a window, as 0,1,2")
    return [int(word) for word in words]


def _show(found: "Fidelity") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    paces = Table(title="Windows (pace: measured over fitted seconds of a step)")
    for column in ("window", "policy", "", "pace"):
        paces.add_column(column)
    for pace in found.paces:
        side = "fitted" if pace.fitted else "scored"
        paces.add_row(str(pace.window), pace.policy, side, "" if pace.pace is None else f"{pace.pace:.3f}")
    console.print(paces)
    table = Table(title=f"Simulated against measured ({found.seeds} seeds)")
    for column in ("policy", "requests", "figure", "measured", "simulated", "error", "allowed", ""):
        table.add_column(column)
    for one in found.scored:
        for score in one.scores:
            table.add_row(
                one.policy,
                str(one.requests),
                score.figure,
                f"{score.measured:.5g}",
                f"{score.simulated:.5g} [{score.low:.5g}, {score.high:.5g}]",
                f"{score.error_fraction:+.1%}",
                f"{score.allowed_fraction:.0%}",
                "ok" if score.passed else "FAILED",
            )
    console.print(table)
