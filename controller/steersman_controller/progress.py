"""What a long piece of work says while it goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

Progress: TypeAlias = Callable[[str, float | None], None]
"""Told what is being done and the fraction that is done; None where nobody knows it."""


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Progress]:
    """A bar on a terminal; silence anywhere else."""
    if not stream.isatty():
        yield _silence
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text, done: bar.update(
            task, description=text, completed=done or 0.0, total=None if done is None else 1.0
        )


def _silence(text: str, done: float | None) -> None:
    del text, done
