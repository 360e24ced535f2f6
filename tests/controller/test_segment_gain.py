"""What sorting requests is worth: the K of each segment, and the tokens per second that it brings."""

from itertools import product

import numpy as np
import pytest

from steersman_controller.train.segment_gain import Mix, Step, goodput_gains
from steersman_policies.view import StepCost


def step(
    verify_s: tuple[float, ...] = (0.010, 0.011, 0.020, 0.10), tokens: tuple[int, ...] = (1, 32, 64, 400)
) -> Step:
    """A forward that is flat at first and steep later; drafting takes its time by depth."""
    drafts = tuple((0.0004 * k, 0.0008 * k) for k in range(6))
    return Step(StepCost(tokens, (0,), (0,), ((verify_s,),), (1, 64), drafts, (0.001, 0.002), 0.0), (8,), 0)


def mix(*segments: tuple[float, float, float]) -> Mix:
    """Of (share, coverage, acceptance)."""
    share, coverage, acceptance = np.array(segments).T
    return Mix(share, coverage, acceptance)


@pytest.mark.parametrize("batch", [1, 4, 8, 16, 32, 64])
def test_each_segment_gets_the_best_k(batch: int) -> None:
    """As good as the best of all combinations, where segments differ in share, coverage and acceptance."""
    one, found = step(), mix((0.5, 1.0, 0.9), (0.3, 0.6, 0.5), (0.2, 1.0, 0.2))
    best = max(one._tokens_per_s(batch, found, np.array(k)) for k in product(range(6), repeat=3))
    assert one._tokens_per_s(batch, found, one._best(batch, found)) == pytest.approx(best, rel=0.005)
    assert one._best_common(batch, found) in range(6)


def test_tokens_and_seconds_are_those_of_the_formula() -> None:
    """1 + coverage x (a + a^2) tokens a request, over verify(batch (1 + coverage K)) + draft(K) + other."""
    flat = step(verify_s=(0.010, 0.010), tokens=(1, 400))
    found = flat._tokens_per_s(8, mix((1.0, 0.5, 0.8)), np.array([2]))
    requests = (8 - 1) / 63
    seconds = 0.010 + 2 * (0.0004 + 0.0004 * requests) + 0.001 + 0.001 * requests
    assert found == pytest.approx(8 * (1.0 + 0.5 * (0.8 + 0.64)) / seconds)


def test_a_cliff_is_crossed_by_some_batches() -> None:
    """Where drafts come by chance, a jump of the cost weighs by how often it is crossed."""
    cliff = step(verify_s=(0.01, 0.01, 0.03, 0.03), tokens=(1, 20, 21, 400))
    below, at, above = (
        cliff._verify_s(8, mix((1.0, coverage, 0.5)), np.array([4])) for coverage in (0.3, 0.39, 0.6)
    )
    assert 0.010 <= below < at < above <= 0.030
    assert 0.014 < at < 0.026
    # A drafter that always drafts leaves nothing to chance.
    assert cliff._verify_s(8, mix((1.0, 1.0, 0.5)), np.array([1])) == pytest.approx(0.010)


def test_a_gain_needs_segments_that_differ() -> None:
    """Equal segments get equal K, and no gain is reported."""
    one, same = step(), mix((0.5, 1.0, 0.7), (0.5, 1.0, 0.7))
    k = one._best(16, same)
    assert k[0] == k[1]
    assert goodput_gains({"one": [], "tags": []}) == {"tags": ()}
