"""What an engine has reported, counted for those who watch it. Nothing is learned from it.

It starts with the process and is no part of a snapshot.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from steersman_controller.belief.arrays import Array, Counts
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.steps import PHASES, Phase
from steersman_controller.compiled import compiled
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

    def add(self, *values: Array) -> None:
        """Count values, given by phase."""
        for phase, column in enumerate(values):
            _count(np.ascontiguousarray(column), self.edges, phase, self.counts, self.sums)


class Tally:
    """Counts of one engine; all of them only grow."""

    def __init__(self, k_max: int) -> None:
        self.steps = 0
        self.committed_tokens = 0
        self.reasons: Counter[str] = Counter()
        """Steps by why the executor chose this K."""
        self.depths: Counter[int] = Counter()
        self.step_seconds = Histogram(STEP_BUCKETS_S, STEP_PHASES)
        self.prediction_errors = Histogram(ERROR_BUCKETS, PHASES)
        self._outcomes = np.zeros((k_max + 1, k_max + 1))
        """Verifications by draft tokens and by how many of those were accepted."""

    @property
    def drafts(self) -> int:
        """Verifications of at least one draft token."""
        return int(self._outcomes[1:].sum())

    @property
    def draft_tokens(self) -> int:
        """Verified."""
        return int((np.arange(len(self._outcomes)) * self._outcomes.sum(axis=1)).sum())

    @property
    def accepted_tokens(self) -> int:
        """Of those."""
        return int(self.accepted.sum())

    @property
    def accepted(self) -> Counts:
        """By position."""
        return _or_more(self._outcomes.sum(axis=0))

    @property
    def reached(self) -> Counts:
        """By position: those before it were accepted, and it was offered."""
        rejected = self._outcomes.sum(axis=0) - self._outcomes.diagonal()
        return np.asarray(self.accepted + rejected[:-1].astype(np.int64))

    def add(self, every: Columns, reports: Sequence[StepReport]) -> None:
        """Count the steps of some reports, which are given both ways."""
        self.steps += every.steps
        self.committed_tokens += int(every.committed_tokens.sum())
        _add_at(self._outcomes, every.offered, every.accepted, every.verified)
        for reason, number in Counter([report.reason for report in reports]).items():
            self.reasons[reason if reason in REASONS else "other"] += number
        self.depths.update([report.drafting_depth for report in reports])
        self.step_seconds.add(every.draft_s, every.verify_s, every.other_s)

    def errors(self, relative: Array) -> None:
        """Count errors of predictions, by step and phase."""
        self.prediction_errors.add(*relative.T)


@compiled
def _count(values: Array, edges: Array, phase: int, counts: Counts, sums: Array) -> None:
    """Count values of a phase by bucket."""
    for value in values:
        bucket = 0
        while bucket < len(edges) and edges[bucket] < value:
            bucket += 1
        counts[phase, bucket] += 1
        sums[phase] += value


@compiled
def _add_at(sums: Array, row: Counts, column: Counts, terms: Array) -> None:
    """Add terms at places."""
    for term in range(len(terms)):
        sums[row[term], column[term]] += terms[term]


def _or_more(counts: Array) -> Counts:
    """How many have 1, 2, ... or more."""
    return np.asarray(counts[:0:-1].cumsum()[::-1], np.int64)
