"""Promise 1: what steering adds to the engine's thread while the sidecar lives, hangs, is dead or absent."""

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from steersman_engine.bench.driven import DrivenEngine, paired, sample_hello
from steersman_engine.link import Link
from steersman_engine.steering import Launch, Steering

STATES = ("alive", "stopped", "killed", "absent")

ATTACH_S = 60.0
"""How long the sidecar may take to start and to send a plan."""

SIDECAR_LOG = "sidecar.log"

BLOCK_STEPS = 25
"""Steps between two changes of the arm."""

TRIM_FRACTION = 0.05
"""Of a block's steps, cut at both ends: other processes' interruptions, not ours."""


class Added(Struct, frozen=True):
    """Microseconds that `decide` and `record` took of the engine's thread in a step."""

    p50: float
    p99: float


class Difference(Struct, frozen=True):
    """Steered steps against unsteered ones: median over the ABBA groups and its 95 % interval."""

    fraction: float
    low: float
    high: float
    step_ms: float
    groups: int


class HookResult(Struct, frozen=True):
    """Of one batch size."""

    added_us: dict[str, Added]
    floor_us: Added
    """The same with a steering that does nothing: what this machine makes of the benchmark itself."""
    difference: Difference


Command = Callable[[str, Path], Sequence[str]]
"""The arguments that start a sidecar at an endpoint, with its files in a folder."""


def serve_command(endpoint: str, folder: Path) -> list[str]:
    """The real sidecar, steering."""
    start = "from steersman_controller.cli import main; main()"
    admin = f"ipc://{folder}/admin.ipc"
    return [
        *(sys.executable, "-c", start, "serve", "--steer"),
        *("--telemetry", endpoint, "--admin", admin, "--metrics-port", "0"),
    ]


def measure(
    requests: int,
    rng: random.Random,
    *,
    steps: int,
    groups: int,
    step_s: float,
    command: Command = serve_command,
    progress: Callable[[str], None] = lambda _: None,
) -> HookResult:
    """Drive a loop of `requests` through all four states. Raises RuntimeError where no sidecar starts."""
    added: dict[str, Added] = {}
    with tempfile.TemporaryDirectory(prefix="steersman-") as name:
        folder = Path(name)
        engine = DrivenEngine(requests, rng, step_s)
        with running(folder, command) as sidecar, linked(folder / "alive.ipc") as link:
            attach(engine, link, sidecar, folder / SIDECAR_LOG)
            progress(f"{requests} requests: steered against unsteered steps")
            difference = _difference(engine, link, groups)
            for state in STATES[:3]:
                progress(f"{requests} requests: sidecar {state}")
                _bring_about(state, sidecar)
                added[state] = _added(engine, link, steps)
        with linked(folder / "absent.ipc") as link:
            progress(f"{requests} requests: sidecar absent")
            added["absent"] = _added(engine, link, steps)
    return HookResult(added, _added(engine, Launch(), steps), difference)


@contextmanager
def running(folder: Path, command: Command) -> Iterator["subprocess.Popen[bytes]"]:
    """A sidecar process; killed at the end. Its words are in `SIDECAR_LOG`."""
    with (folder / SIDECAR_LOG).open("wb") as log:
        arguments = command(f"ipc://{folder}/alive.ipc", folder)
        process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=folder)  # noqa: S603 - our own
        try:
            yield process
        finally:
            process.kill()  # a stopped process dies of this, too
            process.wait()


@contextmanager
def linked(path: Path) -> Iterator[Link]:
    """A started link to an endpoint."""
    link = Link("driven", sample_hello(), f"ipc://{path}", state_dir=path.parent / f"{path.stem}-state")
    link.start()
    try:
        yield link
    finally:
        link.close()


def attach(engine: DrivenEngine, link: Link, sidecar: "subprocess.Popen[bytes]", log: Path) -> None:
    """Step until a plan is followed. Raises RuntimeError with the reason where that does not happen."""
    deadline_s = time.monotonic() + ATTACH_S
    while not engine.steered:
        engine.step(link)
        if sidecar.poll() is not None:
            raise RuntimeError(f"sidecar: ended with code {sidecar.returncode}: {last_line(log)}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"sidecar: sent no plan within {ATTACH_S:.0f} s: {last_line(log)}")


def last_line(log: Path) -> str:
    """The last words in a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _bring_about(state: str, sidecar: "subprocess.Popen[bytes]") -> None:
    if state == "stopped":
        os.kill(sidecar.pid, signal.SIGSTOP)
    elif state == "killed":
        sidecar.kill()
        sidecar.wait()


def _added(engine: DrivenEngine, steering: Steering, steps: int) -> Added:
    added_us = sorted(engine.step(steering)[0] * 1e6 for _ in range(steps))
    return Added(p50=quantile(added_us, 0.5), p99=quantile(added_us, 0.99))


def _difference(engine: DrivenEngine, link: Link, groups: int) -> Difference:
    blocks: dict[bool, list[float]] = {False: [], True: []}
    for steered in paired(4 * groups):
        steering = link if steered else None
        blocks[steered].append(trimmed_mean([engine.step(steering)[1] for _ in range(BLOCK_STEPS)]))
    return difference(blocks[False], blocks[True])


def difference(unsteered_s: Sequence[float], steered_s: Sequence[float]) -> Difference:
    """From the mean step of each block, in order; two blocks of either kind make a group.

    >>> difference([1.0] * 12, [1.02] * 12).fraction
    0.02
    """
    off = [sum(pair) / 2 for pair in zip(unsteered_s[::2], unsteered_s[1::2], strict=True)]
    on = [sum(pair) / 2 for pair in zip(steered_s[::2], steered_s[1::2], strict=True)]
    base_s = statistics.median(off)
    ratios = sorted((b - a) / base_s for a, b in zip(off, on, strict=True))
    rank = median_rank(len(ratios))
    return Difference(
        fraction=round(statistics.median(ratios), 6),
        low=round(ratios[rank], 6),
        high=round(ratios[-1 - rank], 6),
        step_ms=round(base_s * 1e3, 4),
        groups=len(ratios),
    )


def median_rank(number: int) -> int:
    """How many of `number` sorted values to leave out at each end for a 95 % interval of their median.

    The order statistics of the sign test: the largest rank whose two tails hold at most 5 %.

    >>> [median_rank(n) for n in (3, 6, 10, 20)]
    [0, 0, 1, 5]
    """
    rank, tail, term = 0, 0.0, 0.5**number
    while True:
        tail += term
        if 2 * tail > 0.05:
            return max(rank - 1, 0)
        term *= (number - rank) / (rank + 1)
        rank += 1


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without `TRIM_FRACTION` of the values at both ends.

    >>> trimmed_mean([9.0] + [1.0] * 38 + [0.0])
    1.0
    """
    cut = int(len(values) * TRIM_FRACTION)
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def quantile(ascending: Sequence[float], q: float) -> float:
    """The smallest value with at least `q` of the values at or below it.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0], 0.99)
    (2.0, 2.0)
    """
    return ascending[max(0, -int(-len(ascending) * q // 1) - 1)]
