"""Estimates and intervals on streams that the model did not generate."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import traffic

from steersman_controller.belief import shrinkage
from steersman_controller.belief.accuracy import Accuracy
from steersman_controller.belief.belief import Belief
from steersman_policies.messages import Group
from steersman_policies.view import SegmentBelief

Chance = np.random.Generator
PHI = 0.64


def accepted(chance: Chance, alpha: float, k: int, requests: int) -> list[int]:
    """Tokens accepted of `k` by request."""
    return [int(n) for n in np.minimum(chance.geometric(1.0 - alpha, requests) - 1, k)]


def believed(belief: Belief, segment: str = "code") -> SegmentBelief:
    return next(found for found in belief.segments() if found.segment == segment)


K_CHOICES: dict[str, Callable[[Chance, list[int]], int]] = {
    "random": lambda chance, last: int(chance.integers(1, 9)),
    "longer after success": lambda chance, last: 8 if sum(last) > 1.5 * len(last) else 1,
    "longer after failure": lambda chance, last: 1 if sum(last) > 1.5 * len(last) else 8,
    "one more than accepted": lambda chance, last: min(max(last, default=0) + 1, 8),
}

TRAP = {
    0.50: {1: 0.500, 3: 0.292, 5: 0.194, 7: 0.142},
    0.66: {1: 0.660, 3: 0.461, 5: 0.340, 7: 0.262},
    0.80: {1: 0.800, 3: 0.651, 5: 0.538, 7: 0.452},
}
"""accepted / drafted by acceptance and K."""


@pytest.mark.parametrize("alpha", TRAP)
def test_the_whole_ratio_trap(alpha: float) -> None:
    """At every K the drafts show the ratio of the table, and the belief is alpha at each position reached."""
    chance = np.random.default_rng(7)
    for k, ratio in TRAP[alpha].items():
        belief, drafted, taken = Belief(traffic.HELLO), 0, 0
        for step in range(2500):
            found = accepted(chance, alpha, k, 8)
            drafted, taken = drafted + 8 * k, taken + sum(found)
            belief.observe(traffic.report(step, [traffic.group("code", k, found)]))
        assert taken / drafted == pytest.approx(ratio, abs=0.008)
        assert believed(belief).acceptance[0] == pytest.approx(alpha, abs=0.045)
        assert believed(belief).acceptance[k - 1] == pytest.approx(alpha, abs=0.2)


@pytest.mark.parametrize("choice", K_CHOICES)
def test_the_estimator_is_consistent_however_k_is_chosen(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing forgotten, 10,000 steps give alpha within three standard errors at every position."""
    monkeypatch.setattr("steersman_controller.belief.evidence.KEEP_ASKED", 1.0 - 1e-12)
    chance, belief, last = np.random.default_rng(11), Belief(traffic.HELLO), [0]
    for step in range(10_000):
        k = K_CHOICES[choice](chance, last)
        last = accepted(chance, 0.66, k, 4)
        belief.observe(traffic.report(step, [traffic.group("code", k, last)]))
    reached = belief.acceptance.evidence.by_context().reached[belief.load.rows["code"]].sum(axis=0)
    for found, number in zip(believed(belief).acceptance, reached.tolist(), strict=True):
        if number > 100.0:
            # Shrinkage and the test's own prior are worth a few of hundreds.
            assert found == pytest.approx(0.66, abs=3.0 * math.sqrt(0.66 * 0.34 / number) + 5.0 / number)


def levels(kind: str, chance: Chance, steps: int) -> np.ndarray:
    """A disturbance by step, of mean 0 and deviation about 1."""
    if kind == "two kinds":
        return np.where(chance.random(steps) < 0.5, 1.0, -1.0) + 0.2 * chance.standard_normal(steps)
    if kind == "heavy tails":
        return np.clip(chance.standard_t(3, steps) / math.sqrt(3.0), -6.0, 6.0)
    noise, level, out = chance.standard_normal(steps), 0.0, np.empty(steps)
    for step in range(steps):
        level = PHI * level + math.sqrt(1.0 - PHI * PHI) * noise[step]
        out[step] = level
    return out


KINDS = ["bursts", "heavy tails", "two kinds"]


SEGMENTS = [f"s{index}" for index in range(15)]


def acceptance_coverage(kind: str, runs: int = 16, k: int = 1, requests: int = 12) -> float:
    """How often the 90 % intervals hold the true means, over the positions of `k`: 15 streams at a time, at
    moments far apart."""
    inside = total = 0
    chance = np.random.default_rng(5)

    def alphas(steps: int) -> np.ndarray:
        return np.asarray(1.0 / (1.0 + np.exp(-(0.8 + 0.6 * levels(kind, chance, steps)))))

    survival = np.mean(alphas(200_000)[:, None] ** np.arange(k + 1), axis=0)
    truth = survival[1:] / survival[:-1]
    for _ in range(runs):
        streams = np.stack([alphas(1800) for _ in SEGMENTS], axis=1)
        taken = np.minimum(chance.geometric(1.0 - streams, (requests, *streams.shape)) - 1, k)
        counts = np.stack([(taken == n).sum(axis=0) for n in range(k + 1)], axis=-1)
        belief = Belief(traffic.HELLO)
        for step, row in enumerate(counts.tolist()):
            groups = [
                Group(name, 0, requests, k, requests, tuple((k, n, times) for n, times in enumerate(found)))
                for name, found in zip(SEGMENTS, row, strict=True)
            ]
            belief.observe(traffic.report(step, groups))
            if step in (899, 1349, 1799):
                for one in belief.segments():
                    if one.segment in SEGMENTS:
                        low, high = np.array(one.acceptance_low[:k]), np.array(one.acceptance_high[:k])
                        inside += int(((low <= truth) & (truth <= high)).sum())
                        total += k
    return inside / total


def cost_coverage(kind: str) -> float:
    """How often the 90 % interval of a step's seconds holds them, step by step, before learning from it."""
    chance = np.random.default_rng(6)
    level = levels(kind, chance, 6000)
    belief, inside, total = Belief(traffic.HELLO), 0, 0
    for step in range(6000):
        seconds = 0.008 * math.exp(0.08 * level[step])
        if step > 1000 and step % 3 == 0:
            predicted = belief.cost.predict(
                target_tokens=32,
                context_tokens=1600,
                prefill_tokens=0,
                depth=1,
                requests_drafting=16,
                decode_requests=16,
            )
            low, high = belief.cost.bounds(32)
            actual_s = seconds + 0.001
            inside += low * predicted.step_s <= actual_s <= high * predicted.step_s
            total += 1
        found = accepted(chance, 0.7, 1, 16)
        belief.observe(traffic.report(step, [traffic.group("code", 1, found)], verify_s=seconds))
    return inside / total


def wandering_coverage(kind: str, steps: int = 4500) -> float:
    """The same while batch and K wander, so that no interval of tokens sees more than a part of the steps."""
    chance = np.random.default_rng(8)
    level = levels(kind, chance, steps)
    belief, inside, total, batch = Belief(traffic.HELLO), 0, 0, 8
    for step in range(steps):
        batch = int(np.clip(batch + chance.integers(-1, 2), 2, 16))
        k = int(chance.choice((1, 2, 4)))
        tokens = batch * (k + 1)
        seconds = (0.006 + 0.00008 * max(tokens - 24, 0)) * math.exp(0.08 * level[step])
        found = accepted(chance, 0.7, k, batch)
        report = traffic.report(step, [traffic.group("code", k, found)], verify_s=seconds)
        if step > 600 and step % 5 == 0:
            predicted = belief.cost.predict(
                target_tokens=report.target_tokens,
                context_tokens=report.context_tokens,
                prefill_tokens=0,
                depth=report.drafting_depth,
                requests_drafting=report.requests_drafting,
                decode_requests=report.decode_requests,
            )
            low, high = belief.cost.bounds(report.target_tokens)
            inside += low * predicted.step_s <= report.busy_s <= high * predicted.step_s
            total += 1
        belief.observe(report)
    return inside / total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("k", "requests"),
    [(1, 12), pytest.param(4, 4, marks=pytest.mark.slow), pytest.param(4, 16, marks=pytest.mark.slow)],
)
def test_intervals_of_acceptance_hold_what_they_promise(kind: str, k: int, requests: int) -> None:
    """90 % intervals hold the true mean in 87 to 93 % of the cases, whatever is asked for and of how many."""
    assert 0.87 <= acceptance_coverage(kind, k=k, requests=requests) <= 0.93


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_step_cost_hold_what_they_promise(kind: str) -> None:
    """90 % of the next steps last as long as their intervals say, give or take 3 %."""
    assert 0.87 <= cost_coverage(kind) <= 0.93


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_step_cost_hold_while_the_load_wanders(kind: str) -> None:
    """The same over many sizes of steps, each of which has intervals of its own or shares those of all."""
    assert 0.87 <= wandering_coverage(kind) <= 0.93


def test_intervals_that_take_errors_for_normal_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and deviation alone promise too little where steps are of two kinds."""

    def normal(self: Accuracy, logs: np.ndarray) -> tuple[float, float]:
        if len(logs) < 40:
            return 0.0, math.inf
        middle, half = float(logs.mean()), 1.645 * float(logs.std())
        return math.exp(middle - half), math.exp(middle + half)

    monkeypatch.setattr(Accuracy, "quantiles", normal)
    assert wandering_coverage("two kinds", steps=1500) > 0.94


def test_intervals_from_errors_after_learning_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of each error, as if the step had been known already, is too little."""
    quantiles = Accuracy.quantiles
    monkeypatch.setattr(Accuracy, "quantiles", lambda self, logs: quantiles(self, 0.5 * logs))
    assert wandering_coverage("bursts", steps=1500) < 0.8


def test_intervals_that_take_drafts_for_independent_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the long-run variance of bursts, intervals are far too narrow."""
    monkeypatch.setattr(
        "steersman_controller.belief.watch.Watch.long_run_variance",
        lambda self: np.ones_like(self.state.variance),
    )
    assert acceptance_coverage("bursts", runs=3) < 0.8


def test_intervals_that_blame_each_position_for_the_whole_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bursts of whole proposals put on each of their positions make intervals too wide."""
    monkeypatch.setattr(
        shrinkage, "burstiness_of", lambda reached, accepted, burstiness: np.full(len(reached), burstiness)
    )
    monkeypatch.setattr("steersman_controller.belief.acceptance.intervals", shrinkage.intervals.py_func)
    assert acceptance_coverage("bursts", runs=3, k=4, requests=16) > 0.94


def test_intervals_that_forget_how_much_was_forgotten_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With faded counts taken for numbers of drafts, intervals are too wide where drafts are independent."""
    monkeypatch.setattr(shrinkage, "worth_of", lambda drafts, twice: 1.0)
    monkeypatch.setattr("steersman_controller.belief.acceptance.intervals", shrinkage.intervals.py_func)
    assert acceptance_coverage("two kinds", runs=3) > 0.93
