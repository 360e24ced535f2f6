"""Seconds of the target's forward, learned online.

A piecewise-linear curve over the tokens in the forward (a knot at each small number of them, then at
powers of two and half way between) plus linear terms for the context that is read, the requests in the
batch and the prefill among the tokens. The curve is expressed as a ratio to a shape: a prior's, with the
jumps that were measured, else a physical one (a constant for the weights, a slope for the arithmetic).
Where nothing was measured the ratio of the neighbours continues, so early predictions are finite and gaps
interpolate sensibly.

What was measured need not be monotone: on a CPU five tokens can take less than one, which goes through
another kernel. Held monotone, the curve would have hidden the cheapest proposals there.

Evidence is kept per interval between two knots and forgotten only where new evidence arrives: an hour
at batch 64 does not wash out what was learned at batch 1.
"""

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts
from steersman_controller.belief.fit import Fit
from steersman_controller.belief.prior import CostPrior
from steersman_controller.belief.steps import FEATURES, TERMS, UNITS, forward_features
from steersman_controller.compiled import compiled

ASSUMED_S = 0.02
"""A forward over one token, before anything was seen."""

SINGLE_TOKENS = 16
"""Up to here each number of tokens has a knot of its own: a few requests with their drafts."""

KNEE_TOKENS = 32.0
"""The physics shape doubles from 1 token to about this many: between a CPU and a large GPU."""

_UNITS = np.array(UNITS)

ROUGHNESS = 0.25
"""Pseudo-rows that pull the ratios of neighbouring knots together."""

RIDGE = 0.02
"""Pseudo-rows that pull the terms to zero."""

LEVEL = 1e-3
"""Pseudo-rows that pull the first ratio to 1: keeps the system regular before the first report."""

PRIOR_ROUGHNESS = 0.5
PRIOR_LEVEL = 0.02
"""The same for the shape of a prior, and at every knot where its level is known."""

LEAST_PIVOT = 1e-13
"""Of what a diagonal began with: rows much heavier than the prior can lose it to rounding."""


class Curve(Struct):
    """A solution: ratios to the shape at the knots, and the terms; seconds at one token."""

    ratios: Array
    terms: Array
    scale_s: float = 0.0
    """Of the physics shape; 0 before the first report."""


class VerifyCost:
    """The features of a forward, and the curve that fits to them."""

    def __init__(self, largest_tokens: int, prior: CostPrior | None = None) -> None:
        knots = list(range(1, SINGLE_TOKENS + 1))
        while knots[-1] < max(largest_tokens, 1024):
            knots += [knots[-1] * 3 // 2, knots[-1] * 2]
        self.knots = np.array(knots, np.float64)
        self.intervals = len(knots) - 1
        self.grid, seconds = _physical(self.knots) if prior is None else _expected(self.knots, prior)
        """Where the shape bends: the knots, and what a prior has between them."""
        self.assumed_s = ASSUMED_S if prior is None else float(seconds[0])
        """A forward over one token, before anything was seen."""
        self.shape = seconds / seconds[0]
        gaps = self.knots.searchsorted(self.grid[:-1], side="right") - 1
        self._interval: Counts = np.minimum(gaps, self.intervals - 1)
        # The ratio at both ends of a gap of the grid, as shares of the two knots around the gap.
        width = np.diff(self.knots)[self._interval]
        start, end = (
            (self.grid[at] - self.knots[self._interval]) / width for at in (slice(-1), slice(1, None))
        )
        self._start = np.stack([self.shape[:-1] * (1.0 - start), self.shape[:-1] * start])
        self._end = np.stack([self.shape[1:] * (1.0 - end), self.shape[1:] * end])
        self._terms = _expected_terms(prior)
        self.fit = Fit(self.intervals, FEATURES)
        self._prior, self._wanted = _prior(len(knots), prior, self._terms)

    def curve(self) -> Curve:
        """Before anything was seen."""
        return Curve(np.ones(len(self.knots)), self._terms.copy())

    def interval(self, tokens: Array) -> Counts:
        """Between which two knots a forward lies; the first or last where it lies beyond."""
        return np.asarray(self._interval[self._gap(tokens)])

    def features(
        self,
        into: Array,
        tokens: Array,
        context_tokens: Array,
        decode_requests: Array,
        prefill_tokens: Array,
    ) -> Counts:
        """Write the features of forwards into the first columns of `into`; the interval of each."""
        gap = self._gap(tokens)
        forward_features(
            into,
            self.grid,
            self._start,
            self._end,
            gap,
            tokens,
            context_tokens,
            decode_requests,
            prefill_tokens,
        )
        return np.asarray(self._interval[gap])

    def coefficients(self, curve: Curve) -> Array:
        """By interval: seconds by feature."""
        out = np.empty((self.intervals, FEATURES))
        out[:, 0], out[:, 1], out[:, 2:] = curve.ratios[:-1], curve.ratios[1:], curve.terms
        return out * (curve.scale_s or self.assumed_s)

    def solved(self, gram: Array, scale_s: float) -> Curve:
        """The curve that fits best to what `Fit.gram` says."""
        # The features are without the scale, which makes the solution one in seconds.
        solution = _solved(gram, scale_s or self.assumed_s, self._prior, self._wanted, LEAST_PIVOT)
        knots = len(self.knots)
        return Curve(np.maximum(solution[:knots], 1e-3), solution[knots:], scale_s)

    def curve_s(self, curve: Curve) -> Array:
        """Seconds at every point of the grid, without the terms."""
        ratios = np.interp(self.grid, self.knots, curve.ratios)
        return np.asarray((curve.scale_s or self.assumed_s) * self.shape * ratios)

    def terms_s(self, curve: Curve) -> list[float]:
        """Seconds per context token, per request, per prefill token, and for any prefill at all."""
        found: list[float] = ((curve.scale_s or self.assumed_s) * curve.terms / _UNITS).tolist()
        return found

    def shape_at(self, tokens: float) -> float:
        """How many times as long as one over a single token a forward is expected to last."""
        row, nothing = np.zeros((1, FEATURES)), np.zeros(1)
        self.features(row, np.array([tokens]), nothing, nothing, nothing)
        return float(row[0, 0] + row[0, 1])

    def _gap(self, tokens: Array) -> Counts:
        found = self.grid.searchsorted(tokens, side="right") - 1
        return np.minimum(np.maximum(found, 0), len(self.grid) - 2)


def _physical(knots: Array) -> tuple[Array, Array]:
    """Grid and seconds of a device that is known by nothing."""
    return knots, KNEE_TOKENS + knots


def _expected(knots: Array, prior: CostPrior) -> tuple[Array, Array]:
    """Grid and seconds of a prior; beyond its last point it goes on as steeply as over its second half."""
    theirs = np.array(prior.tokens_grid, np.float64)
    seconds = np.maximum(np.array(prior.verify_s), 1e-6)
    last = theirs[-1]
    half = int(theirs.searchsorted(last / 2.0))
    run = last - theirs[half]
    slope = max((seconds[-1] - seconds[half]) / run, 0.0) if run else seconds[-1] / (KNEE_TOKENS + last)
    grid = np.union1d(knots, theirs[(theirs >= knots[0]) & (theirs <= knots[-1])])
    return grid, np.interp(grid, theirs, seconds) + slope * np.maximum(grid - last, 0.0)


def _expected_terms(prior: CostPrior | None) -> Array:
    """The terms of a prior, against its forward over one token."""
    if prior is None:
        return np.zeros(TERMS)
    per_unit = np.array([prior.context_token_s, 0.0, prior.prefill_token_s, 0.0]) * np.array(UNITS)
    return np.asarray(per_unit / max(prior.verify_s[0], 1e-6), np.float64)


def _prior(knots: int, prior: CostPrior | None, terms: Array) -> tuple[Array, Array]:
    """Penalty on steps of the ratio from knot to knot, on its level and on the terms; and what to."""
    roughness = ROUGHNESS if prior is None else PRIOR_ROUGHNESS
    level = np.zeros(knots)
    level[0] = LEVEL
    if prior is not None and prior.is_level_known:
        level[:] = PRIOR_LEVEL
    normal = np.diag([*level, *[RIDGE] * TERMS])
    step = np.array([[roughness, -roughness], [-roughness, roughness]])
    for knot in range(knots - 1):
        normal[knot : knot + 2, knot : knot + 2] += step
    return normal, np.concatenate([level, RIDGE * terms])


@compiled
def _solved(gram: Array, scale: float, prior: Array, wanted: Array, least_pivot: float) -> Array:
    """Ratios at the knots, then the terms, that fit best; of the terms the first two are not negative.

    A ratio meets only those of its neighbours, and the terms. So the ratios are eliminated one by one, which
    leaves equations of the terms alone; and are found one by one when the terms are.
    """
    size, knots = len(wanted), len(gram) + 1
    terms = size - knots
    left, right = prior.copy(), wanted.copy()
    place = np.arange(knots - 2, size)
    for knot in range(knots - 1):
        place[0], place[1] = knot, knot + 1
        for i in range(2 + terms):
            right[place[i]] += scale * gram[knot, i, 2 + terms]
            for j in range(2 + terms):
                left[place[i], place[j]] += scale * scale * gram[knot, i, j]
    least = least_pivot * np.diag(left)
    for knot in range(knots):
        left[knot, knot] = max(left[knot, knot], least[knot])
        place[1] = knot + 1
        for i in place[1 if knot + 1 < knots else 2 :]:
            share = left[knot, i] / left[knot, knot]
            right[i] -= share * right[knot]
            for j in place[1 if knot + 1 < knots else 2 :]:
                left[i, j] -= share * left[knot, j]
    solution = np.zeros(size)
    solution[knots:] = _terms(left[knots:, knots:].copy(), right[knots:].copy(), least[knots:])
    for knot in range(knots - 1, -1, -1):
        found = right[knot]
        place[1] = knot + 1
        for i in place[1 if knot + 1 < knots else 2 :]:
            found -= left[knot, i] * solution[i]
        solution[knot] = found / left[knot, knot]
    return solution


@compiled
def _terms(left: Array, right: Array, least: Array) -> Array:
    """The terms by themselves; what would be negative of the first two is held at 0."""
    held = np.zeros(len(right), np.bool_)
    while True:
        normal, wanted = left.copy(), right.copy()
        for i in range(len(right)):
            if held[i]:
                normal[i], normal[:, i], normal[i, i], wanted[i] = 0.0, 0.0, 1.0, 0.0
        for i in range(len(right)):
            normal[i, i] = max(normal[i, i], least[i])
            for j in range(i + 1, len(right)):
                share = normal[i, j] / normal[i, i]
                wanted[j] -= share * wanted[i]
                normal[j] -= share * normal[i]
        for i in range(len(right) - 1, -1, -1):
            for j in range(i + 1, len(right)):
                wanted[i] -= normal[i, j] * wanted[j]
            wanted[i] /= normal[i, i]
        negative = wanted[:2] < 0.0
        if not negative.any():
            return wanted
        held[:2] |= negative
