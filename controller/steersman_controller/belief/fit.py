"""Least squares that is updated one row at a time and solved now and then.

The evidence is an augmented Gram matrix: for a row x with result y it grows by the outer product of
(x, y). Forgetting scales it down; the prior is added only when solving, so it never fades. All rows
are divided by the size of the result first: what is minimised is the relative error.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

Matrix: TypeAlias = npt.NDArray[np.float64]

MEMORY_STEPS = 200.0
"""Effective number of rows that are remembered: forgetting is 1 - 1 / MEMORY_STEPS per row."""

KEEP = 1.0 - 1.0 / MEMORY_STEPS

SMALLEST_S = 1e-5
"""Seconds below this are as good as none: a relative error of them would drown all others."""

TRUSTED_ROWS = 8.0
"""With fewer rows behind a prediction, a result far from it is news and not an outlier."""

ONE_SIDED = 0.8
"""Recent mean sign of the residuals at which they lean to one side."""


class Residuals(Struct):
    """How far results usually are from their predictions.

    A stall on a shared machine must not wreck a fit, but a lasting change must get through. So a result
    is clipped to three times the usual residual around its prediction; and when the residuals lean to
    one side for long, what was learned before is worth half.
    """

    spread: float = 0.5
    """Typical size of the relative residual."""
    lean: float = 0.0
    """Their recent mean sign."""

    def clipped(self, predicted: float, result: float) -> float:
        """The result to learn from."""
        residual = result / predicted - 1.0
        self.spread += 0.05 * (min(abs(residual), 1.0) - self.spread)
        self.lean += 0.1 * ((1.0 if residual > 0.0 else -1.0) - self.lean)
        limit = max(0.1, 3.0 * self.spread)
        return predicted * (1.0 + min(max(residual, -limit), limit))

    def is_one_sided(self) -> bool:
        """Whether some sixteen residuals in a row had the same sign; starts afresh if so."""
        if abs(self.lean) < ONE_SIDED:
            return False
        self.lean = 0.0
        return True


class LineState(Struct):
    """What a `Line` has learned; part of a snapshot."""

    gram: list[float]
    coefficients: list[float]
    rows: float = 0.0
    residuals: Residuals = msgspec.field(default_factory=Residuals)


class Line:
    """y = coefficients . x with coefficients >= 0, for a handful of features."""

    def __init__(self, prior: Sequence[float], strength: Sequence[float]) -> None:
        self.prior = list(prior)
        self.strength = list(strength)
        size = len(self.prior) + 1
        self._upper = np.triu_indices(size)
        self.state = LineState([0.0] * (size * (size + 1) // 2), list(self.prior))

    def predict(self, features: Sequence[float]) -> float:
        """The expected result."""
        return sum(c * x for c, x in zip(self.state.coefficients, features, strict=True))

    def observe(self, features: Sequence[float], result: float) -> None:
        """Add one row; `solve` makes it count."""
        state = self.state
        predicted = self.predict(features)
        state.rows = learn(state.gram, features, state.residuals, state.rows, predicted, result)
        if state.residuals.is_one_sided():
            state.gram[:] = [0.5 * value for value in state.gram]
            state.rows *= 0.5

    def solve(self) -> None:
        """Bring the coefficients up to date."""
        size = len(self.prior) + 1
        upper = np.zeros((size, size))
        upper[self._upper] = self.state.gram
        gram = symmetric(upper)
        weight = np.array(self.strength)
        normal = gram[:-1, :-1] + np.diag(weight)
        wanted = gram[:-1, -1] + weight * np.array(self.prior)
        self.state.coefficients = solve_non_negative(normal, wanted, range(size - 1)).tolist()


def learn(
    gram: list[float],
    features: Sequence[float],
    residuals: Residuals,
    rows: float,
    predicted: float,
    result: float,
) -> float:
    """Add a row to `gram` (upper triangle, row by row), forgetting a little; the new number of rows."""
    target, size = result, max(result, SMALLEST_S)
    if rows >= TRUSTED_ROWS and predicted > SMALLEST_S:
        target, size = residuals.clipped(predicted, result), predicted
    row = [*(x / size for x in features), target / size]
    products = [left * right for i, left in enumerate(row) for right in row[i:]]
    gram[:] = [KEEP * old + new for old, new in zip(gram, products, strict=True)]
    return rows * KEEP + 1.0


def symmetric(upper: Matrix) -> Matrix:
    """The symmetric matrix with this upper triangle."""
    return upper + upper.T - np.diag(np.diag(upper))


def solve_non_negative(normal: Matrix, wanted: Matrix, constrained: Sequence[int]) -> Matrix:
    """The solution of ``normal @ x = wanted``, negative entries among `constrained` held at zero.

    An active-set pass that only ever adds to the set: exact enough for coefficients that are either
    clearly positive or noise.
    """
    solution = _solved(normal, wanted)
    free = np.ones(len(wanted), dtype=np.bool_)
    for _ in constrained:
        negative = [i for i in constrained if solution[i] < 0.0]
        if not negative:
            break
        free[negative] = False
        solution = np.zeros(len(wanted))
        solution[free] = _solved(normal[free][:, free], wanted[free])
    return solution


def _solved(normal: Matrix, wanted: Matrix) -> Matrix:
    # Rows much heavier than the prior can lose it to rounding.
    try:
        return np.linalg.solve(normal, wanted).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(normal, wanted, rcond=None)[0].astype(np.float64, copy=False)
