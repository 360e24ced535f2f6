"""Moments of made-up arrivals, from a rate that changes over time.

Gaps of mean 1 are drawn (exponential, Gamma, Weibull) and laid along the integral of the rate, so that a rate
that changes inside a gap is followed exactly (time rescaling; for exponential gaps this is the
inhomogeneous Poisson process).
"""

from collections.abc import Iterable, Iterator
from math import gamma, inf, sqrt
from typing import Literal

from msgspec import Struct

from steersman_simulator.world.chance import Chance


class Piece(Struct, frozen=True):
    """A stretch of time with a rate that changes linearly, and the shape of its gaps."""

    seconds: float
    from_per_s: float
    to_per_s: float
    family: Literal["gamma", "weibull"] = "gamma"
    shape: float = 1.0
    """1: exponential, a Poisson process."""

    @property
    def expected(self) -> float:
        """How many arrivals it brings."""
        rate = (self.from_per_s + self.to_per_s) / 2.0
        return rate * self.seconds if rate else 0.0

    def gap(self, chance: Chance) -> float:
        """One gap of mean 1."""
        if self.family == "weibull":
            return chance.weibullvariate(1.0 / gamma(1.0 + 1.0 / self.shape), self.shape)
        return chance.gammavariate(self.shape, 1.0 / self.shape)

    def after(self, arrivals: float) -> float:
        """The second at which the integral of the rate is `arrivals`, which is at most `expected`.

        >>> Piece(10.0, 0.0, 2.0).after(2.5)
        5.0
        """
        slope = 0.0 if self.seconds == inf else (self.to_per_s - self.from_per_s) / self.seconds
        # Of the two forms of the root, the one that does not divide by a vanishing slope.
        root = sqrt(max(0.0, self.from_per_s**2 + 2.0 * slope * arrivals))
        return 2.0 * arrivals / (self.from_per_s + root) if arrivals else 0.0


def gamma_shape(cv: float) -> float:
    """The shape of Gamma gaps with this coefficient of variation.

    >>> gamma_shape(2.0)
    0.25
    """
    return 1.0 / cv**2


def moments(pieces: Iterable[Piece], chance: Chance) -> Iterator[float]:
    """The arrivals along the pieces, ascending; a gap that a piece has begun ends in a later one."""
    start_s = 0.0
    left: float | None = None
    for piece in pieces:
        done, expected = 0.0, piece.expected
        if left is None:
            left = piece.gap(chance)
        while done + left <= expected:
            done += left
            yield start_s + piece.after(done)
            left = piece.gap(chance)
        left -= expected - done
        start_s += piece.seconds
