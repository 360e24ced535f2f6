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

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, added_up
from steersman_controller.belief.fit import Fit, solve_non_negative

ASSUMED_S = 0.02
"""A forward over one token, before anything was seen."""

SINGLE_TOKENS = 16
"""Up to here each number of tokens has a knot of its own: a few requests with their drafts."""

KNEE_TOKENS = 32.0
"""The physics shape doubles from 1 token to about this many: between a CPU and a large GPU."""

TERMS = 4
"""Context, requests, prefill tokens, prefill at all."""

FEATURES = 2 + TERMS
"""The share of each of the two knots, then the terms."""

UNITS = (32768.0, 64.0, 64.0, 1.0)
"""One unit of a term costs about as much as one forward; makes one ridge strength fit all."""

ROUGHNESS = 0.25
"""Pseudo-rows that pull the ratios of neighbouring knots together."""

RIDGE = 0.02
"""Pseudo-rows that pull the terms to zero."""

LEVEL = 1e-3
"""Pseudo-rows that pull the first ratio to 1: keeps the system regular before the first report."""

FADE = 0.9996
"""Kept at every settling, so that an interval that is never visited again is forgotten in the end."""


class Curve(Struct):
    """A solution: ratios to the shape at the knots, and the terms; seconds at one token."""

    ratios: Array
    terms: Array
    scale_s: float = 0.0
    """Of the physics shape; 0 before the first report."""


class VerifyCost:
    """The features of a forward, and the curve that fits to them."""

    def __init__(self, largest_tokens: int) -> None:
        knots = list(range(1, SINGLE_TOKENS + 1))
        while knots[-1] < max(largest_tokens, 1024):
            knots += [knots[-1] * 3 // 2, knots[-1] * 2]
        self.knots = np.array(knots, np.float64)
        self.intervals = len(knots) - 1
        self.shape = (KNEE_TOKENS + self.knots) / (KNEE_TOKENS + 1.0)
        self.fit = Fit(self.intervals, FEATURES)
        self._prior = _prior(len(knots))
        self._places = _places(self.intervals)

    def curve(self) -> Curve:
        """Before anything was seen."""
        return Curve(np.ones(len(self.knots)), np.zeros(TERMS))

    def interval(self, tokens: Array) -> Counts:
        """Between which two knots a forward lies; the first or last where it lies beyond."""
        found = self.knots.searchsorted(tokens, side="right") - 1
        return np.minimum(np.maximum(found, 0), self.intervals - 1)

    def features(self, into: Array, interval: Counts, tokens: Array, context_tokens: Array) -> None:
        """Write the first three features of forwards into the columns of `into`."""
        left, right = self.knots[interval], self.knots[interval + 1]
        part = np.maximum((tokens - left) / (right - left), 0.0)
        into[:, 0] = (1.0 - part) * self.shape[interval]
        into[:, 1] = part * self.shape[interval + 1]
        into[:, 2] = context_tokens / UNITS[0]

    def coefficients(self, curve: Curve) -> Array:
        """By interval: seconds by feature."""
        out = np.empty((self.intervals, FEATURES))
        out[:, 0], out[:, 1], out[:, 2:] = curve.ratios[:-1], curve.ratios[1:], curve.terms
        return out * (curve.scale_s or ASSUMED_S)

    def solved(self, gram: Array, scale_s: float) -> Curve:
        """The curve that fits best to what `Fit.gram` says."""
        knots = len(self.knots)
        size = knots + TERMS + 1
        whole = added_up(self._places, gram.reshape(-1), size * size).reshape(size, size)
        # The features are without the scale, which makes the solution one in seconds.
        whole[:-1] *= scale_s or ASSUMED_S
        whole[:, :-1] *= scale_s or ASSUMED_S
        normal, wanted = whole[:-1, :-1] + self._prior, whole[:-1, -1].copy()
        wanted[0] += LEVEL
        solution = solve_non_negative(normal, wanted, (knots, knots + 1))
        return Curve(np.maximum(solution[:knots], 1e-3), solution[knots:], scale_s)

    def curve_s(self, curve: Curve) -> Array:
        """Seconds at every knot, without the terms."""
        return (curve.scale_s or ASSUMED_S) * self.shape * curve.ratios

    def terms_s(self, curve: Curve) -> list[float]:
        """Seconds per context token, per request, per prefill token, and for any prefill at all."""
        found: list[float] = ((curve.scale_s or ASSUMED_S) * curve.terms / np.array(UNITS)).tolist()
        return found


def _prior(knots: int) -> Array:
    """Penalty on steps of the ratio from knot to knot, on its level, and on the terms."""
    prior = np.diag([0.0] * knots + [RIDGE] * TERMS)
    step = np.array([[ROUGHNESS, -ROUGHNESS], [-ROUGHNESS, ROUGHNESS]])
    for knot in range(knots - 1):
        prior[knot : knot + 2, knot : knot + 2] += step
    prior[0, 0] += LEVEL
    return prior


def _places(intervals: int) -> Counts:
    """Where the products kept by each interval go in the flattened Gram matrix of all knots."""
    size = intervals + 1 + TERMS + 1
    shared = np.arange(intervals + 1, size)
    own = [np.concatenate([(interval, interval + 1), shared]) for interval in range(intervals)]
    return np.concatenate([(places[:, None] * size + places).reshape(-1) for places in own])
