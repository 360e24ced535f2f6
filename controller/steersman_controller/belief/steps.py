"""A step in numbers: its phases, the features that say what each of them costs, predicted and actual."""

from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask
from steersman_controller.belief.verify import FEATURES

Phase: TypeAlias = Literal["draft", "verify", "other", "step"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "other", "step")

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


def phases(products: Array) -> Array:
    """Predicted seconds by phase, the whole step last; a forward takes a twentieth of its curve at least."""
    out = np.empty((len(products), len(PHASES)))
    verify = np.cumsum(products[:, VERIFY], axis=1)
    draft = np.cumsum(products[:, DRAFT], axis=1)
    out[:, 0] = draft[:, -1]
    out[:, 1] = np.maximum(verify[:, -1], 0.05 * verify[:, 1])
    out[:, 2] = products[:, OTHER.start] + products[:, OTHER.start + 1]
    out[:, 3] = out[:, 0] + out[:, 1] + out[:, 2]
    return out


def host_features(rows: Array, depth: Array, requests_drafting: Array, decode_requests: Array) -> None:
    """Write the features of drafting and of the rest."""
    asked = depth > 0.0
    hundreds = requests_drafting / 100.0
    rows[:, DRAFT.start] = asked
    rows[:, DRAFT.start + 1] = hundreds * asked
    rows[:, DRAFT.start + 2] = depth
    rows[:, DRAFT.start + 3] = depth * hundreds
    rows[:, OTHER.start] = 1.0
    rows[:, OTHER.start + 1] = decode_requests / 100.0


def log_ratio(actual_s: Array, predicted_s: Array) -> Array:
    """log(actual / predicted), within what counts as possible."""
    ratio = np.log(np.maximum(actual_s, 1e-9) / np.maximum(predicted_s, 1e-9))
    return np.minimum(np.maximum(ratio, -LARGEST_LOG), LARGEST_LOG)
