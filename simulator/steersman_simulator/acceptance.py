"""What the target would accept: the truth about drafts. The controller never sees this object.

Per segment: a two-state chain says whether the drafter has a draft for a request in a step (real
coverage comes in bursts; independent draws flatter every controller), a survival curve says how
many tokens it then offers, position acceptance says how many are accepted, and every request is
easier or harder than its segment by a random effect on the log-odds.

A burst is a stretch of text, so it lasts for tokens and not for steps: the longer the proposals,
the fewer steps it feeds, and the smaller the share of steps with a draft.
"""

import math
from typing import Protocol

from msgspec import Struct

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.chance import Chance, stream


class RequestDrafts(Protocol):
    """The drafts of one request, one step after the other."""

    def offer(self, k: int) -> int:
        """How many tokens the drafter offers when asked for `k`; 0: it has no match."""
        ...

    def accept(self, drafted: int) -> int:
        """How many of `drafted` tokens the target accepts."""
        ...


class Acceptance(Protocol):
    """Starts the drafts of a request."""

    def request(self, segment: str, ordinal: int, seed: int) -> RequestDrafts:
        """Drafts that depend on nothing but the arguments: every arm meets the same request."""
        ...


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

    def request(self, segment: str, ordinal: int, seed: int) -> "ChainDrafts":
        """The drafts of request `ordinal`; raises KeyError where neither segment is known."""
        truth = self.segments.get(segment) or self.segments[UNKNOWN_SEGMENT]
        return ChainDrafts(truth, stream(seed, ordinal))


class ChainDrafts:
    """One request's drafts from a `SegmentTruth`."""

    def __init__(self, truth: SegmentTruth, chance: Chance) -> None:
        self._random = chance.random
        effect = chance.gauss(0.0, truth.effect_sd) if truth.effect_sd > 0.0 else 0.0
        self._acceptance = tuple(shifted(a, effect) for a in truth.acceptance)
        self._offered = truth.offered_share
        self._covered = self._random() < truth.coverage
        self._coverage, self._persistence = truth.coverage, truth.persistence
        # A step without a draft brings one token.
        self._enter = truth.coverage * (1.0 - truth.persistence)
        self._tokens = 1

    def offer(self, k: int) -> int:
        """How many tokens the drafter offers when asked for `k`; 0: it has no match."""
        covered = self._enter
        if self._covered:
            covered = still_covered(self._coverage, self._persistence, self._tokens)
        self._covered, self._tokens = self._random() < covered, 1
        if not self._covered or k == 0:
            return 0
        offered, drafted = self._offered, 1
        while drafted < k and self._random() < offered[min(drafted, len(offered) - 1)]:
            drafted += 1
        return drafted

    def accept(self, drafted: int) -> int:
        """How many of `drafted` tokens the target accepts."""
        acceptance, accepted = self._acceptance, 0
        while accepted < drafted and self._random() < acceptance[min(accepted, len(acceptance) - 1)]:
            accepted += 1
        self._tokens = accepted + 1
        return accepted


class ConstantAcceptance(Struct, frozen=True):
    """Always a full draft, every position accepted with one probability: the textbook case."""

    acceptance: float

    def request(self, segment: str, ordinal: int, seed: int) -> ChainDrafts:
        """Independent of the segment."""
        del segment
        truth = SegmentTruth(1.0, 0.0, (1.0,), (self.acceptance,))
        return ChainDrafts(truth, stream(seed, ordinal))


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
