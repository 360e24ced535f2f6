"""What an engine has reported, counted for those who watch it. Nothing is learned from it.

It starts with the process and is no part of a snapshot.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from steersman_controller.belief.arrays import Array, Counts
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.steps import PHASES, Phase
from steersman_policies.messages import StepReport

STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ERROR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
STEP_PHASES: tuple[Phase, ...] = ("draft", "verify", "other")

REASONS = frozenset(
    {"table", "dwell", "explore", "deficit", "lease", "launch", "pause", "guard", "shadow", "error"}
)
"""Words that an engine may use freely are mapped to a closed list."""


class Histogram:
    """Numbers by phase and bucket, right-closed, the last one open; and their sums by phase."""

    def __init__(self, edges: Sequence[float], phases: Sequence[Phase]) -> None:
        self.phases = phases
        self.edges = np.array(edges)
        self.counts = np.zeros((len(phases), len(edges) + 1), np.int64)
        self.sums = np.zeros(len(phases))

    def add(self, values: Array) -> None:
        """Count values, given by column."""
        rows, buckets = self.counts.shape
        places = np.searchsorted(self.edges, values, side="left") + np.arange(rows) * buckets
        self.counts += np.bincount(places.reshape(-1), minlength=rows * buckets).reshape(rows, buckets)
        self.sums += values.sum(axis=0)


class Tally:
    """Counts of one engine; all of them only grow."""

    def __init__(self, k_max: int) -> None:
        self.k_max = k_max
        self.steps = 0
        self.committed_tokens = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.reached: Counts = np.zeros(k_max, np.int64)
        self.accepted: Counts = np.zeros(k_max, np.int64)
        """By position."""
        self.reasons: Counter[str] = Counter()
        """Steps by why the executor chose this K."""
        self.depths: Counter[int] = Counter()
        self.step_seconds = Histogram(STEP_BUCKETS_S, STEP_PHASES)
        self.prediction_errors = Histogram(ERROR_BUCKETS, PHASES)

    def add(self, every: Columns, reports: Sequence[StepReport]) -> None:
        """Count the steps of some reports, which are given both ways."""
        self.steps += every.steps
        self.committed_tokens += int(every.committed_tokens.sum())
        count = every.verified.astype(np.int64)
        offered, reached, accepted = every.marks
        self.drafts += int(count[offered > 0].sum())
        self.draft_tokens += int((offered * count).sum())
        self.accepted_tokens += int((accepted * count).sum())
        self.reached += _to_the_mark(reached, every.verified, self.k_max + 1)
        self.accepted += _to_the_mark(accepted, every.verified, self.k_max + 1)
        for reason, number in Counter([report.reason for report in reports]).items():
            self.reasons[reason if reason in REASONS else "other"] += number
        self.depths.update(every.depth.astype(np.int64).tolist())
        self.step_seconds.add(every.seconds.T)

    def errors(self, relative: Array) -> None:
        """Count errors of predictions, by step and phase."""
        self.prediction_errors.add(relative)


def _to_the_mark(mark: Counts, count: Array, marks: int) -> Counts:
    """How many have their mark at positions 1, 2, ... or behind."""
    return np.bincount(mark, count, marks)[:0:-1].cumsum()[::-1].astype(np.int64)
