"""The acceptance truth behind recorded steps and requests."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_controller.autocorrelation import Autocorrelation
from steersman_controller.request_spread import is_decided, spread_of
from steersman_policies.messages import Group, RequestReport, StepReport
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth, shifted, still_covered
from steersman_simulator.acceptance.spread import spread_over_distance, within_one

LAGS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Steps apart."""

_PRIOR_DRAFTS = 5.0
"""How many drafts the acceptance over all positions counts for at each of them."""

_FLATTENING = (16.0 * math.sqrt(3.0) / (15.0 * math.pi)) ** 2

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_MASS = _WEIGHTS / _WEIGHTS.sum()
_Nodes: TypeAlias = NDArray[np.float64]


class _Counts(Struct):
    """What the groups of one segment add up to."""

    outcomes: Counter[tuple[int, int]]
    """Requests by (drafted, accepted)."""
    more_possible: Counter[tuple[int, bool]]
    """Drafts by (length, whether K allowed a longer one)."""
    asked: list[tuple[int, int, int]]
    """(step, requests asked that could have had a draft, requests that had one)."""
    drafted: list[tuple[int, int, int, int]]
    """(step, requests, draft tokens accepted, draft tokens reached)."""


def fit_acceptance(steps: Iterable[StepReport], requests: Sequence[RequestReport]) -> AcceptanceTruth:
    """Every segment that drafted, and `unknown` as the mixture of all where it did not.

    Raises ValueError where nothing was drafted: then nothing is known about acceptance.
    """
    counts: dict[str, _Counts] = {}
    pooled = _empty()
    for step in steps:
        for group in step.groups if step.trains else ():
            if group.commanded_k:
                _count(counts.setdefault(group.segment, _empty()), step.step, group)
                _count(pooled, step.step, group)
    if not pooled.outcomes:
        raise ValueError("trace: no drafts in the fitted windows, so position acceptance is unknown")
    unknown = _fit(pooled, requests)
    # A segment that was asked but never drafted is a segment without coverage.
    fitted = {
        segment: _fit(found, [r for r in requests if r.segment == segment])
        if found.outcomes
        else SegmentTruth(0.0, 0.0, (1.0,), unknown.acceptance)
        for segment, found in sorted(counts.items())
    }
    return AcceptanceTruth({UNKNOWN_SEGMENT: unknown} | fitted)


def _empty() -> _Counts:
    return _Counts(Counter(), Counter(), [], [])


def _count(counts: _Counts, step: int, group: Group) -> None:
    for drafted, accepted, number in group.outcomes:
        if drafted:
            counts.outcomes[drafted, accepted] += number
            counts.more_possible[drafted, drafted < group.commanded_k] += number
    _count_decided(counts, step, group)
    asked = group.requests_drafted + group.not_drafted.get("no_match", 0)
    last = counts.asked[-1] if counts.asked else (-1, 0, 0)
    if last[0] == step:
        counts.asked[-1] = (step, last[1] + asked, last[2] + group.requests_drafted)
    elif asked:
        counts.asked.append((step, asked, group.requests_drafted))


def _count_decided(counts: _Counts, step: int, group: Group) -> None:
    accepted = sum(a * n for _, a, n in group.outcomes)
    reached = sum(min(d, a + 1) * n for d, a, n in group.outcomes)
    last = counts.drafted[-1] if counts.drafted else (-1, 0, 0, 0)
    if last[0] == step:
        counts.drafted[-1] = (step, last[1] + group.requests, last[2] + accepted, last[3] + reached)
    else:
        counts.drafted.append((step, group.requests, accepted, reached))


def _fit(counts: _Counts, requests: Sequence[RequestReport]) -> SegmentTruth:
    coverage = sum(covered for _, _, covered in counts.asked) / sum(asked for _, asked, _ in counts.asked)
    marginal = _position_acceptance(counts.outcomes)
    offered = _offered_share(counts.more_possible)
    persistence = _persistence(counts.asked)
    between_sd = _effect_sd(counts.outcomes, marginal, requests)
    effect_sd, wander_sd, wander_tokens = _told_apart(between_sd, counts, requests)
    by_position = _per_token(coverage, persistence, counts.outcomes)
    return SegmentTruth(
        coverage=by_position[0],
        persistence=by_position[1],
        offered_share=offered,
        acceptance=_conditional(marginal, offered, coverage, math.hypot(effect_sd, wander_sd)),
        effect_sd=effect_sd,
        wander_sd=wander_sd,
        wander_tokens=wander_tokens,
    )


def _position_acceptance(outcomes: Counter[tuple[int, int]]) -> tuple[float, ...]:
    """accepted / reached by position, drawn to that of all positions where few drafts got that far.

    The last position also speaks for those beyond it, so it must not hang on three drafts.
    """
    positions = range(1, max(drafted for drafted, _ in outcomes) + 1)
    reached = [sum(n for (d, a), n in outcomes.items() if d >= j and a >= j - 1) for j in positions]
    accepted = [sum(n for (_, a), n in outcomes.items() if a >= j) for j in positions]
    overall = sum(accepted) / sum(reached)
    return tuple(
        (a + _PRIOR_DRAFTS * overall) / (r + _PRIOR_DRAFTS) for a, r in zip(accepted, reached, strict=True)
    )


def _offered_share(drafts: Counter[tuple[int, bool]]) -> tuple[float, ...]:
    """P(one more token | this many, K allows it), by the length so far; a censored length is no end."""
    out = [1.0]
    for length in range(1, max(length for length, _ in drafts)):
        ended = drafts[length, True]
        went_on = sum(n for (other, _), n in drafts.items() if other > length)
        out.append(went_on / (went_on + ended) if went_on + ended else out[-1])
    return tuple(out)


def _persistence(asked: Sequence[tuple[int, int, int]]) -> float:
    """Lag-1 autocorrelation of one request's coverage."""
    found = Autocorrelation()
    for step, requests, covered in asked:
        found.add(step, requests, covered, requests)
    return found.lag_one


def _per_token(
    coverage: float, persistence: float, outcomes: Counter[tuple[int, int]]
) -> tuple[float, float]:
    """Coverage and persistence by output position, from those by step.

    A step without a draft brings one token, one with a draft the recorded numbers. Entering a burst
    is the same in both; for staying in one, the per-token correlation is found by bisection.
    """
    enter, stay = coverage * (1.0 - persistence), still_covered(coverage, persistence, 1)
    if enter <= 0.0:
        return coverage, persistence
    low, high = 0.0, 1.0 - enter
    for _ in range(50):
        middle = 0.5 * (low + high)
        share = enter / (1.0 - middle)
        lasting = sum(still_covered(share, middle, a + 1) * n for (_, a), n in outcomes.items())
        low, high = (middle, high) if lasting < stay * sum(outcomes.values()) else (low, middle)
    found = 0.5 * (low + high)
    return enter / (1.0 - found), found


def _effect_sd(
    outcomes: Counter[tuple[int, int]], marginal: tuple[float, ...], requests: Sequence[RequestReport]
) -> float:
    """Spread of the requests beyond chance on the log-odds of acceptance; 0 where not identifiable."""
    decided = ((r.accepted, r.reached, r.steps_drafted) for r in requests if is_decided(r))
    between_sd = spread_of(decided).between_sd
    slope = _ratio(marginal, outcomes, 0.5) - _ratio(marginal, outcomes, -0.5)
    return min(between_sd / slope, 3.0) if slope > 1e-6 else 0.0


def _told_apart(
    between_sd: float, counts: _Counts, requests: Sequence[RequestReport]
) -> tuple[float, float, float]:
    """Spread of requests, spread of stretches and their mean tokens.

    A step's accepted minus expected draft tokens covary with those of a later step of the same requests. Of
    many steps a request is in, so many are shared; and what differs between whole requests is also made of
    stretches, the less the longer the requests are.
    """
    steps = sum(r.steps for r in requests) / max(len(requests), 1)
    tokens = sum(r.output_tokens for r in requests) / max(len(requests), 1)
    if steps < 2.0:
        return _unflattened(between_sd**2, 0.0) ** 0.5, 0.0, 1.0
    by_step = {step: np.array(row, np.float64) for step, *row in counts.drafted}
    share = sum(row[1] for row in by_step.values()) / sum(row[2] for row in by_step.values())
    rows: list[tuple[float, float, float]] = []
    for lag in LAGS:
        pairs = [(now, by_step[step + lag]) for step, now in by_step.items() if step + lag in by_step]
        rows.append(_covariance(pairs, share, max(0.0, 1.0 - lag / steps)))
    covariance, expected, variance = np.array(rows).T
    distance = np.array(LAGS, np.float64) * tokens / steps
    _, stretch, length = spread_over_distance(distance, covariance, expected, np.sqrt(variance))
    between = _unflattened(between_sd**2, stretch)
    if stretch <= 0.0:
        return math.sqrt(between), 0.0, 1.0
    rest = between - stretch * within_one(tokens, length)
    return math.sqrt(max(rest, 0.0)), math.sqrt(stretch), length


def _unflattened(between: float, stretch: float) -> float:
    """A mixture of effects answers more weakly than each of them (Zeger et al. 1988)."""
    return between * (1.0 + _FLATTENING * (between + stretch))


def _covariance(
    pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], share: float, shared: float
) -> tuple[float, float, float]:
    """Sum of products, what they would be at variance 1, and their variance by chance."""
    if not pairs:
        return 0.0, 0.0, 0.0
    now, later = (np.array(rows) for rows in zip(*pairs, strict=True))
    slope = share * (1.0 - share)
    product = (now[:, 1] - share * now[:, 2]) * (later[:, 1] - share * later[:, 2])
    both = slope**2 * now[:, 2] * later[:, 2]
    requests = np.maximum(now[:, 0], later[:, 0])
    return float(product.sum()), float((both / requests).sum()) * shared, float(both.sum())


def _ratio(acceptance: tuple[float, ...], outcomes: Counter[tuple[int, int]], effect: float) -> float:
    """Expected accepted / reached over drafts of the recorded lengths, for a request with this effect."""
    survival = np.cumprod([1.0, *(shifted(a, effect) for a in acceptance)])
    accepted = [float(survival[1 : drafted + 1].sum()) * n for (drafted, _), n in outcomes.items()]
    reached = [float(survival[:drafted].sum()) * n for (drafted, _), n in outcomes.items()]
    return sum(accepted) / sum(reached)


def _conditional(
    marginal: tuple[float, ...], offered: tuple[float, ...], coverage: float, effect_sd: float
) -> tuple[float, ...]:
    """Acceptance at effect 0 such that the mixture over recorded steps has the `marginal` one.

    A step is more often one of a hard request, which needs more of them for the same output; and a
    later position is more often reached by an easy one. Both weights follow from the answer, so it
    is improved a few times.
    """
    if effect_sd == 0.0:
        return marginal
    weights, out = _MASS, marginal
    for _ in range(4):
        reach, out, tokens = weights, (), np.ones_like(_MASS)
        drafted = coverage
        for target, share in zip(marginal, offered, strict=True):
            base = _solve(target, reach, effect_sd)
            accepted = np.array([shifted(base, effect_sd * node) for node in _NODES])
            reach, out, drafted = reach * accepted, (*out, base), drafted * share
            tokens = tokens + drafted * reach / weights
        weights = _MASS / tokens
    return out


def _solve(target: float, reach: _Nodes, effect_sd: float) -> float:
    """The acceptance at effect 0 whose mean over nodes, weighted by `reach`, is the target."""
    low, high = 0.0, 1.0
    if target in {low, high} or not reach.sum():
        return target
    for _ in range(50):
        middle = 0.5 * (low + high)
        accepted = np.array([shifted(middle, effect_sd * node) for node in _NODES])
        too_high = float((reach * accepted).sum() / reach.sum()) > target
        low, high = (low, middle) if too_high else (middle, high)
    return 0.5 * (low + high)
