"""Acceptance by segment, with requests that differ and drafts that come in bursts.

Per segment: a two-state chain over output positions says where the drafter has a draft (real
coverage comes in bursts; independent draws flatter every controller), a survival curve says how
many tokens it then offers, position acceptance says how many are accepted, and every request is
easier or harder than its segment by a random effect on the log-odds.

A burst is a stretch of text, so it lasts for tokens and not for steps: the longer the proposals,
the fewer steps it feeds, and the smaller the share of steps with a draft.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS, DraftTable, Lengths
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import generator


class SegmentTruth(Struct, frozen=True):
    """One segment. Positions count from 1; beyond the last known one its value goes on."""

    coverage: float
    """Share of the output positions at which the drafter has a draft (of the steps, at K = 0)."""
    persistence: float
    """Correlation of having one between neighbouring positions; 0: independent."""
    offered_share: tuple[float, ...]
    """P(position j is offered | position j - 1 is, K >= j); the first one is 1."""
    acceptance: tuple[float, ...]
    """Position acceptance of a request whose effect is 0: accepted / reached."""
    effect_sd: float = 0.0
    """Standard deviation of the request's effect on the log-odds of acceptance."""


class AcceptanceTruth(Struct, frozen=True):
    """All segments; one not seen in the fit behaves like `unknown`."""

    segments: dict[str, SegmentTruth]

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        """The drafts of request `ordinal`; raises KeyError where neither segment is known."""
        del at_s
        truth = self.segments.get(arrival.segment) or self.segments[UNKNOWN_SEGMENT]
        return segment_table(truth, arrival.output_tokens, generator(seed, ordinal))

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
        return segment_table(truth, arrival.output_tokens, generator(seed, ordinal))

    def changes(self) -> tuple[float, ...]:
        """It never changes."""
        return ()


def segment_table(truth: SegmentTruth, tokens: int, chance: np.random.Generator) -> DraftTable:
    """A request's drafts from a `SegmentTruth`.

    Every draw is one uniform number held against a threshold, so that two truths that differ a
    little give tables that differ a little.
    """
    effect = truth.effect_sd * float(chance.standard_normal())
    drawn = chance.random((3, tokens))
    acceptance = [shifted(a, effect) for a in truth.acceptance]
    offered = 1 + _lengths(drawn[1], truth.offered_share[1:] or truth.offered_share, MAX_DRAFT_TOKENS - 1)
    offered[~covered(truth.coverage, truth.persistence, drawn[0])] = 0
    return DraftTable(offered, np.minimum(_lengths(drawn[2], acceptance, MAX_DRAFT_TOKENS), offered))


def covered(coverage: float, persistence: float, drawn: NDArray[np.float64]) -> NDArray[np.bool_]:
    """A two-state chain with this share and lag-1 correlation, from one uniform number each.

    Below P(covered | not before) a position is covered whatever came before, above P(covered |
    covered before) it is not, and between them it is what the last decided one was.
    """
    enter, stay = coverage * (1.0 - persistence), still_covered(coverage, persistence, 1)
    decided = (drawn < enter) | (drawn >= stay)
    decided[:1] = True
    last = np.maximum.accumulate(np.where(decided, np.arange(len(drawn)), 0))
    states = drawn < enter
    states[:1] = drawn[:1] < coverage
    return states[last]


def _lengths(drawn: NDArray[np.float64], shares: Sequence[float], most: int) -> Lengths:
    """How many in a row, at most `most`; `shares` go on at each place, the last one at all later ones."""
    rows = np.minimum(np.arange(most), len(shares) - 1)
    survival = np.cumprod(np.asarray(shares, dtype=np.float64)[rows])
    return np.searchsorted(-survival, -drawn, side="left").astype(np.uint8)


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
