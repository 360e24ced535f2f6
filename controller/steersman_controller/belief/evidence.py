"""What was seen of the drafts of one segment: counts that fade, and a watch for sudden change.

Each count is multiplied by a growing gain when it is added, instead of all others being shrunk:
forgetting costs one multiplication. A true count is the kept one divided by the gain.
"""

from typing import NamedTuple

import msgspec
from msgspec import Struct

from steersman_policies.messages import CONTEXT_EDGES_TOKENS, Group

CONTEXTS = len(CONTEXT_EDGES_TOKENS) + 1

SETTLED = 30.0
"""Drafts behind a belief before it can be contradicted."""

STALE_GROUPS = 64
"""Groups after which the belief that new evidence is compared with is brought up to date."""

SURPRISE = 16.0
"""Squared deviations, in units of their usual square, that contradict a belief."""


class Surprise(Struct):
    """Recent difference between what was seen and what was expected, against its usual size."""

    difference: float = 0.0
    variance: float = 0.0
    dispersion: float = 1.0
    """Usual square of the difference in units of its variance: requests differ and acceptance comes in
    bursts, so in real traffic this is well above the binomial 1."""

    def observe(self, difference: float, variance: float) -> bool:
        """Whether the newest evidence contradicts the belief; starts afresh if so."""
        self.difference = 0.8 * self.difference + difference
        self.variance = 0.64 * self.variance + variance + 0.02
        square = self.difference**2 / self.variance
        if square > SURPRISE * max(self.dispersion, 1.0):
            self.difference = self.variance = 0.0
            return True
        self.dispersion += 0.02 * (square - self.dispersion)
        return False


class Bucket(Struct):
    """Evidence in one context bucket; the lists are empty before there is any."""

    outcomes: list[float] = []
    """Requests by (drafted, accepted), at `place`."""
    weight: float = 0.0
    """Their sum."""
    expected: list[float] = []
    """Accepted tokens expected of a proposal that reaches 0, 1, 2 ... positions, as believed lately."""
    variance: list[float] = []
    stale: int = 0
    """Groups since then."""


class Positions(NamedTuple):
    """Evidence by position, 1 to K_max."""

    reached: list[float]
    accepted: list[float]
    offered: list[float]


class Evidence(Struct):
    """Everything seen of one segment."""

    k_max: int
    buckets: list[Bucket]
    commanded: list[float]
    """Requests with a draft by the K that was commanded."""
    asked: float = 0.0
    drafted: float = 0.0
    gain: float = 1.0
    step: int = -1
    """The last step in which something was forgotten."""
    acceptance_surprise: Surprise = msgspec.field(default_factory=Surprise)
    coverage_surprise: Surprise = msgspec.field(default_factory=Surprise)
    surprises: int = 0

    def keep(self, fraction: float) -> None:
        """Forget all but this fraction."""
        self.gain /= fraction
        if self.gain > 1e9:
            self._rescale()

    def doubt(self, fraction: float) -> None:
        """Forget all but this fraction because it was contradicted."""
        self.surprises += 1
        self.keep(fraction)
        for bucket in self.buckets:
            bucket.stale = STALE_GROUPS

    def add(self, group: Group, asked: int) -> None:
        """Count what a group verified; `asked`: its requests that the drafter could have served."""
        bucket, gain = self.buckets[group.context_bucket], self.gain
        drafted = group.requests_drafted * gain
        self.asked += asked * gain
        self.drafted += drafted
        self.commanded[group.commanded_k] += drafted
        bucket.weight += drafted
        if not bucket.outcomes:
            bucket.outcomes = [0.0] * place(self.k_max + 1, 0)
        outcomes = bucket.outcomes
        for offered, taken, requests in group.outcomes:
            outcomes[offered * (offered + 1) // 2 + taken] += requests * gain

    def is_contradicted(self, group: Group, asked: int) -> bool:
        """Whether this group, together with the ones just before, contradicts what was believed."""
        bucket, gain = self.buckets[group.context_bucket], self.gain
        if bucket.weight < SETTLED * gain:
            return False
        if not bucket.expected or bucket.stale >= STALE_GROUPS:
            self._expect(bucket)
        bucket.stale += 1
        difference = variance = 0.0
        for offered, taken, requests in group.outcomes:
            reached = taken + 1 if taken < offered else taken
            difference += (taken - bucket.expected[reached]) * requests
            variance += bucket.variance[reached] * requests
        coverage = (self.drafted + gain) / (self.asked + 2.0 * gain)
        by_acceptance = self.acceptance_surprise.observe(difference, variance)
        by_coverage = self.coverage_surprise.observe(
            group.requests_drafted - coverage * asked, asked * coverage * (1.0 - coverage)
        )
        return by_acceptance or by_coverage

    def positions(self, bucket: Bucket) -> Positions:
        """The evidence of a bucket by position."""
        reached, accepted, offered = ([0.0] * self.k_max for _ in range(3))
        if not bucket.outcomes:
            return Positions(reached, accepted, offered)
        for drafted in range(1, self.k_max + 1):
            for taken in range(drafted + 1):
                weight = bucket.outcomes[place(drafted, taken)] / self.gain
                if weight == 0.0:
                    continue
                for j in range(drafted):
                    offered[j] += weight
                for j in range(min(drafted, taken + 1)):
                    reached[j] += weight
                for j in range(taken):
                    accepted[j] += weight
        return Positions(reached, accepted, offered)

    def _expect(self, bucket: Bucket) -> None:
        """Write down what is believed now, for later evidence to be compared with."""
        found = self.positions(bucket)
        bucket.expected, bucket.variance, bucket.stale = [0.0], [0.0], 0
        for reached, accepted in zip(found.reached, found.accepted, strict=True):
            mean = (accepted + 1.0) / (reached + 2.0)
            bucket.expected.append(bucket.expected[-1] + mean)
            bucket.variance.append(bucket.variance[-1] + mean * (1.0 - mean))

    def _rescale(self) -> None:
        shrink = 1.0 / self.gain
        for bucket in self.buckets:
            bucket.outcomes = [value * shrink for value in bucket.outcomes]
            bucket.weight *= shrink
        self.commanded = [value * shrink for value in self.commanded]
        self.asked *= shrink
        self.drafted *= shrink
        self.gain = 1.0


def no_evidence(k_max: int) -> Evidence:
    """Of a segment that was never seen."""
    return Evidence(k_max, [Bucket() for _ in range(CONTEXTS)], [0.0] * (k_max + 1))


def place(drafted: int, accepted: int) -> int:
    """Where an outcome is kept: one row per number of draft tokens.

    >>> [place(d, a) for d in range(3) for a in range(d + 1)]
    [0, 1, 2, 3, 4, 5]
    """
    return drafted * (drafted + 1) // 2 + accepted


def is_sane(group: Group, k_max: int) -> bool:
    """Whether the numbers of a group are possible: a contradiction must not reach an estimator."""
    drafted_requests, k = 0, group.commanded_k
    for drafted, accepted, requests in group.outcomes:
        if not accepted <= drafted <= k:
            return False
        if drafted:
            drafted_requests += requests
    return (
        k <= k_max
        and group.context_bucket < CONTEXTS
        and (drafted_requests == group.requests_drafted <= group.requests)
    )
