"""The whole sweep: read, check, run what is missing, merge, tell."""

import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct

from steersman_policies.policy import did_you_mean
from steersman_simulator.report.summary import rounded
from steersman_simulator.sweep.best import Goal, Group, groups_of
from steersman_simulator.sweep.cells import Cell, cells_of
from steersman_simulator.sweep.grid import read_sweep
from steersman_simulator.sweep.plot import check_plot, draw
from steersman_simulator.sweep.results import ERROR, FAILED, OK, STATUS, Kept, Results, Row
from steersman_simulator.sweep.run import Backend, run_cells
from steersman_simulator.sweep.scenarios import check_scenario, run_cell
from steersman_simulator.sweep.show import progress_on, show

DONE, SOME_FAILED = 0, 1


class Request(Struct, frozen=True):
    """What `steersman sweep` was asked for."""

    scenario: Path
    out: Path
    vary: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: int = -1
    backend: str = "loky"
    goal: Goal = Goal()
    plot: Path | None = None
    again: bool = False


def goal_of(least: str, most: str) -> Goal:
    """What is best. Raises ValueError where both are said.

    >>> goal_of("", "output_throughput")
    Goal(figure='output_throughput', better='more')
    """
    if least and most:
        raise ValueError("--least and --most: only one of them says what is best")
    return Goal(most, "more") if most else Goal(least or Goal().figure, "less")


def run_sweep(request: Request, *, as_json: bool) -> int:
    """The exit code. Raises ValueError or OSError in one line for bad input, before any cell runs."""
    backend = _backend(request)
    scenario, folder, grid = read_sweep(request.scenario, request.vary, request.seeds)
    now = version("steersman")
    found = cells_of(scenario, grid, folder=folder, version=now, check=check_scenario)
    results = Results.at(request.out)
    with results.locked():
        kept = Kept({}, ()) if request.again else results.kept()
        done = [cell.key for cell in found.cells if kept.rows.get(cell.key, {}).get(STATUS) == OK]
        finished = frozenset(done)
        missing = [cell for cell in found.cells if cell.key not in finished]
        _say_torn(kept.torn)
        with progress_on(sys.stderr, len(missing), time.monotonic) as advance:
            for row in run_cells(
                missing, run_cell, folder=folder, version=now, jobs=request.jobs, backend=backend
            ):
                results.keep(row)
                advance(row[STATUS] == FAILED)
        rows = results.kept().rows
        results.merge([cell.key for cell in found.cells])
    groups = groups_of(found.cells, rows, request.goal)
    if request.plot is not None:
        draw(found.cells, rows, request.goal, request.plot)
    result = {
        "version": now,
        "out": str(results.table),
        "cells": len(found.cells),
        "ran": len(missing),
        "kept": len(done),
        "repeated": found.repeated,
        "torn": list(kept.torn),
        **_failures(found.cells, rows),
        **_standings(request.goal, groups),
    }
    if as_json:
        print(msgspec.json.encode(rounded(result)).decode())
    else:
        show(result, groups, request.goal)
    return SOME_FAILED if result["failed"] else DONE


def _backend(request: Request) -> Backend:
    if request.plot is not None:
        check_plot(request.plot)
    if request.jobs < -1 or request.jobs == 0:
        raise ValueError(f"--jobs: {request.jobs}, must be at least 1, or -1 for one per core")
    names: tuple[Backend, ...] = get_args(Backend)
    for name in names:
        if name == request.backend:
            return name
    hint = did_you_mean(request.backend, names)
    raise ValueError(f"--backend: no {request.backend!r}{hint}; allowed: {', '.join(names)}")


def _say_torn(torn: Sequence[str]) -> None:
    if torn:
        listed = ", ".join(torn[:3]) + (" and more" if len(torn) > 3 else "")
        print(f"sweep: {len(torn)} torn part(s), run again: {listed}", file=sys.stderr)


def _failures(cells: Sequence[Cell], rows: Mapping[str, Row]) -> dict[str, Any]:
    failed = [cell for cell in cells if rows[cell.key][STATUS] == FAILED]
    told = [
        {"cell": cell.key, "varied": cell.varied, "seed": cell.seed, "error": rows[cell.key][ERROR]}
        for cell in failed
    ]
    return {"failed": len(failed), "failures": told}


def _standings(goal: Goal, groups: Sequence[Group]) -> dict[str, Any]:
    return {"goal": msgspec.to_builtins(goal), "groups": msgspec.to_builtins(groups)}
