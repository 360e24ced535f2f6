"""The acceptance truth behind exact acceptance traces.

Everything is measured by output position, so no K comes into it. A draft is *fresh* where the one before it
is used up (nothing accepted there): its length gives position acceptance, what follows gives agreement. The
score residual of fresh drafts (accepted minus expected, over all positions that were decided) covaries within
a request over a distance d as variance x (request + stretch x exp(-d / stretch tokens)). These estimates are
of first order in the variance, so they are corrected by indirect inference (Gourieroux et al. 1993): the
truth is moved until traces drawn from it give the estimates of the data.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth, segment_table
from steersman_simulator.acceptance.spread import spread_over_distance
from steersman_simulator.world.chance import generator

LEAST_REQUESTS = 20
"""A segment with fewer is part of `unknown` only."""

MOST_TOKENS = 100_000
"""Of more output tokens a part is taken for a fit."""

DISTANCES = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256)

_PRIOR_DRAFTS = 5.0
_ROUNDS = 12
_SEED = 0x7ACE

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


class _Texts(Struct, frozen=True):
    """Requests one behind the other, without output position 0, which no step starts from."""

    offered: _Ints
    accepted: _Ints
    begins: NDArray[np.bool_]
    """At the first position of a request."""
    longest: int
    """Drafts were not looked at beyond."""

    @property
    def lengths(self) -> list[int]:
        places = np.append(np.flatnonzero(self.begins), len(self.begins))
        return [int(length) for length in np.diff(places)]


def fit_traces(records: Iterable[AcceptanceRecord]) -> AcceptanceTruth:
    """Every segment with enough requests, and `unknown` as the mixture of all.

    Raises ValueError where there are fewer than `LEAST_REQUESTS` in all, or no draft was ever offered.
    """
    by_segment: dict[str, list[AcceptanceRecord]] = {}
    everything: list[AcceptanceRecord] = []
    for record in records:
        if record.output_tokens > 1:
            by_segment.setdefault(record.segment, []).append(record)
            everything.append(record)
    if len(everything) < LEAST_REQUESTS:
        raise ValueError(f"acceptance trace: {len(everything)} requests, a fit needs {LEAST_REQUESTS}")
    if not any(any(record.offered) for record in everything):
        raise ValueError("acceptance trace: no draft was ever offered, so position acceptance is unknown")
    fitted = {
        segment: fit_segment(held)
        for segment, held in sorted(by_segment.items())
        if len(held) >= LEAST_REQUESTS and segment != UNKNOWN_SEGMENT
    }
    return AcceptanceTruth({UNKNOWN_SEGMENT: fit_segment(everything)} | fitted)


def fit_segment(records: Sequence[AcceptanceRecord]) -> SegmentTruth:
    """One segment as the mixture of these requests."""
    texts = _texts(records)
    if not texts.offered.any():
        return SegmentTruth(0.0, 0.0, (1.0,), (0.0,))
    wanted = _estimate(texts)
    truth = wanted
    for round_ in range(_ROUNDS):
        found = _estimate(_drawn(truth, texts), wanted.wander_tokens if wanted.wander_sd else 0.0)
        truth = _moved(truth, wanted, found, 1.0 if round_ < _ROUNDS // 2 else 0.5)
    return truth


def _texts(records: Sequence[AcceptanceRecord]) -> _Texts:
    """An even selection of the requests, at most so many tokens."""
    tokens = sum(record.output_tokens for record in records)
    step = max(1, -(-tokens // MOST_TOKENS))
    chosen = records[::step]
    begins = np.concatenate([np.arange(record.output_tokens - 1) == 0 for record in chosen])
    offered = np.concatenate([record.offered[1:] for record in chosen])
    accepted = np.concatenate([record.accepted_by_position[1:] for record in chosen])
    told = any(record.offered_by_position for record in records)
    longest = int((offered if told else accepted).max(initial=1))
    return _Texts(np.minimum(offered, longest).astype(np.int64), accepted.astype(np.int64), begins, longest)


def _drawn(truth: SegmentTruth, like: _Texts) -> _Texts:
    lengths = like.lengths
    tables = [segment_table(truth, n, generator(_SEED, at)) for at, n in enumerate(lengths)]
    return _Texts(
        np.concatenate([table.offered for table in tables]).astype(np.int64).clip(0, like.longest),
        np.concatenate([table.accepted for table in tables]).astype(np.int64).clip(0, like.longest),
        like.begins,
        like.longest,
    )


def _estimate(texts: _Texts, stretch_tokens: float = 0.0) -> SegmentTruth:
    """First-order estimates of everything."""
    has_draft = texts.offered > 0
    before = np.append(0, np.where(has_draft, texts.accepted, 0)[:-1])
    before[texts.begins] = 0
    fresh = has_draft & (before == 0)
    acceptance = _hazards(texts.accepted[fresh], texts.offered[fresh])
    coverage = float(has_draft.mean())
    inside = ~texts.begins[1:]
    joint = float((has_draft[1:] & has_draft[:-1])[inside].mean()) if inside.any() else coverage**2
    spread = coverage * (1.0 - coverage)
    request, stretch, tokens = _effects(texts, fresh, acceptance, stretch_tokens)
    return SegmentTruth(
        coverage=coverage,
        persistence=min(max((joint - coverage**2) / spread, 0.0), 0.999) if spread > 1e-9 else 0.0,
        offered_share=_offered_share(texts.offered[has_draft]),
        acceptance=tuple(acceptance.tolist()),
        effect_sd=request**0.5,
        wander_sd=stretch**0.5,
        wander_tokens=max(tokens, 1.0),
        agreement=_agreement(texts, before, acceptance),
    )


def _hazards(accepted: _Ints, offered: _Ints) -> _Floats:
    """accepted / reached by position, drawn to that of all where few drafts got that far."""
    deepest = max(int(accepted.max(initial=0)), 1)
    reached = np.array([((accepted >= j - 1) & (offered >= j)).sum() for j in range(1, deepest + 1)], float)
    passed = np.array([(accepted >= j).sum() for j in range(1, deepest + 1)], float)
    kept = max(1, int((reached >= _PRIOR_DRAFTS).sum()))
    overall = passed.sum() / max(reached.sum(), 1.0)
    found: _Floats = (passed + _PRIOR_DRAFTS * overall) / (reached + _PRIOR_DRAFTS)
    return found[:kept]


def _agreement(texts: _Texts, before: _Ints, acceptance: _Floats) -> float:
    """P(the rest of the draft before), as a new one also may be that long by chance."""
    follows = (texts.offered >= before) & (before > 0) & (before < texts.longest)
    rest = before[follows] - 1
    places = np.minimum(np.arange(64), len(acceptance) - 1)
    survival = np.append(1.0, np.cumprod(acceptance[places]))
    by_chance = survival[rest] - np.append(survival, 0.0)[rest + 1]
    same = texts.accepted[follows] == rest
    doubt = float((1.0 - by_chance).sum())
    return min(max(float((same - by_chance).sum()) / doubt, 0.0), 1.0) if doubt > 1e-9 else 0.0


def _offered_share(offered: _Ints) -> tuple[float, ...]:
    """P(one more token | this many); the longest that was seen is where drafts were cut, not their end."""
    longest = int(offered.max())
    out = [1.0]
    for length in range(1, longest):
        at_least = int((offered >= length).sum())
        out.append(int((offered > length).sum()) / at_least)
    return tuple(out) if len(set(out)) > 1 else (1.0,)


def _effects(
    texts: _Texts, fresh: NDArray[np.bool_], acceptance: _Floats, stretch_tokens: float
) -> tuple[float, float, float]:
    """Variance of requests and of stretches on the log-odds, and the mean length of a stretch."""
    places = np.minimum(np.arange(64), len(acceptance) - 1)
    hazards = acceptance[places]
    expected = np.append(0.0, np.cumsum(hazards))
    information = np.append(0.0, np.cumsum(hazards * (1.0 - hazards)))
    decided = np.minimum(texts.accepted + 1, texts.offered).clip(0, 64)
    residual = np.where(fresh, texts.accepted - expected[decided], 0.0)
    weight = np.where(fresh, information[decided], 0.0)
    number = np.cumsum(texts.begins)
    covariance, pairs = np.zeros(len(DISTANCES)), np.zeros(len(DISTANCES))
    for row, distance in enumerate(DISTANCES):
        same = number[distance:] == number[:-distance]
        covariance[row] = float((residual[distance:] * residual[:-distance])[same].sum())
        pairs[row] = float((weight[distance:] * weight[:-distance])[same].sum())
    return spread_over_distance(np.array(DISTANCES, float), covariance, pairs, stretch_tokens)


def _moved(truth: SegmentTruth, wanted: SegmentTruth, found: SegmentTruth, pace: float) -> SegmentTruth:
    """The truth, corrected by what a drawn trace shows wrong with it."""
    positions = range(len(truth.acceptance))
    drawn = [found.acceptance[min(j, len(found.acceptance) - 1)] for j in positions]
    acceptance = zip(truth.acceptance, wanted.acceptance, drawn, strict=True)
    return replace(
        truth,
        acceptance=tuple(_share(*of_position, pace) for of_position in acceptance),
        effect_sd=_spread(truth.effect_sd, wanted.effect_sd, found.effect_sd, pace),
        wander_sd=_spread(truth.wander_sd, wanted.wander_sd, found.wander_sd, pace),
        agreement=_share(truth.agreement, wanted.agreement, found.agreement, pace),
    )


def _share(now: float, wanted: float, found: float, pace: float) -> float:
    logit = _logit(now) + pace * (_logit(wanted) - _logit(found))
    return float(1.0 / (1.0 + np.exp(-logit)))


def _logit(share: float) -> float:
    inside = min(max(share, 1e-4), 1.0 - 1e-4)
    return float(np.log(inside / (1.0 - inside)))


def _spread(now: float, wanted: float, found: float, pace: float) -> float:
    return 0.0 if wanted == 0.0 else min(_scale(max(now, 0.05), wanted, max(found, 0.05), pace), 6.0)


def _scale(now: float, wanted: float, found: float, pace: float) -> float:
    return float(now * min(max(wanted / found, 0.5), 2.0) ** pace)
