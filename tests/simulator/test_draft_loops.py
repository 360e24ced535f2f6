"""The compiled tables of drafts against the same in plain Python, and their chance."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from steersman_policies.executor import mix
from steersman_simulator.acceptance import loops
from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS, DraftTable
from steersman_simulator.acceptance.schedule import thinned
from steersman_simulator.acceptance.segments import SegmentTruth, segment_table, shifted

MASK = (1 << 64) - 1
shares = st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])
spreads = st.sampled_from([0.0, 0.5, 2.0])
truths = st.builds(
    SegmentTruth,
    coverage=shares,
    persistence=shares,
    offered_share=st.lists(shares, min_size=1, max_size=3).map(tuple),
    acceptance=st.lists(shares, min_size=1, max_size=3).map(tuple),
    effect_sd=spreads,
    wander_sd=spreads,
    wander_tokens=st.sampled_from([1.0, 3.0, 50.0]),
    agreement=shares,
    keeps_better=shares,
)


def uniform(key: int, place: int) -> float:
    bits = (key + place * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return (((bits ^ (bits >> 31)) >> 12) + 0.5) / 2**52


def normal(key: int, place: int) -> float:
    return math.sqrt(-2.0 * math.log(uniform(key, place))) * math.cos(2.0 * math.pi * uniform(key, place + 1))


def in_a_row(drawn: float, shares: tuple[float, ...], effect: float, most: int) -> int:
    reached, length = 1.0, 0
    while length < most:
        reached *= shifted(shares[min(length, len(shares) - 1)], effect)
        if drawn >= reached:
            break
        length += 1
    return length


def plain_table(truth: SegmentTruth, tokens: int, key: int) -> list[tuple[int, int]]:
    """(offered, accepted) by position, as the fields of `SegmentTruth` tell it."""
    effect, stretch, covered, length = truth.effect_sd * normal(key, loops.EFFECT), 0.0, None, 0
    out = []
    for at in range(tokens):
        place = 8 * (at + 1)
        if at == 0 or uniform(key, place + loops.STRETCH) >= math.exp(-1.0 / truth.wander_tokens):
            stretch = truth.wander_sd * normal(key, place + loops.EFFECT)
        share = truth.coverage
        if covered is not None:
            share += truth.persistence * (covered - share)
        covered = uniform(key, place + loops.COVERED) < share
        offered = accepted = 0
        if covered:
            later = truth.offered_share[1:] or truth.offered_share
            offered = 1 + in_a_row(uniform(key, place + loops.OFFERED), later, 0.0, MAX_DRAFT_TOKENS - 1)
            drawn = uniform(key, place + loops.ACCEPTED)
            accepted = in_a_row(drawn, truth.acceptance, effect + stretch, offered)
        kind = uniform(key, place + loops.CONTINUED)
        if length == 0 or not covered:
            length = accepted
        elif kind < truth.agreement:
            length -= 1
        elif kind < truth.agreement + (1.0 - truth.agreement) * truth.keeps_better:
            length = max(length - 1, accepted)
        else:
            length = accepted
        out.append((offered, min(length, offered)))
    return out


@settings(max_examples=200, deadline=None)
@given(truth=truths, tokens=st.integers(0, 40), key=st.integers(0, MASK))
def test_a_table_is_what_its_truth_says(truth: SegmentTruth, tokens: int, key: int):
    """At every position, for every truth and key, as a loop in plain Python has it."""
    table = segment_table(truth, tokens, key)
    assert list(zip(*(column.tolist() for column in table), strict=True)) == plain_table(truth, tokens, key)


@settings(max_examples=50, deadline=None)
@given(factor=shares, key=st.integers(0, MASK), accepted=st.lists(st.integers(0, 64), max_size=30))
def test_thinning_is_what_its_factor_says(factor: float, key: int, accepted: list[int]):
    """Each accepted token is kept by one draw of its position."""
    lengths = np.array(accepted, np.uint8)
    found = thinned(DraftTable(lengths, lengths), factor, key)
    wanted = [in_a_row(uniform(key, at), (factor,), 0.0, most) for at, most in enumerate(accepted)]
    assert found.accepted.tolist() == wanted
    assert found.offered is lengths


def test_numbers_are_uniform_and_know_nothing_of_their_neighbours():
    """Over places of a key and over the keys of a run: mean, variance, and products with what is next."""
    by_place = [[loops.uniform(np.uint64(mix(1, key)), place) for place in range(300)] for key in range(300)]
    drawn = (np.array(by_place) - 0.5) * math.sqrt(12.0)
    least = 4.0 / 300.0  # four standard errors of a mean over all of them
    assert abs(drawn.mean()) < least
    assert abs((drawn**2).mean() - 1.0) < least
    for later in (drawn[:, 1:], drawn[:, 2:], drawn[:, 8:]):
        assert abs((drawn[:, : later.shape[1]] * later).mean()) < least
    assert abs((drawn[1:] * drawn[:-1]).mean()) < least


@pytest.mark.parametrize("wander_sd", [0.0, 1.0])
def test_a_little_better_truth_accepts_a_little_more(wander_sd: float):
    """No position gets less, and few get more; the same where stretches are told in addition or not."""
    truth = SegmentTruth(0.8, 0.5, (1.0, 0.9), (0.6,), effect_sd=0.5, wander_sd=wander_sd, wander_tokens=9.0)
    less, more = (
        segment_table(replace(truth, acceptance=(share,)), 4000, 11).accepted for share in (0.6, 0.61)
    )
    assert (less <= more).all()
    assert 0.0 < (less != more).mean() < 0.05


def test_coverage_comes_in_bursts_of_its_correlation():
    """Share and lag-1 correlation of the chain, and the mean of what is offered in it."""
    truth = SegmentTruth(0.6, 0.5, (1.0, 0.75), (0.0,))
    offered = segment_table(truth, 200_000, 3).offered
    has = (offered > 0) - 0.6
    assert has.mean() == pytest.approx(0.0, abs=0.01)
    assert (has[1:] * has[:-1]).mean() / (has**2).mean() == pytest.approx(0.5, abs=0.02)
    assert offered[offered > 0].mean() == pytest.approx(4.0, abs=0.06)
    assert offered.max() <= MAX_DRAFT_TOKENS
