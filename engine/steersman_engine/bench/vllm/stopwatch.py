"""What the adapter takes of the engine's thread, step by step."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from steersman_engine.bench.hook import quantile

LOOP_US = 20.0


class Hooked(Struct, frozen=True):
    """Microseconds in all of a hook's methods together, per step."""

    p50: float
    p99: float
    steps: int


class Stopwatch:
    """Times every public method of one hook from now on. A step begins with `begin`."""

    def __init__(self, hook: Any) -> None:
        self._steps_s: list[float] = []
        self._spent_s = 0.0
        self._calls_s: defaultdict[str, list[float]] = defaultdict(list)
        for name in methods(hook):
            setattr(hook, name, self._timed(name, getattr(hook, name)))

    def restart(self) -> None:
        """Forget the steps so far."""
        self._steps_s.clear()
        self._calls_s.clear()
        self._spent_s = 0.0

    def taken(self) -> list[float]:
        """Seconds of each step that has begun since the restart and is over."""
        return self._steps_s[1:]

    def by_method_us(self) -> dict[str, float]:
        """Median microseconds of a call of each method since the restart."""
        return {name: round(statistics.median(calls_s) * 1e6, 2) for name, calls_s in self._calls_s.items()}

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        is_first = name == "begin"

        def timed(*arguments: Any) -> Any:
            if is_first:
                self._steps_s.append(self._spent_s)
                self._spent_s = 0.0
            began_s = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent_s = time.perf_counter() - began_s
                self._spent_s += spent_s
                self._calls_s[name].append(spent_s)

        return timed


def methods(hook: Any) -> list[str]:
    """The names of the methods that a scheduler calls."""
    return [name for name, found in vars(type(hook)).items() if not name.startswith("_") and callable(found)]


def hooked(steps_s: list[float]) -> Hooked:
    """Quantiles of these steps."""
    steps_us = sorted(spent_s * 1e6 for spent_s in steps_s)
    return Hooked(round(quantile(steps_us, 0.5), 2), round(quantile(steps_us, 0.99), 2), len(steps_us))


def idle(hook: Any) -> Any:
    """A hook with the same methods that does nothing: what the measuring itself takes."""
    return type("Idle", (), dict.fromkeys(methods(hook), staticmethod(_nothing)))()


def looping(hook: Any) -> Any:
    """The same, but `choose` reads the clock as often as takes `LOOP_US` undisturbed.

    What it takes instead is this machine's doing: other processes, cold caches, a hypervisor.
    """
    reads = _reads(LOOP_US)

    def choose(*_: Any) -> None:
        for _read in range(reads):
            time.perf_counter()

    made = idle(hook)
    made.choose = choose
    return made


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _reads(wanted_us: float) -> int:
    """How often the clock can be read in this time, by the fastest of many loops."""
    fastest_s = float("inf")
    for _ in range(200):
        began_s = time.perf_counter()
        for _ in range(100):
            time.perf_counter()
        fastest_s = min(fastest_s, time.perf_counter() - began_s)
    return max(1, round(100 * wanted_us * 1e-6 / fastest_s))
