"""Monotone curves fitted to measured seconds: the shape in which the truth about steps is kept.

Seconds are a sum of one non-decreasing, piecewise linear curve per feature. Non-negative weights on
ramps between quantile knots give exactly that (a first-order I-spline basis), and re-weighting by
Huber's rule keeps a stalled step from bending a curve. The controller learns seconds in another
way (least squares on physics features), so its belief cannot agree with the truth by construction.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression

from steersman_policies.view import interpolate

Columns = Mapping[str, NDArray[np.float64]]

_ROUNDS = 8
_HUBER = 1.5
_ROWS_PER_KNOT = 12
"""A bend that a dozen steps do not speak for is noise."""


class Curve(Struct, frozen=True):
    """Seconds by one feature; the first value is 0."""

    knots: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def last_slope(self) -> float:
        """Seconds per unit over the upper half of the knots: the last piece alone may be noise."""
        middle = (len(self.knots) - 1) // 2
        return (self.seconds[-1] - self.seconds[middle]) / (self.knots[-1] - self.knots[middle])

    def at(self, value: float) -> float:
        """Interpolated; beyond the last knot `last_slope` goes on."""
        last = self.knots[-1]
        if value > last:
            return self.seconds[-1] + (value - last) * self.last_slope
        return interpolate(self.knots, self.seconds, value)

    def column(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """`at` for many values."""
        beyond = np.maximum(values - self.knots[-1], 0.0) * self.last_slope
        inside: NDArray[np.float64] = np.interp(values, self.knots, self.seconds)
        return inside + beyond


class Curves(Struct, frozen=True):
    """A constant plus one curve per feature."""

    constant_s: float
    curves: dict[str, Curve]

    def seconds(self, **features: float) -> float:
        """Seconds of one step. Features without a curve are ignored.

        >>> Curves(1.0, {"tokens": Curve((0, 2), (0.0, 4.0))}).seconds(tokens=1.0)
        3.0
        """
        return self.constant_s + sum(curve.at(features[name]) for name, curve in self.curves.items())

    def column(self, features: Columns) -> NDArray[np.float64]:
        """Seconds of many steps."""
        rows = len(next(iter(features.values())))
        parts = (curve.column(features[name]) for name, curve in self.curves.items())
        return sum(parts, np.full(rows, self.constant_s))


def fit_curves(features: Columns, seconds: NDArray[np.float64], *, knots: int = 8) -> Curves:
    """The curves with the smallest robust *relative* error. Needs at least one row.

    A knot at 0 and one at 1 let a feature that is usually absent (prefill, drafts) cost a jump.
    """
    grids = {name: _knots(column, knots) for name, column in features.items()}
    grids = {name: grid for name, grid in grids.items() if len(grid) > 1}
    if not grids:
        return Curves(float(np.median(seconds)), {})
    design = np.hstack([_ramps(features[name], grid) for name, grid in grids.items()])
    constant_s, slopes = _robust_fit(design, seconds)
    curves, at = {}, 0
    for name, grid in grids.items():
        rises = np.diff(grid) * slopes[at : at + len(grid) - 1]
        at += len(grid) - 1
        if rises.any():
            curves[name] = Curve(grid, (0.0, *(float(rise) for rise in np.cumsum(rises))))
    return Curves(constant_s, curves)


def _knots(column: NDArray[np.float64], count: int) -> tuple[int, ...]:
    present = column[column > 0]
    if not len(present):
        return ()
    count = min(max(len(present) // _ROWS_PER_KNOT, 2), count)
    inner = np.quantile(present, np.linspace(0.0, 1.0, count))
    ends = [0.0, 1.0] if (column == 0).any() else []
    return tuple(sorted({round(x) for x in [*ends, *inner.tolist()]}))


def _ramps(column: NDArray[np.float64], grid: tuple[int, ...]) -> NDArray[np.float64]:
    left, right = np.array(grid[:-1], dtype=float), np.array(grid[1:], dtype=float)
    ramps: NDArray[np.float64] = np.clip(column[:, None], left, right) - left
    ramps[:, -1] = np.maximum(column, left[-1]) - left[-1]
    return ramps


def _robust_fit(
    design: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    columns = np.hstack([np.ones((len(design), 1)), design / scale])
    floor_s = max(float(np.median(seconds)) * 1e-3, 1e-9)
    weights, fitted = np.ones(len(seconds)), np.maximum(seconds, floor_s)
    model = LinearRegression(positive=True, fit_intercept=False)
    for _ in range(_ROUNDS):
        # Relative to what was fitted, not to what was measured: that would favour the short steps.
        model.fit(columns, seconds, sample_weight=weights / fitted**2)
        fitted = np.maximum(columns @ model.coef_, floor_s)
        residual = np.abs(seconds - fitted) / fitted
        spread = max(1.4826 * float(np.median(residual)), 1e-6)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(residual, 1e-12))
    return float(model.coef_[0]), model.coef_[1:] / scale
