"""What a person sees while the demo runs: one changing panel on a terminal, plain lines elsewhere."""

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from msgspec import Struct
from rich.console import Console
from rich.live import Live
from rich.table import Table

PLAIN_INTERVAL_S = 5.0


class Progress(Struct, frozen=True):
    """One moment of a live arm."""

    arm: str
    round: int
    rounds: int
    phase: str
    at_s: float
    live_requests: int
    done: int
    total: int
    tokens_per_s: float
    """Over the last moments, as the clients count them."""
    proposal_length: dict[str, int]
    """K by segment in force."""


class View(Protocol):
    """Where progress goes."""

    def stage(self, text: str) -> None:
        """Something new begins."""
        ...

    def show(self, progress: Progress) -> None:
        """A moment of the present arm; called a few times a second."""
        ...

    def __enter__(self) -> "View": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_view(console: Console) -> View:
    """The panel for a terminal that a person watches, lines for everything else."""
    watched = console.is_terminal and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
    return PanelView(console) if watched else LineView(console)


class LineView:
    """One line now and then; fit for logs."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._due_s = 0.0

    def __enter__(self) -> "LineView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stage(self, text: str) -> None:
        """Print it."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._due_s = 0.0

    def show(self, progress: Progress) -> None:
        """Print it when the last line is old enough."""
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + PLAIN_INTERVAL_S
            self._console.print(f"  {line(progress)}", highlight=False, markup=False, soft_wrap=True)


class PanelView:
    """A table that is redrawn in place, below the lines of finished stages."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "PanelView":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        """Print it above the panel."""
        self._console.print(f"[bold cyan]>[/bold cyan] {text}", highlight=False)

    def show(self, progress: Progress) -> None:
        """Redraw."""
        self._live.update(_panel(progress))


def line(progress: Progress) -> str:
    """A moment on one line.

    >>> line(Progress("steered", 1, 2, "quiet", 3.2, 1, 4, 40, 21.5, {"chat": 0}))
    'round 1/2 steered quiet at 3 s: 1 live, 4/40 done, 21.5 tokens/s, K chat=0'
    """
    lengths = " ".join(f"{segment}={k}" for segment, k in sorted(progress.proposal_length.items()))
    return (
        f"round {progress.round}/{progress.rounds} {progress.arm} {progress.phase} at {progress.at_s:.0f} s: "
        f"{progress.live_requests} live, {progress.done}/{progress.total} done, "
        f"{progress.tokens_per_s:.1f} tokens/s, K {lengths or 'not known yet'}"
    )


def _panel(progress: Progress) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    done = round(30 * progress.done / max(1, progress.total))
    table.add_row("arm", f"[bold]{progress.arm}[/bold]  round {progress.round} of {progress.rounds}")
    table.add_row("phase", f"{progress.phase}, {progress.at_s:.0f} s")
    table.add_row("requests", f"{'█' * done}{'░' * (30 - done)} {progress.done}/{progress.total} done")
    table.add_row("live", f"{'●' * min(progress.live_requests, 60)} {progress.live_requests}")
    table.add_row("tokens/s", f"{progress.tokens_per_s:.1f}")
    for segment, k in sorted(progress.proposal_length.items()):
        table.add_row(f"K {segment}", f"{'▮' * k}{'' if k else '·'} {k}")
    return table
