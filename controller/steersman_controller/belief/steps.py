"""A step in numbers: its phases, the features that say what each of them costs, predicted and actual."""

from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask
from steersman_controller.compiled import compiled

Phase: TypeAlias = Literal["draft", "verify", "other", "step"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "other", "step")

TERMS = 4
"""Context, requests, prefill tokens, prefill at all."""

UNITS = (32768.0, 64.0, 64.0, 1.0)
"""One unit of a term costs about as much as one forward; makes one ridge strength fit all."""

FEATURES = 2 + TERMS
"""Of a forward: the share of each of the two knots, then the terms."""

VERIFY, DRAFT, OTHER = slice(0, FEATURES), slice(FEATURES, FEATURES + 4), slice(FEATURES + 4, FEATURES + 6)
"""Which features say what a phase costs."""

WIDTH = FEATURES + 6

LARGEST_LOG = 5.0
"""No step counts as further from its prediction than by this factor of e."""


class StepSeconds(Struct, frozen=True, gc=False):
    """Seconds by phase."""

    draft_s: float
    verify_s: float
    other_s: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.draft_s + self.verify_s + self.other_s


class PredictionError(Struct, frozen=True):
    """Predicted against actual seconds of one phase: of the newest step, and of recent ones."""

    predicted_s: float
    actual_s: float
    relative: float
    """Mean |predicted - actual| over mean actual, at most 1; 1 before there is any evidence."""


class Sight(Struct, frozen=True, gc=False):
    """Those steps of a chunk that teach something, and what was expected of them."""

    steps: Counts
    interval: Counts
    rows: Array
    predicted: Array
    actual: Array
    log_error: Array
    """log(actual / expected by the reference); 0 where there is none."""

    def taken(self, which: Mask) -> "Sight":
        """Only some of the steps."""
        return Sight(
            self.steps[which],
            self.interval[which],
            self.rows[which],
            self.predicted[which],
            self.actual[which],
            self.log_error[which],
        )


@compiled
def phases(coefficients: Array, interval: Counts, rows: Array) -> Array:
    """Predicted seconds by phase, the whole step last; a forward takes a twentieth of its curve at least.

    `coefficients`: seconds by interval and feature; `interval` and `rows`: those of the steps.
    """
    out = np.zeros((len(rows), 4))
    for step in range(len(rows)):
        by_feature = coefficients[interval[step]]
        curve = by_feature[0] * rows[step, 0] + by_feature[1] * rows[step, 1]
        verify_s = curve
        for feature in range(2, FEATURES):
            verify_s += by_feature[feature] * rows[step, feature]
        for feature in range(FEATURES, FEATURES + 4):
            out[step, 0] += by_feature[feature] * rows[step, feature]
        out[step, 1] = max(verify_s, 0.05 * curve)
        for feature in range(FEATURES + 4, WIDTH):
            out[step, 2] += by_feature[feature] * rows[step, feature]
        out[step, 3] = out[step, 0] + out[step, 1] + out[step, 2]
    return out


@compiled
def expected_s(coefficients: Array, interval: Counts, rows: Array) -> Array:
    """The same of the whole step, with nothing but the coefficients."""
    out = np.zeros(len(rows))
    for step in range(len(rows)):
        for feature in range(WIDTH):
            out[step] += coefficients[interval[step], feature] * rows[step, feature]
    return out


@compiled
def forward_features(
    rows: Array,
    grid: Array,
    start: Array,
    end: Array,
    gap: Counts,
    tokens: Array,
    context_tokens: Array,
    decode_requests: Array,
    prefill_tokens: Array,
) -> None:
    """Write the features of forwards that lie in these gaps of the grid; what each knot has at the ends."""
    for step in range(len(rows)):
        at = gap[step]
        part = max((tokens[step] - grid[at]) / (grid[at + 1] - grid[at]), 0.0)
        for knot in range(2):
            rows[step, knot] = (1.0 - part) * start[knot, at] + part * end[knot, at]
        rows[step, 2] = context_tokens[step] / UNITS[0]
        rows[step, 3] = decode_requests[step] / UNITS[1]
        rows[step, 4] = prefill_tokens[step] / UNITS[2]
        rows[step, 5] = prefill_tokens[step] > 0.0


@compiled
def host_features(rows: Array, depth: Array, requests_drafting: Array, decode_requests: Array) -> None:
    """Write the features of drafting and of the rest."""
    for step in range(len(rows)):
        asked, hundreds = depth[step] > 0.0, requests_drafting[step] / 100.0
        rows[step, FEATURES] = asked
        rows[step, FEATURES + 1] = hundreds * asked
        rows[step, FEATURES + 2] = depth[step]
        rows[step, FEATURES + 3] = depth[step] * hundreds
        rows[step, FEATURES + 4] = 1.0
        rows[step, FEATURES + 5] = decode_requests[step] / 100.0


def log_ratio(actual_s: Array, predicted_s: Array) -> Array:
    """log(actual / predicted), within what counts as possible."""
    ratio = np.log(np.maximum(actual_s, 1e-9) / np.maximum(predicted_s, 1e-9))
    return np.minimum(np.maximum(ratio, -LARGEST_LOG), LARGEST_LOG)
