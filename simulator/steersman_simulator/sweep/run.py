"""Cells through joblib: in this process, in others, or on a Ray cluster, with the same rows everywhere.

joblib hands work and rows between processes of our own; no file and no peer's message is unpickled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import joblib
from threadpoolctl import threadpool_limits

from steersman_simulator.dotted import Tree, said
from steersman_simulator.sweep.cells import SEED, Cell, flat
from steersman_simulator.sweep.results import CELL, ERROR, FAILED, OK, STATUS, Row

Backend: TypeAlias = Literal["loky", "ray"]

Run: TypeAlias = Callable[[Tree, Path], Mapping[str, Any]]
"""From a scenario and the folder of its paths to figures, a JSON tree. It must be importable by name."""

INPUT = "scenario."
"""Before the names of the columns that hold what went in."""


def run_cells(
    cells: Sequence[Cell], run: Run, *, folder: Path, version: str, jobs: int, backend: Backend
) -> Iterator[Row]:
    """The row of each cell, as it comes. A cell that fails is a row too, also one that kills its process.

    `jobs`: -1 for all cores. Raises ValueError where the backend is not installed.
    """
    left = {cell.key: cell for cell in cells}
    with _backend(backend, jobs) as died, joblib.parallel_config(backend=backend, n_jobs=jobs):
        while left:
            try:
                for row in _parallel(list(left.values()), run, folder, version):
                    del left[row[CELL]]
                    yield row
            except died:
                # Whoever killed its process is among the first that are left: they were in flight.
                for cell in list(left.values())[: joblib.effective_n_jobs()]:
                    yield _alone(left.pop(cell.key), run, folder, version, died)


def row_of(cell: Cell, version: str, figures: Mapping[str, Any], error: str = "") -> Row:
    """A cell's row: what went in, what came out."""
    row: Row = {CELL: cell.key, "version": version, SEED: cell.seed, STATUS: FAILED if error else OK}
    row |= {ERROR: error, "scenario": said(cell.scenario)}
    row |= {INPUT + key: value for key, value in flat(cell.scenario).items() if key != SEED}
    out = flat(figures)
    assert not row.keys() & out.keys()
    return {key: value for key, value in (row | out).items() if value is not None}


def _parallel(
    cells: Sequence[Cell], run: Run, folder: Path, version: str, jobs: int | None = None
) -> Iterator[Row]:
    # One cell at a time and none waiting at a worker: what is lost with a process is what it ran.
    parallel = joblib.Parallel(
        n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs"
    )
    yield from parallel(joblib.delayed(_row)(cell, run, folder, version) for cell in cells)


def _row(cell: Cell, run: Run, folder: Path, version: str) -> Row:
    try:
        # One thread wherever it runs: several add up in another order, and fight for the cores.
        with threadpool_limits(1):
            return row_of(cell, version, run(cell.scenario, folder))
    except Exception as error:  # whatever it was, the other cells go on
        line = " ".join(str(error).split())
        name = "" if isinstance(error, ValueError | OSError) and line else f"{type(error).__name__}: "
        return row_of(cell, version, {}, f"{name}{line}".rstrip(": "))


def _alone(cell: Cell, run: Run, folder: Path, version: str, died: tuple[type[Exception], ...]) -> Row:
    """In a process of its own: with one job joblib would take this one."""
    try:
        return next(iter(_parallel([cell], run, folder, version, jobs=2)))
    except died:
        return row_of(cell, version, {}, "its process died, also when it ran alone (out of memory?)")


@contextmanager
def _backend(backend: Backend, jobs: int) -> Iterator[tuple[type[Exception], ...]]:
    """The backend is known to joblib; what it raises where a process has died."""
    if backend == "ray":
        from steersman_simulator.sweep.on_ray import workers

        with workers(jobs) as died:
            yield (died,)
    else:
        yield (BrokenProcessPool,)
