"""The acceptance truth behind exact acceptance traces, by indirect inference (Gourieroux et al. 1993).

The truth is moved until traces drawn from it, walked as an engine walks them, show what the data show:
position acceptance of full-length drafts; how often the draft at a position is more, or less, than the rest
of the one before; and the covariance of accepted lengths at K = 3 over the steps of a request, which is
variance of requests + variance of stretches x exp(-distance / stretch tokens). Each figure hangs mostly on
one number of the truth, so each number is moved by the misfit of its own figure.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.executor import mix
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth, segment_table
from steersman_simulator.acceptance.spread import spread_over_distance

LEAST_REQUESTS = 20
"""A segment with fewer is part of `unknown` only."""

MOST_TOKENS = 250_000
"""Of more output tokens a part is taken for a fit."""

MOST_TOKENS_OF_ONE = 1_024
"""Of one request: a few outputs that repeat themselves up to the engine's limit must not speak for all."""

LAGS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Steps apart; neighbours also share drafts."""

MIDDLE_K = 3

LEAST_REACHED = 100
"""Fewer drafts that got to a position say nothing about it alone."""

MOST_COPIES = 3

_ROUNDS = 12
_SEED = 0x7ACE
_LARGEST_SD = 4.0

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


class _Figures(Struct, frozen=True):
    """What a truth is held against."""

    acceptance: _Floats
    more: float
    """P(a new draft replaces the rest of the one before, if it is longer)."""
    less: float
    """P(a new draft replaces the rest of the one before, if it is shorter)."""
    request: float
    """Share of the variance of accepted length at `MIDDLE_K` that is between requests."""
    stretch: float
    """Share that is between stretches."""
    stretch_tokens: float


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
    wanted = _figures(texts)
    truth = _first_guess(texts, wanted)
    for round_ in range(_ROUNDS):
        found = _figures(_drawn(truth, texts), wanted.stretch_tokens)
        truth = _moved(truth, wanted, found, 0.8 if round_ < _ROUNDS // 2 else 0.4)
    return truth


def _first_guess(texts: _Texts, wanted: _Figures) -> SegmentTruth:
    has_draft = texts.offered > 0
    coverage = float(has_draft.mean())
    inside = ~texts.begins[1:]
    joint = float((has_draft[1:] & has_draft[:-1])[inside].mean()) if inside.any() else coverage**2
    spread = coverage * (1.0 - coverage)
    return SegmentTruth(
        coverage=coverage,
        persistence=min(max((joint - coverage**2) / spread, 0.0), 0.999) if spread > 1e-9 else 0.0,
        offered_share=_offered_share(texts.offered[has_draft]),
        acceptance=tuple(wanted.acceptance.tolist()),
        effect_sd=2.0 * wanted.request**0.5,
        wander_sd=2.0 * wanted.stretch**0.5,
        wander_tokens=max(wanted.stretch_tokens, 1.0),
        agreement=1.0 - min(wanted.more, 1.0),
        keeps_better=_better(wanted.more, wanted.less),
    )


def _better(more: float, less: float) -> float:
    return max(0.0, 1.0 - less / more) if more > 1e-9 else 0.0


def _texts(records: Sequence[AcceptanceRecord]) -> _Texts:
    """An even selection of the requests, at most so many tokens."""
    tokens = sum(min(record.output_tokens, MOST_TOKENS_OF_ONE) for record in records)
    chosen = records[:: max(1, -(-tokens // MOST_TOKENS))]
    taken = slice(1, MOST_TOKENS_OF_ONE)
    offered = np.concatenate([record.offered[taken] for record in chosen])
    accepted = np.concatenate([record.accepted_by_position[taken] for record in chosen])
    lengths = [len(record.accepted_by_position[taken]) for record in chosen]
    begins = np.concatenate([np.arange(length) == 0 for length in lengths])
    told = any(record.offered_by_position for record in records)
    longest = int((offered if told else accepted).max(initial=1))
    return _Texts(np.minimum(offered, longest).astype(np.int64), accepted.astype(np.int64), begins, longest)


def _drawn(truth: SegmentTruth, like: _Texts) -> _Texts:
    # More of them than there are in the data: the chance in what is drawn should be the smaller one.
    copies = min(max(MOST_TOKENS // len(like.begins), 1), MOST_COPIES)
    lengths = like.lengths * copies
    tables = [segment_table(truth, n, mix(_SEED, at)) for at, n in enumerate(lengths)]
    return _Texts(
        np.concatenate([table.offered for table in tables]).astype(np.int64).clip(0, like.longest),
        np.concatenate([table.accepted for table in tables]).astype(np.int64).clip(0, like.longest),
        np.tile(like.begins, copies),
        like.longest,
    )


def _figures(texts: _Texts, stretch_tokens: float = 0.0) -> _Figures:
    longest = _walked(texts, texts.longest)
    more, less = _replaced(texts)
    request, stretch, tokens = _spread_of(texts, stretch_tokens)
    return _Figures(
        acceptance=_hazards(texts.accepted[longest], texts.offered[longest]),
        more=more,
        less=less,
        request=request,
        stretch=stretch,
        stretch_tokens=tokens,
    )


def _replaced(texts: _Texts) -> tuple[float, float]:
    """How often a new draft takes the place of the rest of the one before, against how often it differs."""
    before = np.append(0, texts.accepted[:-1])
    before[texts.begins] = 0
    fresh = (before == 0) & (texts.offered > 0)
    survival = np.append(1.0, np.cumprod(_hazards(texts.accepted[fresh], texts.offered[fresh])))
    follows = (before > 0) & (before < texts.longest) & (texts.offered > 0)
    rest, now = before[follows] - 1, texts.accepted[follows]
    longer = float(survival[np.minimum(rest + 1, len(survival) - 1)].sum())
    shorter = float((1.0 - survival[np.minimum(rest, len(survival) - 1)]).sum())
    return (
        float((now > rest).sum()) / longer if longer > 1e-9 else 0.0,
        float((now < rest).sum()) / shorter if shorter > 1e-9 else 0.0,
    )


def _walked(texts: _Texts, k: int) -> _Ints:
    """Where the steps of all requests at this K begin."""
    places = np.append(np.flatnonzero(texts.begins), len(texts.begins))
    ends = np.repeat(places[1:], np.diff(places))
    jumps: list[int] = np.minimum(np.arange(len(ends)) + np.minimum(texts.accepted, k) + 1, ends).tolist()
    at, steps = 0, []
    while at < len(jumps):
        steps.append(at)
        at = jumps[at]
    return np.array(steps, np.int64)


def _spread_of(texts: _Texts, stretch_tokens: float) -> tuple[float, float, float]:
    steps = _walked(texts, MIDDLE_K)
    number = np.cumsum(texts.begins)[steps]
    kept = np.minimum(texts.accepted[steps], MIDDLE_K)
    off = kept - kept.mean()
    variance = float((off * off).mean())
    if variance <= 1e-12:
        return 0.0, 0.0, 0.0
    covariance, pairs = np.zeros(len(LAGS)), np.zeros(len(LAGS))
    for row, lag in enumerate(LAGS):
        same = number[lag:] == number[:-lag]
        pairs[row] = float(same.sum())
        covariance[row] = float((off[lag:] * off[:-lag])[same].sum()) / variance
    distance = np.array(LAGS, float) * (1.0 + kept.mean())
    return spread_over_distance(distance, covariance, pairs, np.sqrt(pairs), stretch_tokens)


def _hazards(accepted: _Ints, offered: _Ints) -> _Floats:
    """accepted / reached by position; where few drafts got that far, one figure for all that is deeper."""
    deepest = max(int(accepted.max(initial=0)), 1)
    reached = np.array([((accepted >= j - 1) & (offered >= j)).sum() for j in range(1, deepest + 1)], float)
    passed = np.array([(accepted >= j).sum() for j in range(1, deepest + 1)], float)
    apart = max(0, int((reached >= LEAST_REACHED).sum()) - 1)
    reached = np.append(reached[:apart], reached[apart:].sum())
    passed = np.append(passed[:apart], passed[apart:].sum())
    found: _Floats = (passed + 1e-3) / (reached + 2e-3)
    return found


def _offered_share(offered: _Ints) -> tuple[float, ...]:
    """P(one more token | this many); the longest that was seen is where drafts were cut, not their end."""
    longest = int(offered.max())
    out = [1.0]
    for length in range(1, longest):
        at_least = int((offered >= length).sum())
        out.append(int((offered > length).sum()) / at_least)
    return tuple(out) if len(set(out)) > 1 else (1.0,)


def _moved(truth: SegmentTruth, wanted: _Figures, found: _Figures, pace: float) -> SegmentTruth:
    """The truth, corrected by what a drawn trace shows wrong with it."""
    drawn = [found.acceptance[min(j, len(found.acceptance) - 1)] for j in range(len(wanted.acceptance))]
    acceptance = zip(truth.acceptance, wanted.acceptance, drawn, strict=True)
    more = _scaled(1.0 - truth.agreement, wanted.more, found.more, 0.7 * pace)
    less = _scaled((1.0 - truth.agreement) * (1.0 - truth.keeps_better), wanted.less, found.less, 0.7 * pace)
    return replace(
        truth,
        acceptance=tuple(_share(*of_position, pace) for of_position in acceptance),
        effect_sd=_spread(truth.effect_sd, wanted.request, found.request, pace),
        wander_sd=_spread(truth.wander_sd, wanted.stretch, found.stretch, pace),
        agreement=1.0 - min(more, 1.0),
        keeps_better=_better(more, less),
    )


def _share(now: float, wanted: float, found: float, pace: float) -> float:
    logit = _logit(now) + pace * (_logit(wanted) - _logit(found))
    return float(1.0 / (1.0 + np.exp(-logit)))


def _logit(share: float) -> float:
    inside = min(max(share, 1e-4), 1.0 - 1e-4)
    return float(np.log(inside / (1.0 - inside)))


def _spread(now: float, wanted: float, found: float, pace: float) -> float:
    """A standard deviation, moved by the ratio of the variances."""
    if wanted <= 0.0:
        return 0.0
    return min(_scaled(max(now, 0.05), wanted, max(found, 1e-4), 0.5 * pace), _LARGEST_SD)


def _scaled(now: float, wanted: float, found: float, pace: float) -> float:
    ratio = wanted / found if found > 0.0 else 4.0
    return float(now * min(max(ratio, 0.25), 4.0) ** pace)
