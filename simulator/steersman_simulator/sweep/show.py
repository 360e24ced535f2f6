"""What a person sees of a sweep: how far it is, and what it found."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from steersman_simulator.dotted import said
from steersman_simulator.sweep.best import Goal, Group
from steersman_simulator.sweep.cells import NAME, PARAMS

Advance = Callable[[bool], None]
"""One more cell is done; whether it failed."""

_LINE_EVERY_S = 10.0


@contextmanager
def progress_on(stream: TextIO, total: int, clock: Callable[[], float]) -> Iterator[Advance]:
    """A bar with the time left on a terminal; elsewhere a line every few seconds."""
    if not stream.isatty():
        yield _Lines(stream, total, clock).advance
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task, failures = bar.add_task("cells", total=total), 0

        def advance(failed: bool) -> None:
            nonlocal failures
            failures += failed
            bar.update(task, advance=1, description=f"cells, {failures} failed" if failures else "cells")

        yield advance


class _Lines:
    def __init__(self, stream: TextIO, total: int, clock: Callable[[], float]) -> None:
        self._stream, self._total, self._clock = stream, total, clock
        self._done = self._failed = 0
        self._started_s = self._said_s = clock()

    def advance(self, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        now_s = self._clock()
        if now_s - self._said_s < _LINE_EVERY_S and self._done < self._total:
            return
        self._said_s = now_s
        left_s = (now_s - self._started_s) / self._done * (self._total - self._done)
        print(
            f"sweep: {self._done} of {self._total} cells, {self._failed} failed, {left_s:.0f} s left",
            file=self._stream,
            flush=True,
        )


def show(result: dict[str, Any], groups: Sequence[Group], goal: Goal, console: Console | None = None) -> None:
    """The best choice of each condition, what it gains over the next, and the cells that failed."""
    console = console or Console(file=sys.stdout, highlight=False)
    console.print(
        f"{result['cells']} cells: {result['ran']} run now, {result['kept']} kept from before, "
        f"{result['failed']} failed; written: {result['out']}"
    )
    if groups:
        console.print(_table(groups, goal))
    for failure in result["failures"]:
        console.print(f"failed: {_words(failure['varied'])} seed {failure['seed']}: {failure['error']}")


def _table(groups: Sequence[Group], goal: Goal) -> Table:
    table = Table(title=f"Best by {goal.figure} ({goal.better} is better)")
    for column in ("condition", "best", goal.figure, "seeds", "next best", "speedup [95 %]"):
        table.add_column(column, overflow="fold")
    for group in groups:
        best, *others = group.standings
        second = others[0] if others else None
        table.add_row(
            _words(group.where),
            _words(best.choice),
            f"{best.mean:.6g}",
            str(best.seeds),
            _words(second.choice) if second else "",
            _interval(second.speedup, second.low, second.high) if second else "",
        )
    return table


def _interval(middle: float | None, low: float | None, high: float | None) -> str:
    if middle is None:
        return "no common seed"
    return f"{middle:.3f}x" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _words(settings: dict[str, Any]) -> str:
    """Settings in few words: a policy by its name, a parameter without its path.

    >>> _words({"workload.load": 2, "policy.name": "fixed", "policy.params.k": 3})
    'workload.load=2, fixed, k=3'
    """
    words = []
    for key, value in settings.items():
        name = key.removeprefix(PARAMS + ".")
        words.append(said(value) if key == NAME else f"{name}={said(value)}")
    return ", ".join(words) or "as it is"
