"""`steersman sweep`."""

from pathlib import Path
from typing import Annotated

import typer


def sweep(
    scenario: Annotated[Path, typer.Argument(help="A scenario, or a sweep with its grid: YAML.")],
    out: Annotated[Path, typer.Option(help="Folder for results.parquet, or a .parquet file.")],
    vary: Annotated[
        list[str] | None, typer.Option(help="A key of the scenario and its values, as params.k=1,3,5.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each cell; default 1.")] = None,
    jobs: Annotated[int, typer.Option(help="Cells at a time; -1: one per core.")] = -1,
    backend: Annotated[str, typer.Option(help="loky (processes on this machine) or ray.")] = "loky",
    least: Annotated[str, typer.Option(help="Best is the least of this figure.")] = "",
    most: Annotated[str, typer.Option(help="Best is the most of this figure.")] = "",
    plot: Annotated[Path | None, typer.Option(help="Draw that figure into this .png, .svg or .pdf.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run cells that are there already anew.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Run a scenario under every combination of settings, in parallel, and keep one row per cell.

    A cell that is in --out already is not run again, so an interrupted sweep goes on where it was.
    Exit code 1 where a cell failed; its row says why. Without --least and --most, the least
    busy_s_per_token is the best.
    """
    from steersman_simulator.sweep.command import Request, goal_of, run_sweep

    request = Request(
        scenario=scenario,
        out=out,
        vary=tuple(vary or ()),
        seeds=seeds,
        jobs=jobs,
        backend=backend,
        goal=goal_of(least, most),
        plot=plot,
        again=again,
    )
    return run_sweep(request, as_json=json_output)
