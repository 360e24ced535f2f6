"""What a check is: figures that our code brings, each held against what it should be."""

from collections.abc import Callable, Sequence
from math import inf, isnan
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

FALSE_ALARM = 0.0027
"""P(outside 3 sigma): what a check of chance fails with though nothing is wrong, all its figures together."""


class Asked(Struct, frozen=True):
    """What `steersman validate` was asked for."""

    seed: int = 0
    scale: float = 1.0
    """How much is drawn, as a multiple of what the command line draws. Tolerances of chance follow it."""
    public_traces: Path | None = None
    recording: Path | None = None

    def count(self, whole: int) -> int:
        """So many at scale 1; never none."""
        return max(1, round(whole * self.scale))


class Figure(Struct, frozen=True):
    """One number that was found, and what it was held against."""

    what: str
    expected: float
    found: float
    tolerance: float
    rule: Literal["near", "at_least", "at_most"] = "near"
    """near: within the tolerance of what is expected. The others have the tolerance on one side only."""

    @property
    def strain(self) -> float:
        """How much of the tolerance is used up; above 1: failed."""
        off = self.found - self.expected
        off = {"near": abs(off), "at_least": -off, "at_most": off}[self.rule]
        if isnan(off):
            return inf
        if self.tolerance > 0.0:
            return max(off, 0.0) / self.tolerance
        return inf if off > 0.0 else 0.0

    @property
    def holds(self) -> bool:
        """Whether it is as it should be."""
        return self.strain <= 1.0


class Sample(Struct, frozen=True):
    """A number estimated by chance, and the standard error of the estimate."""

    what: str
    expected: float
    found: float
    standard_error: float
    rounding: float = 0.0
    """By how much `expected` may be off because it was published with few digits."""


class Skip(Exception):  # noqa: N818 - it is no error
    """A check cannot be made here; the text says why."""


class Check(Struct, frozen=True):
    """One line of the suite."""

    number: str
    name: str
    what: str
    tolerance: str
    figures: Callable[[Asked], Sequence[Figure]]
    """Raises `Skip` where it may."""
    left_out: Callable[[], str] = str
    """Says what of the check cannot be made in this installation; empty: nothing."""


def three_sigma(samples: Sequence[Sample], *, degrees: float = inf) -> list[Figure]:
    """The samples as figures, whose tolerances make one false alarm in 370 checks: 3 sigma for all together.

    For n figures each has the two-sided error 1 - (1 - 0.0027)^(1/n) (Sidak). `degrees`: of freedom of the
    standard errors, where they were estimated from few numbers.

    >>> [round(figure.tolerance, 2) for figure in three_sigma([Sample("x", 0.0, 0.0, 1.0)])]
    [3.0]
    """
    from scipy.stats import norm, t

    tail = -np.expm1(np.log1p(-FALSE_ALARM) / max(len(samples), 1)) / 2.0
    width = float(norm.isf(tail) if degrees == inf else t.isf(tail, degrees))
    return [Figure(s.what, s.expected, s.found, width * s.standard_error + s.rounding) for s in samples]


def mean_of(what: str, expected: float, values: ArrayLike, rounding: float = 0.0) -> Sample:
    """The mean of independent values, against its expectation."""
    found = np.asarray(values, dtype=np.float64)
    error = float(found.std(ddof=1)) / len(found) ** 0.5
    return Sample(what, expected, float(found.mean()), error, rounding)


def share_of(what: str, expected: float, successes: float, trials: float) -> Sample:
    """A share of independent trials, against its probability."""
    error = (expected * (1.0 - expected) / trials) ** 0.5
    return Sample(what, expected, successes / trials, error)
