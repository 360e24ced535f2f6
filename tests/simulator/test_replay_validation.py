"""Is the truth inside the interval as often as the interval says? Many worlds, each served twice."""

import numpy as np
import pytest
from made_truths import STEPS
from replay_world import NoisySteps, goodput, replayed, served

SEEDS = 20


@pytest.mark.slow
def test_intervals_hold_the_truth_at_their_rate_and_a_naive_estimate_is_biased(
    make_world, write_recording, tmp_path
):
    """Recorded at K = 2 with probes, asked about K = 5, compared with a real run of K = 5 in the same world:
    inside the 95 % interval in at least 17 of 20 seeds (fewer have a chance of 2 %), with a bias below 1 %.
    Planted: accepted / drafted, taken for the acceptance of every position, is more than 5 % off."""
    errors, inside, naive = [], 0, []
    for seed in range(SEEDS):
        parts = {"count": 300, "seed": seed, "truth": NoisySteps(STEPS)}
        recorded = served(make_world, "fixed", {"k": 2, "explore": 0.4}, **parts)
        path = write_recording(tmp_path / f"{seed}.bin", recorded.events)
        other = served(make_world, "fixed", {"k": 5}, **parts)
        policy = replayed(path, ("fixed", {"k": 5}), draws=200)["policies"][0]
        found = policy["against_recorded"]
        true = goodput(other, STEPS) / goodput(recorded, STEPS)
        errors.append(np.log(found["ratio"] / true))
        inside += found["low"] <= true <= found["high"]
        tokens = tokens_per_step(other, "edit", 5)
        ratio = naive_rate(recorded, "edit")
        naive.append((1.0 - ratio**6) / (1.0 - ratio) / tokens - 1.0)
        edit = next(each for each in policy["segments"] if each["segment"] == "edit")
        assert edit["tokens_per_step"] == pytest.approx(tokens, rel=0.04)
    assert inside >= 17
    assert abs(np.mean(errors)) < 0.01
    assert np.mean(np.abs(errors)) < 0.01
    assert abs(np.mean(naive)) > 0.05


def outcomes(outcome, segment, k):
    """(drafted, accepted, count) of the drafts made under one K, and the request-steps."""
    groups = [
        g for s in outcome.steps for g in s.report.groups if g.segment == segment and g.commanded_k == k
    ]
    return [row for group in groups for row in group.outcomes], sum(group.requests for group in groups)


def tokens_per_step(outcome, segment, k):
    rows, requests = outcomes(outcome, segment, k)
    return 1.0 + sum(accepted * count for _, accepted, count in rows) / requests


def naive_rate(outcome, segment):
    """Accepted over drafted tokens of the recorded K: blind to position and to steps without a draft."""
    rows, _ = outcomes(outcome, segment, 2)
    drafted = sum(drafted * count for drafted, _, count in rows)
    return sum(accepted * count for _, accepted, count in rows) / drafted


@pytest.mark.slow
def test_truncation_is_a_real_run_at_the_shorter_k(make_world, write_recording, tmp_path):
    """Recorded at K = 8 without exploration, asked about K = 3: exact but for the places that it visits,
    within the interval and 1 % of a run in the same world."""
    for seed in range(4):
        recorded = served(make_world, "fixed", {"k": 8}, count=300, seed=seed)
        path = write_recording(tmp_path / f"{seed}.bin", recorded.events)
        other = served(make_world, "fixed", {"k": 3}, count=300, seed=seed)
        policy = replayed(path, ("fixed", {"k": 3}), draws=200)["policies"][0]
        true = goodput(other, STEPS) / goodput(recorded, STEPS)
        assert policy["basis"] == "exact"
        assert policy["against_recorded"]["ratio"] == pytest.approx(true, rel=0.01)
        for segment in policy["segments"]:
            tokens = tokens_per_step(other, segment["segment"], 3)
            assert segment["tokens_per_step"] == pytest.approx(tokens, rel=0.04)
