"""Acceptance by segment, with requests that differ, stretches that differ, and drafts that come in bursts.

Per segment: a two-state chain over output positions says where the drafter has a draft (real
coverage comes in bursts; independent draws flatter every controller), a survival curve says how
many tokens it then offers, position acceptance says how many are accepted. On the log-odds of
acceptance every request is easier or harder than its segment, and within a request the text wanders
from easier to harder stretches. A draft made one token later is often the rest of the same draft
(`agreement`): that is why a step after a fully accepted draft is luckier than others, and why the
first draft token is accepted more often at a small K (n-gram on code edits: 0.43 at K = 2, 0.23 at 10).

Bursts, stretches and drafts are pieces of text, so they last for tokens and not for steps: the longer
the proposals, the fewer steps each feeds.
"""

import math
from functools import lru_cache
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from steersman_policies.executor import mix
from steersman_policies.units import UNKNOWN_SEGMENT, Fraction
from steersman_simulator.acceptance import loops
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.workload.arrival import Arrival

_Spread = Annotated[float, Meta(ge=0.0, le=10.0)]


class SegmentTruth(Struct, frozen=True, forbid_unknown_fields=True):
    """One segment. Positions count from 1; beyond the last known one its value goes on."""

    coverage: Fraction
    """Share of the output positions at which the drafter has a draft (of the steps, at K = 0)."""
    persistence: Fraction
    """Correlation of having one between neighbouring positions; 0: independent."""
    offered_share: Annotated[tuple[Fraction, ...], Meta(min_length=1)]
    """P(position j is offered | position j - 1 is, K >= j); the first one is 1."""
    acceptance: Annotated[tuple[Fraction, ...], Meta(min_length=1)]
    """Position acceptance of a new draft of a request whose effect is 0: accepted / reached."""
    effect_sd: _Spread = 0.0
    """Standard deviation of the request's effect on the log-odds of acceptance."""
    wander_sd: _Spread = 0.0
    """Standard deviation of a stretch's effect, which comes on top."""
    wander_tokens: Annotated[float, Meta(ge=1.0, le=1e6)] = 1.0
    """Mean length of a stretch: the effects at two positions correlate by exp(-distance / this)."""
    agreement: Fraction = 0.0
    """P(the draft at a position is the rest of the one before it, if that was right so far)."""
    keeps_better: Fraction = 0.0
    """P(where it is a new one, the longer accepted of both counts): what a model that knows more does."""


class AcceptanceTruth(Struct, frozen=True):
    """All segments; one not seen in the fit behaves like `unknown`."""

    segments: dict[str, SegmentTruth]

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        """The drafts of request `ordinal`; raises KeyError where neither segment is known."""
        del at_s
        truth = self.segments.get(arrival.segment) or self.segments[UNKNOWN_SEGMENT]
        return segment_table(truth, arrival.output_tokens, mix(seed, ordinal))

    def changes(self) -> tuple[float, ...]:
        """It never changes."""
        return ()


class ConstantAcceptance(Struct, frozen=True):
    """Always a full draft, every position accepted with one probability: the textbook case."""

    acceptance: float

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        """Independent of the segment."""
        del at_s
        truth = SegmentTruth(1.0, 0.0, (1.0,), (self.acceptance,))
        return segment_table(truth, arrival.output_tokens, mix(seed, ordinal))

    def changes(self) -> tuple[float, ...]:
        """It never changes."""
        return ()


def segment_table(truth: SegmentTruth, tokens: int, key: int) -> DraftTable:
    """A request's drafts from a `SegmentTruth`; `key`, a 64-bit hash, decides all its chance.

    Every draw is one uniform number held against a threshold, so that two truths that differ a
    little give tables that differ a little.
    """
    table = DraftTable(np.empty(tokens, np.uint8), np.empty(tokens, np.uint8))
    loops.fill(
        np.uint64(key),
        truth.coverage,
        truth.persistence,
        _column(truth.offered_share[1:] or truth.offered_share),
        _column(truth.acceptance),
        truth.effect_sd,
        truth.wander_sd,
        truth.wander_tokens,
        truth.agreement,
        truth.keeps_better,
        *table,
    )
    return table


@lru_cache(maxsize=256)
def _column(shares: tuple[float, ...]) -> NDArray[np.float64]:
    return np.array(shares, np.float64)


def still_covered(coverage: float, persistence: float, tokens: int) -> float:
    """P(covered | covered `tokens` ago) of the two-state chain with this share and lag-1 correlation.

    >>> still_covered(0.5, 0.0, 3), still_covered(0.5, 0.5, 1), still_covered(0.5, 1.0, 9)
    (0.5, 0.75, 1.0)
    """
    return float(coverage + (1.0 - coverage) * persistence**tokens)


def shifted(probability: float, effect: float) -> float:
    """A probability moved by `effect` on the log-odds; 0 and 1 stay where they are.

    >>> shifted(0.5, 0.0), shifted(1.0, -3.0), round(shifted(0.5, 1.0), 3)
    (0.5, 1.0, 0.731)
    """
    if effect == 0.0 or probability <= 0.0 or probability >= 1.0:
        return probability
    return 1.0 / (1.0 + math.exp(-effect) * (1.0 - probability) / probability)


def expected_tokens(acceptance: float, k: int) -> float:
    """Expected tokens of one request-step, bonus included (Leviathan et al. 2023, eq. 1).

    >>> round(expected_tokens(0.5, 2), 3)
    1.75
    """
    return sum(acceptance**i for i in range(k + 1))
