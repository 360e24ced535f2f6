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
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from steersman_policies.units import UNKNOWN_SEGMENT, Fraction
from steersman_simulator.acceptance import loops
from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS, DraftTable, Lengths
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import generator

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
    offered = _offered(truth, drawn)
    if truth.wander_sd > 0.0:
        effects = effect + truth.wander_sd * _stretches(truth.wander_tokens, tokens, chance)
        accepted = _lengths_by_effect(drawn[2], _survival_by_effect(truth.acceptance), effects)
    else:
        odds_against = _odds_against(truth.acceptance) * math.exp(-effect)
        survival = np.asarray(np.cumprod(1.0 / (1.0 + odds_against)), np.float64)
        accepted = _lengths(drawn[2], survival)
    accepted = np.minimum(accepted, offered)
    if truth.agreement > 0.0 or truth.keeps_better > 0.0:
        revised = truth.agreement + (1.0 - truth.agreement) * truth.keeps_better
        kind_drawn = chance.random(tokens)
        kind_drawn[offered == 0] = 1.0
        kinds = (kind_drawn >= truth.agreement).view(np.int8) + (kind_drawn >= revised).view(np.int8)
        accepted = np.minimum(_continued(accepted, kinds), offered)
    return DraftTable(offered, accepted)


def _offered(truth: SegmentTruth, drawn: NDArray[np.float64]) -> Lengths:
    if truth.offered_share == (1.0,):
        offered = np.full(drawn.shape[1], MAX_DRAFT_TOKENS, np.uint8)
    else:
        shares = truth.offered_share[1:] or truth.offered_share
        offered = 1 + _lengths(drawn[1], _survival(shares)[: MAX_DRAFT_TOKENS - 1])
    if truth.coverage < 1.0:
        offered[~covered(truth.coverage, truth.persistence, drawn[0])] = 0
    return offered


_EFFECT_LIMIT = 12.0
_EFFECT_ROWS = 16
"""Effects on the log-odds are told apart up to a sixteenth."""


@lru_cache(maxsize=256)
def _survival(shares: tuple[float, ...]) -> NDArray[np.float64]:
    """[position]: P(at least so many in a row); beyond the last share its value goes on."""
    return np.cumprod(np.array(shares)[_places(shares)])


@lru_cache(maxsize=256)
def _odds_against(acceptance: tuple[float, ...]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        shares = np.array(acceptance)[_places(acceptance)]
        odds: NDArray[np.float64] = (1.0 - shares) / shares
    return odds


@lru_cache(maxsize=64)
def _survival_by_effect(acceptance: tuple[float, ...]) -> NDArray[np.float64]:
    """[effect][position]: P(at least so many are accepted)."""
    effects = np.arange(-_EFFECT_LIMIT, _EFFECT_LIMIT + 1e-9, 1.0 / _EFFECT_ROWS)
    return np.cumprod(1.0 / (1.0 + np.exp(-effects)[:, None] * _odds_against(acceptance)), axis=1)


def _lengths_by_effect(
    drawn: NDArray[np.float64], survival: NDArray[np.float64], effects: NDArray[np.float64]
) -> Lengths:
    """As `_lengths`, each with the survival of its own effect."""
    rows = ((effects.clip(-_EFFECT_LIMIT, _EFFECT_LIMIT) + _EFFECT_LIMIT) * _EFFECT_ROWS + 0.5).astype(
        np.int64
    )
    out = np.empty(len(drawn), np.uint8)
    loops.lengths_by_row(drawn, survival, rows, out)
    return out


def _places(shares: Sequence[float]) -> NDArray[np.intp]:
    return np.minimum(np.arange(MAX_DRAFT_TOKENS), len(shares) - 1)


def _stretches(mean_tokens: float, tokens: int, chance: np.random.Generator) -> NDArray[np.float64]:
    """A standard normal effect per position that holds for stretches of this mean length."""
    begins = chance.random(tokens) >= math.exp(-1.0 / mean_tokens)
    begins[:1] = True
    first = np.maximum.accumulate(np.where(begins, np.arange(tokens), 0))
    return chance.standard_normal(tokens)[first]


def _continued(fresh: Lengths, kinds: NDArray[np.int8]) -> Lengths:
    """As `loops.continued`.

    >>> kinds = np.array([0, 0, 0, 0, 1, 2], np.int8)
    >>> _continued(np.array([2, 7, 5, 1, 3, 0], np.uint8), kinds).tolist()
    [2, 1, 0, 1, 3, 0]
    """
    out = np.empty_like(fresh)
    loops.continued(fresh, kinds, out)
    return out


def covered(coverage: float, persistence: float, drawn: NDArray[np.float64]) -> NDArray[np.bool_]:
    """A two-state chain with this share and lag-1 correlation, from one uniform number each."""
    out = np.empty(len(drawn), np.bool_)
    stay = still_covered(coverage, persistence, 1)
    loops.chain(drawn, coverage, coverage * (1.0 - persistence), stay, out)
    return out


def _lengths(drawn: NDArray[np.float64], survival: NDArray[np.float64]) -> Lengths:
    """As `loops.lengths`."""
    out = np.empty(len(drawn), np.uint8)
    loops.lengths(drawn, survival, out)
    return out


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
