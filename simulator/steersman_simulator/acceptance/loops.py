"""The loops over output positions that make tables of drafts, compiled.

Numba compiles each at its first call in a process; its cache on disk is not used, because the index of
that cache is a pickle.

All chance is a number by (key, place): every position has its own places, and at each position every
question has its own. So a draw depends on nothing that was drawn before, and two truths are held against
the same numbers.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS, Lengths

Floats = NDArray[np.float64]

COVERED, OFFERED, ACCEPTED, CONTINUED, STRETCH, EFFECT = range(6)
"""What is drawn at a position; a normal number takes two places."""
_PLACES = 8
"""Of each position; the first eight belong to the request."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def uniform(key: np.uint64, place: int) -> float:
    """Number `place` of the splitmix64 stream that starts at `key`, in (0, 1) without its ends."""
    bits = key + np.uint64(place) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    bits ^= bits >> np.uint64(31)
    return (np.float64(np.int64(bits >> np.uint64(12))) + 0.5) * 2.0**-52


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _odds_against(key: np.uint64, place: int, spread: float) -> float:
    """The factor on the odds against acceptance, log-normal (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(uniform(key, place)))
    return math.exp(-spread * radius * math.cos(2.0 * math.pi * uniform(key, place + 1)))


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _survive(shares: Floats, odds_against: float, survival: Floats) -> None:
    """P(at least so many in a row), each share with its odds against moved; the last one goes on."""
    reached = 1.0
    for at in range(survival.shape[0]):
        share = shares[min(at, shares.shape[0] - 1)]
        reached *= share / (share + odds_against * (1.0 - share))
        survival[at] = reached


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _in_a_row(drawn: float, survival: Floats) -> int:
    """How many of the 64 thresholds are above what was drawn, by bisection without branches."""
    length = 0
    for half in (32, 16, 8, 4, 2, 1):
        length += half if survival[length + half - 1] > drawn else 0
    return length + (1 if survival[length] > drawn else 0)


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def fill(
    key: np.uint64,
    coverage: float,
    persistence: float,
    offered_shares: Floats,
    acceptance: Floats,
    effect_sd: float,
    wander_sd: float,
    wander_tokens: float,
    agreement: float,
    keeps_better: float,
    offered: Lengths,
    accepted: Lengths,
) -> None:
    """The table of a request, from the fields of `SegmentTruth`; `offered_shares` begin with position 2.

    The draft of a position may be the rest of the one before, where anything is left of it: to what is
    accepted then, the drafter may prefer a new draft that is accepted further, or take any new one.
    """
    may_offer, may_accept = np.empty(MAX_DRAFT_TOKENS), np.empty(MAX_DRAFT_TOKENS)
    of_request = _odds_against(key, EFFECT, effect_sd)
    _survive(offered_shares, 1.0, may_offer)
    _survive(acceptance, of_request, may_accept)
    stretch_goes_on = math.exp(-1.0 / wander_tokens)
    revised = agreement + (1.0 - agreement) * keeps_better
    enters, stays = coverage * (1.0 - persistence), coverage + (1.0 - coverage) * persistence
    covers, rest = coverage, 0
    for at in range(offered.shape[0]):
        place = _PLACES * (at + 1)
        if wander_sd > 0.0 and (at == 0 or uniform(key, place + STRETCH) >= stretch_goes_on):
            of_stretch = _odds_against(key, place + EFFECT, wander_sd)
            _survive(acceptance, of_request * of_stretch, may_accept)
        longest = new = 0
        covered = uniform(key, place + COVERED) < covers
        covers = stays if covered else enters
        if covered:
            longest = 1 + min(_in_a_row(uniform(key, place + OFFERED), may_offer), MAX_DRAFT_TOKENS - 1)
            new = min(_in_a_row(uniform(key, place + ACCEPTED), may_accept), longest)
        drawn = uniform(key, place + CONTINUED)
        if rest == 0 or longest == 0 or drawn >= revised or (drawn >= agreement and new >= rest):
            length = new
        else:
            length = rest - 1
        offered[at], accepted[at] = longest, min(length, longest)
        rest = length


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def thin(key: np.uint64, share: float, accepted: Lengths, out: Lengths) -> None:
    """Accepted lengths where each token is kept with this probability, up to the first that is not."""
    survival = np.empty(MAX_DRAFT_TOKENS)
    _survive(np.full(1, share), 1.0, survival)
    for at in range(accepted.shape[0]):
        out[at] = min(accepted[at], _in_a_row(uniform(key, at), survival))
