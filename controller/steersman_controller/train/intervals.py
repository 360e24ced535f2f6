"""Intervals around predicted seconds: split conformal on log(measured / predicted).

The residuals are of single rows, predicted by models that have not seen their batch size. The smallest and
the largest batch size are left aside, because tables only ever interpolate between measured ones. Where
single steps were measured the intervals are about steps, where only medians were given about medians.
"""

from dataclasses import dataclass

import numpy as np

from steersman_controller.train.cells import Cells, Floats
from steersman_controller.train.report import Interval
from steersman_controller.train.selection import OutOfFold, interior

NOMINAL = 0.90
"""Between q05 and q95."""

LEAST_ROWS = 20
"""With fewer residuals no finite interval could promise 95 % on each side."""


@dataclass(frozen=True)
class Residuals:
    """log(measured / predicted) of rows whose batch size the predicting model had not seen."""

    values: Floats
    weights: Floats
    fold: Floats

    def interval(self) -> Interval | None:
        """The conformal quantiles; None with too little evidence."""
        return _interval(self.values, self.weights)

    def coverage(self) -> float | None:
        """Share of the evidence inside the interval, each fold scored with the interval of the others."""
        inside, total = 0.0, 0.0
        for index in np.unique(self.fold):
            mine = self.fold == index
            others = _interval(self.values[~mine], self.weights[~mine])
            if others is not None:
                factors, weights = np.exp(self.values[mine]), self.weights[mine]
                inside += float(weights[(factors >= others.q05) & (factors <= others.q95)].sum())
                total += float(weights.sum())
        return inside / total if total else None


def residuals(rows: Cells, cells: Cells, out: OutOfFold) -> Residuals:
    """Of single `rows`, each under the model of the fold that left out its batch size."""
    nearest = out.nearest(rows.batch)
    fold, inside = out.fold[nearest], interior(cells)[nearest]
    values = np.full(len(rows), np.nan)
    for index, model in enumerate(out.models):
        mine = (fold == index) & inside
        if mine.any():
            values[mine] = np.log(rows.seconds[mine] / model.seconds(rows.take(mine)))
    known = np.isfinite(values)
    return Residuals(values[known], rows.steps[known], fold[known])


def _interval(values: Floats, weights: Floats) -> Interval | None:
    if len(values) < LEAST_ROWS:
        return None
    # The finite-sample correction of split conformal prediction: the next residual may be the largest.
    at = min(0.95 * (1.0 + 1.0 / len(values)), 1.0)
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
