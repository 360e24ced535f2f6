"""Least squares on rows that come in blocks.

The evidence is an augmented Gram matrix: for a row x with result y it grows by the outer product of
(x, y). It is kept in cells, each of which forgets only where new rows arrive; the prior is added only
when solving, so it never fades. All rows are divided by the size of the result first: what is minimised
is the relative error.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask, fades
from steersman_controller.compiled import compiled

MEMORY_STEPS = 200.0
"""Effective number of rows that are remembered: forgetting is 1 - 1 / MEMORY_STEPS per row."""

KEEP = 1.0 - 1.0 / MEMORY_STEPS

SMALLEST_S = 1e-5
"""Seconds below this are as good as none: a relative error of them would drown all others."""

TRUSTED_ROWS = 8
"""With fewer rows behind a prediction, a result far from it is news and not an outlier."""

KEEP_SPREAD = 0.95

SPREAD = 0.5
"""Relative residual that is taken for usual before anything was seen."""


class FitState(Struct):
    """What a `Fit` has seen in the blocks before; part of a snapshot."""

    gram: Array
    """By cell: the products of a row with itself and its result."""
    seen: Counts
    """By cell: rows since the evidence there was doubted."""
    spread: Array
    """Faded sum of |relative residuals|, and their faded number."""


class Rows(Struct, frozen=True, gc=False):
    """The rows of a block so far, with what was predicted for them and what came."""

    cells: Counts
    rows: Array
    predicted: Array
    results: Array


class Fit:
    """Rows of `features` features and a result, in `cells` cells."""

    def __init__(self, cells: int, features: int) -> None:
        size = features + 1
        self.state = FitState(
            gram=np.zeros((cells, size, size)),
            seen=np.zeros(cells, np.int64),
            spread=np.array([SPREAD, 1.0]),
        )

    def settle(self, block: Rows, gram: Array) -> None:
        """Make a block part of the evidence; `gram`: what `gram` says with it."""
        state = self.state
        state.gram = gram
        known = self._known(block)
        residual = np.minimum(np.abs(block.results[known] / block.predicted[known] - 1.0), 1.0)
        weight = fades(KEEP_SPREAD, len(residual))
        state.spread *= KEEP_SPREAD ** len(residual)
        state.spread += (float((residual * weight).sum()), float(weight.sum()))
        state.seen += np.bincount(block.cells, minlength=len(state.seen))

    def doubt(self, keep: float) -> None:
        """Forget all but `keep` of everything: what slows one step down slows all of them down."""
        self.state.gram *= keep
        self.state.seen[:] = 0

    def gram(self, block: Rows) -> Array:
        """The products by cell, those of a block included.

        A stall on a shared machine must not wreck the fit, so a result is clipped to three times the usual
        residual around its prediction. A lasting change is for the watch to see.
        """
        state = self.state
        gram = state.gram.copy()
        limit = max(0.1, 3.0 * float(state.spread[0] / state.spread[1]))
        rows, predicted, results = map(np.ascontiguousarray, (block.rows, block.predicted, block.results))
        _add(gram, block.cells, rows, predicted, results, self._known(block), limit, SMALLEST_S, KEEP)
        return gram

    def _known(self, block: Rows) -> Mask:
        known: Mask = (self.state.seen >= TRUSTED_ROWS)[block.cells] & (block.predicted > SMALLEST_S)
        return known


class Line(Fit):
    """y = coefficients . x with coefficients >= 0, for a handful of features."""

    def __init__(self, prior: Sequence[float], strength: Sequence[float]) -> None:
        super().__init__(1, len(prior))
        self.prior = np.array(prior)
        self.strength = np.array(strength)
        self._behind = np.zeros((len(prior) + 1, len(prior) + 1))

    def expect(self, coefficients: Sequence[float], rows: Array, weight: float) -> None:
        """From now on lean on these coefficients, as if each of the rows had been seen `weight` times."""
        self.prior = np.array(coefficients)
        base = np.maximum(predictions(self.prior, rows), SMALLEST_S)
        relative = np.column_stack([rows, predictions(self.prior, rows)]) / base[:, None]
        self._behind = weight * relative.T @ relative

    def solved(self, gram: Array, level: float = 1.0) -> Array:
        """The coefficients that fit best to what `Fit.gram` says; `level`: by what factor of itself the prior
        is meant."""
        found, behind = gram[0], self._behind
        normal = found[:-1, :-1] + behind[:-1, :-1] / level**2 + np.diag(self.strength)
        wanted = found[:-1, -1] + behind[:-1, -1] / level + self.strength * self.prior * level
        return solve_non_negative(normal, wanted, range(len(self.prior)))


def predictions(coefficients: Array, rows: Array) -> Array:
    """Coefficients times features, by row (the last axis)."""
    # Not `@`: how it adds depends on the number of rows.
    return np.cumsum(coefficients * rows, axis=-1)[..., -1]


def solve_non_negative(normal: Array, wanted: Array, constrained: Sequence[int]) -> Array:
    """The solution of ``normal @ x = wanted``, negative entries among `constrained` held at zero.

    An active-set pass that only ever adds to the set: exact enough for coefficients that are either
    clearly positive or noise.
    """
    solution = _solved(normal, wanted)
    held: list[int] = []
    for _ in constrained:
        negative = [i for i in constrained if solution[i] < 0.0]
        if not negative:
            break
        # An equation x = 0 for each of them: cheaper than to take the others out.
        normal, wanted = normal.copy(), wanted.copy()
        for i in negative:
            normal[i], normal[:, i], wanted[i] = 0.0, 0.0, 0.0
            normal[i, i] = 1.0
        held += negative
        solution = _solved(normal, wanted)
        solution[held] = 0.0
    return solution


def _solved(normal: Array, wanted: Array) -> Array:
    # Rows much heavier than the prior can lose it to rounding.
    try:
        return np.linalg.solve(normal, wanted).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(normal, wanted, rcond=None)[0].astype(np.float64, copy=False)


@compiled
def _add(
    gram: Array,
    cells: Counts,
    rows: Array,
    predicted: Array,
    results: Array,
    known: Mask,
    limit: float,
    smallest: float,
    keep: float,
) -> None:
    """Add the products of rows with themselves and their results to their cells, one after the other: each
    cell keeps `keep` of what it has."""
    features = rows.shape[1]
    one = np.empty(features + 1)
    for number in range(len(cells)):
        result = results[number]
        base = predicted[number] if known[number] else max(result, smallest)
        for i in range(features):
            one[i] = rows[number, i] / base
        one[features] = result / base
        if known[number]:
            one[features] = min(max(one[features], 1.0 - limit), 1.0 + limit)
        cell = gram[cells[number]]
        for i in range(features + 1):
            for j in range(features + 1):
                cell[i, j] = keep * cell[i, j] + one[i] * one[j]
