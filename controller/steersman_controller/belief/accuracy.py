"""How far predictions of step seconds were off, each compared before anything was learned from its step."""

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask, by_cell, fades
from steersman_controller.belief.prior import CostPrior
from steersman_controller.belief.steps import PHASES, log_ratio

KEEP_ERROR = 0.95
"""Kept of the running errors at each step."""

RECENT = 256
"""Steps by interval whose errors make the bounds of a prediction."""

ENOUGH = 40
"""Steps in an interval before it has bounds of its own; the others share theirs."""


class AccuracyState(Struct):
    """Part of a snapshot."""

    errors: Array
    """By phase: faded sums of |predicted - actual| and of actual."""
    logs: Array
    """By interval of tokens: log(actual / predicted) of the last `RECENT` steps, as a ring."""
    logs_seen: Counts


class Accuracy:
    """Grows by `add`, a block of steps at a time."""

    def __init__(self, intervals: int, prior: CostPrior | None) -> None:
        # A prior speaks for itself only where it knows the level, not just the shape.
        self.prior = prior if prior is not None and prior.is_level_known else None
        self.state = AccuracyState(
            errors=np.zeros((len(PHASES), 2)),
            logs=np.zeros((intervals, RECENT)),
            logs_seen=np.zeros(intervals, np.int64),
        )

    @property
    def relative_error(self) -> float:
        """Typical |predicted - actual| / actual of recent steps; before any came, the prior's, or 1.0."""
        wrong, total = self.state.errors[-1].tolist()
        if self.prior is not None and total == 0.0:
            return self.prior.relative_error
        return _relative(wrong, total)

    def relative(self) -> list[float]:
        """The same by phase, without any prior."""
        return [_relative(wrong, total) for wrong, total in self.state.errors.tolist()]

    def add(self, interval: Counts, predicted: Array, actual: Array, trusted: Mask) -> Array:
        """Count a block: seconds by step and phase; `trusted`: intervals with evidence behind predictions.

        Returns |predicted - actual| / actual by step and phase.
        """
        state, wrong, number = self.state, np.abs(predicted - actual), len(actual)
        if number:
            weight = fades(KEEP_ERROR, number)[:, None]
            state.errors *= KEEP_ERROR**number
            state.errors += np.stack([(wrong * weight).sum(axis=0), (actual * weight).sum(axis=0)], axis=1)
        logs = log_ratio(actual[:, 3], predicted[:, 3])
        # What a prediction with hardly any step behind it was wrong by says nothing about the next ones.
        tells = trusted[interval].nonzero()[0]
        for cell, which in by_cell(interval[tells], len(state.logs)):
            at = (state.logs_seen[cell] + np.arange(len(which))) % RECENT
            state.logs[cell, at] = logs[tells[which]]
            state.logs_seen[cell] += len(which)
        return np.asarray(wrong / np.maximum(actual, 1e-9))

    def doubt(self) -> None:
        """Steps have changed: what was wrong by how much says nothing about the next ones."""
        self.state.logs_seen[:] = 0

    def bounds(self) -> Array:
        """By interval, by what factors of its prediction a step may last: the 90 % interval.

        The empirical quantiles of recent prequential errors, corrected for their number (split conformal).
        Before there are `ENOUGH` what the prior says, else 0 and infinite.
        """
        state = self.state
        kept = np.minimum(state.logs_seen, RECENT).tolist()
        found = [state.logs[interval, :number] for interval, number in enumerate(kept)]
        shared = self.quantiles(np.concatenate(found))
        return np.array([self.quantiles(logs) if len(logs) >= ENOUGH else shared for logs in found])

    def quantiles(self, logs: Array) -> tuple[float, float]:
        """The factors that hold 90 % of what comes after such errors."""
        if len(logs) < ENOUGH:
            if self.prior is not None and len(self.prior.interval) == 2:
                return self.prior.interval[0], self.prior.interval[1]
            return 0.0, np.inf
        # The k-th smallest of n lies below the next one with probability k / (n + 1).
        at = 0.05 * (len(logs) + 1) - 1.0
        low, high = np.interp((at, len(logs) - 1.0 - at), np.arange(len(logs)), np.sort(logs))
        return float(np.exp(low)), float(np.exp(high))


def _relative(wrong: float, total: float) -> float:
    """At most 1; 1 before there is any evidence."""
    return min(wrong / total, 1.0) if total > 0.0 else 1.0
