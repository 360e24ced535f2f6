"""Intervals around predicted seconds: split conformal on log(measured / predicted).

The residuals are those of models that have not seen the batch size in question. The smallest and the
largest batch size are left aside, because tables only ever interpolate between measured ones. A cell with
many steps brings the spread of its steps with it, so the intervals are about single steps where single
steps were measured, and about medians where only medians were given.
"""

import numpy as np
from msgspec import Struct

from steersman_controller.train.cells import SHARES, Cells, Floats
from steersman_controller.train.selection import interior

NOMINAL = 0.90
"""Between q05 and q95."""


LEAST_CELLS = 20
"""With fewer residuals no finite interval could promise 95 % on each side."""


class Interval(Struct, frozen=True):
    """Factors on predicted seconds."""

    q05: float
    q50: float
    q95: float


def interval(cells: Cells, predicted_s: Floats) -> Interval | None:
    """The conformal quantiles; None with too little evidence inside the range of batch sizes."""
    return _interval(_residuals(cells, predicted_s))


def coverage(cells: Cells, predicted_s: Floats, fold: Floats) -> float | None:
    """Share of the evidence inside the interval, each fold scored with the interval of the others."""
    residuals = _residuals(cells, predicted_s)
    inside, total = 0.0, 0.0
    for index in np.unique(fold[np.isfinite(fold)]):
        mine = residuals[fold == index]
        others = _interval(residuals[fold != index])
        factors = np.exp(mine[np.isfinite(mine).all(axis=1)])
        if others is not None and len(factors):
            inside += float((((factors >= others.q05) & (factors <= others.q95)) @ np.array(SHARES)).sum())
            total += len(factors)
    return inside / total if total else None


def _residuals(cells: Cells, predicted_s: Floats) -> Floats:
    """log(measured / predicted) at each quantile of each cell; NaN where it is not to be counted."""
    residuals: Floats = np.log(cells.quantiles_s / predicted_s[:, None])
    residuals[~interior(cells)] = np.nan
    return residuals


def _interval(residuals: Floats) -> Interval | None:
    known = residuals[np.isfinite(residuals).all(axis=1)]
    if len(known) < LEAST_CELLS:
        return None
    values, weights = known.ravel(), np.tile(np.array(SHARES), len(known))
    # The finite-sample correction of split conformal prediction: the next residual may be the largest.
    at = min(0.95 * (1.0 + 1.0 / len(known)), 1.0)
    return Interval(
        q05=float(np.exp(-_quantile(-values, weights, at))),
        q50=float(np.exp(_quantile(values, weights, 0.5))),
        q95=float(np.exp(_quantile(values, weights, at))),
    )


def _quantile(values: Floats, weights: Floats, at: float) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    # Rounding of the sum must not push the last value out of reach.
    index = int(np.searchsorted(below, min(max(at, 0.0), 1.0) - 1e-9))
    return float(values[order][min(index, len(values) - 1)])
