"""Seconds of the target's forward, learned online.

A piecewise-linear curve over the tokens in the forward (a knot at each small number of them, then at
powers of two and half way between) plus linear terms for the context that is read, the requests in the
batch and the prefill among the tokens. The curve is expressed as a ratio to a physics shape (a constant
for the weights, a slope for the arithmetic): where nothing was measured the ratio of the neighbours
continues, so early predictions are finite and monotone and gaps interpolate sensibly.

What was measured need not be monotone: on a CPU five tokens can take less than one, which goes through
another kernel. Held monotone, the curve would have hidden the cheapest proposals there.

Evidence is kept per interval between two knots and forgotten only where new evidence arrives: an hour
at batch 64 does not wash out what was learned at batch 1.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from steersman_controller.belief.fit import Matrix, Residuals, learn, solve_non_negative, symmetric

ASSUMED_S = 0.02
"""A forward over one token, before anything was seen."""

SINGLE_TOKENS = 16
"""Up to here each number of tokens has a knot of its own: a few requests with their drafts."""

KNEE_TOKENS = 32.0
"""The physics shape doubles from 1 token to about this many: between a CPU and a large GPU."""

TERMS = 4
"""Context, requests, prefill tokens, prefill at all."""

UNITS = (32768.0, 64.0, 64.0, 1.0)
"""One unit of a term costs about as much as one forward; makes one ridge strength fit all."""

ROUGHNESS = 0.25
"""Pseudo-rows that pull the ratios of neighbouring knots together."""

RIDGE = 0.02
"""Pseudo-rows that pull the terms to zero."""

LEVEL = 1e-3
"""Pseudo-rows that pull the first ratio to 1: keeps the system regular before the first report."""

FADE = 0.9998
"""Kept at every solve, so that an interval that is never visited again is forgotten in the end."""


class VerifyState(Struct):
    """What a `VerifyCost` has learned; part of a snapshot."""

    knots: list[int]
    grams: list[list[float]]
    rows: list[float]
    ratios: list[float]
    terms: list[float]
    scale_s: float = 0.0
    """Seconds of the physics shape at one token; 0 before the first report."""
    residuals: Residuals = msgspec.field(default_factory=Residuals)


class VerifyCost:
    """Learns from one forward at a time; `solve` makes what was added count."""

    def __init__(self, largest_tokens: int) -> None:
        knots = list(range(1, SINGLE_TOKENS + 1))
        while knots[-1] < max(largest_tokens, 1024):
            knots += [knots[-1] * 3 // 2, knots[-1] * 2]
        intervals = len(knots) - 1
        self.shape = [(KNEE_TOKENS + knot) / (KNEE_TOKENS + 1.0) for knot in knots]
        width = 2 + TERMS + 1
        self.state = VerifyState(
            knots=knots,
            grams=[[0.0] * (width * (width + 1) // 2) for _ in range(intervals)],
            rows=[0.0] * intervals,
            ratios=[1.0] * len(knots),
            terms=[0.0] * TERMS,
        )
        self._places = _places(intervals, width)

    def predict(self, tokens: float, context_tokens: float, requests: float, prefill_tokens: float) -> float:
        """Seconds, at least a twentieth of the curve's own."""
        interval, row = self._row(tokens, context_tokens, requests, prefill_tokens)
        return self._value(interval, row)

    def observe(
        self, tokens: int, context_tokens: int, requests: int, prefill_tokens: int, seconds: float
    ) -> None:
        """Add one forward."""
        state = self.state
        if state.scale_s == 0.0:
            state.scale_s = seconds * (KNEE_TOKENS + 1.0) / (KNEE_TOKENS + tokens)
        interval, row = self._row(tokens, context_tokens, requests, prefill_tokens)
        predicted = self._value(interval, row)
        state.rows[interval] = learn(
            state.grams[interval], row, state.residuals, state.rows[interval], predicted, seconds
        )
        if state.residuals.is_one_sided():
            self._fade(0.5)

    def solve(self) -> None:
        """Bring ratios and terms up to date."""
        state = self.state
        knots = len(state.knots)
        size = knots + TERMS + 1
        flat = np.array(state.grams).ravel()
        upper: Matrix = np.bincount(self._places, flat, size * size).astype(np.float64).reshape(size, size)
        gram = symmetric(upper)
        normal, wanted = gram[:-1, :-1] + _prior(knots), gram[:-1, -1].copy()
        wanted[0] += LEVEL
        solution = solve_non_negative(normal, wanted, (knots, knots + 1))
        state.ratios = np.maximum(solution[:knots], 1e-3).tolist()
        state.terms = solution[knots:].tolist()
        self._fade(FADE)

    def curve_s(self) -> list[float]:
        """Seconds at every knot, without the terms."""
        scale = self.state.scale_s or ASSUMED_S
        return [scale * s * r for s, r in zip(self.shape, self.state.ratios, strict=True)]

    def terms_s(self) -> tuple[float, ...]:
        """Seconds per context token, per request, per prefill token, and for any prefill at all."""
        scale = self.state.scale_s or ASSUMED_S
        return tuple(scale * term / unit for term, unit in zip(self.state.terms, UNITS, strict=True))

    def _fade(self, keep: float) -> None:
        """Forget all but this fraction everywhere: what slows one forward down slows all of them down."""
        state = self.state
        state.grams = [[keep * value for value in gram] for gram in state.grams]
        state.rows = [keep * rows for rows in state.rows]

    def _row(
        self, tokens: float, context_tokens: float, requests: float, prefill_tokens: float
    ) -> tuple[int, list[float]]:
        """The interval between two knots, and the features there."""
        knots, scale = self.state.knots, self.state.scale_s or ASSUMED_S
        interval = min(max(bisect_right(knots, tokens) - 1, 0), len(knots) - 2)
        left, right = knots[interval], knots[interval + 1]
        part = max((tokens - left) / (right - left), 0.0)
        return interval, [
            scale * (1.0 - part) * self.shape[interval],
            scale * part * self.shape[interval + 1],
            scale * context_tokens / UNITS[0],
            scale * requests / UNITS[1],
            scale * prefill_tokens / UNITS[2],
            scale if prefill_tokens else 0.0,
        ]

    def _value(self, interval: int, row: Sequence[float]) -> float:
        state = self.state
        curve = row[0] * state.ratios[interval] + row[1] * state.ratios[interval + 1]
        terms = sum(x * c for x, c in zip(row[2:], state.terms, strict=True))
        return max(curve + terms, 0.05 * curve)


def _prior(knots: int) -> Matrix:
    """Penalty on steps of the ratio from knot to knot, on its level, and on the terms."""
    prior = np.diag([0.0] * knots + [RIDGE] * TERMS)
    step = np.array([[ROUGHNESS, -ROUGHNESS], [-ROUGHNESS, ROUGHNESS]])
    for knot in range(knots - 1):
        prior[knot : knot + 2, knot : knot + 2] += step
    prior[0, 0] += LEVEL
    return prior


def _places(intervals: int, width: int) -> npt.NDArray[np.intp]:
    """Where the products kept by each interval go in the flattened Gram matrix of all knots."""
    size = intervals + 1 + TERMS + 1
    shared = list(range(intervals + 1, size))
    places = []
    for interval in range(intervals):
        own = [interval, interval + 1, *shared]
        assert len(own) == width
        places += [left * size + right for i, left in enumerate(own) for right in own[i:]]
    return np.array(places)
