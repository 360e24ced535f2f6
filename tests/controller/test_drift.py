"""Change is noticed soon, and bursts are not taken for it."""

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import traffic

from steersman_controller.belief.acceptance import Acceptance
from steersman_controller.belief.arrays import Counts, block_steps
from steersman_controller.belief.belief import Belief
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.decay import Decay
from steersman_controller.belief.evidence import Evidence
from steersman_controller.belief.watch import Watch
from steersman_policies.view import SegmentBelief

Matrix = npt.NDArray[np.float64]

PHI = 0.64
"""Lag-1 autocorrelation of real acceptance at its worst."""


def autocorrelated(rng: np.random.Generator, steps: int, streams: int, phi: float = PHI) -> Matrix:
    """Standard normal levels, each resembling the one before."""
    noise = rng.standard_normal((steps, streams)) * math.sqrt(1.0 - phi * phi)
    level, out = rng.standard_normal(streams), np.empty((steps, streams))
    for step in range(steps):
        level = phi * level + noise[step]
        out[step] = level
    return out


def watched(levels: Matrix) -> int:
    """Alarms of a watch over streams, each compared with the faded mean of what it was before."""
    steps, streams = levels.shape
    watch = Watch(np.full(streams, 2.0))
    seen, weight, reference = np.zeros(streams), np.zeros(streams), np.zeros(streams)
    at = calm = filled = alarms = 0
    while at < steps:
        end = min(steps, at + block_steps(calm) - filled)
        took, alarmed = watch.advance(levels[at:end] - reference, np.ones((end - at, streams), np.bool_))
        for row in levels[at : at + took]:
            weight, seen = 0.995 * weight + 1.0, 0.995 * seen + row
        at, filled, alarms = at + took, filled + took, alarms + len(alarmed)
        watch.forget(alarmed)
        if len(alarmed) or filled == block_steps(calm):
            calm, filled = 0 if len(alarmed) else calm + filled, 0
            reference = np.where(watch.settle(), seen / weight, reference)
    return alarms


STREAMS = {
    "independent": lambda rng, size: rng.standard_normal(size),
    "bursts": lambda rng, size: 1.5 * autocorrelated(rng, *size),
    "bursts under noise": lambda rng, size: autocorrelated(rng, *size) + rng.standard_normal(size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size=size),
    "two kinds of requests": lambda rng, size: np.where(rng.random(size) < 0.3, 2.0, -6.0 / 7.0),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_false_alarms_are_rare(kind: str) -> None:
    """At most one per 100,000 steps of a whole engine: 16 segments, their acceptance and their coverage."""
    assert watched(STREAMS[kind](np.random.default_rng(0), (100_000, 32))) <= 1


def starts(number: int) -> int:
    """Alarms of a belief that sees one steady request at a time, over its first thousand steps."""
    alarms = 0
    for seed in range(number):
        rng, belief = np.random.default_rng(seed), Belief(traffic.HELLO)
        for step in range(1000):
            belief.observe(traffic.report(step, [traffic.group("code", 4, accepted(rng, 0.69, 1, 4))]))
        belief.fold()
        alarms += sum(belief.alarms.values())
    return alarms


def test_a_quiet_start_raises_no_alarm() -> None:
    """With a single request every draft weighs much; none of 20 new beliefs may take that for drift."""
    assert starts(20) == 0


def test_residuals_that_depend_on_their_own_outcome_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided by the variance of what was reached, a refusal at once weighs more than a long acceptance."""
    refer = Acceptance.refer

    def by_reached(self: Acceptance, acceptance: Matrix, coverage: Matrix, seen: Counts) -> None:
        refer(self, acceptance, coverage, seen)
        mean = np.diff(self.state.expected, axis=-1)
        self.state.variance[..., 1:] = np.cumsum(mean * (1.0 - mean), axis=-1)

    look = Acceptance.look

    def reached_as_offered(self: Acceptance, chunk: Columns, *others: npt.NDArray[Any]) -> object:
        return look(self, msgspec.structs.replace(chunk, offered=chunk.reached), *others)

    monkeypatch.setattr(Acceptance, "refer", by_reached)
    monkeypatch.setattr(Acceptance, "look", reached_as_offered)
    assert starts(60) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bursts", "heavy tails", "two kinds of requests"])
def test_false_alarms_of_a_whole_belief_are_rare(kind: str) -> None:
    """The same through reports: at most one alarm of acceptance in 100,000 steps of eight segments."""
    rng, steps, segments = np.random.default_rng(0), 100_000, [f"s{index}" for index in range(8)]
    alphas = 1.0 / (1.0 + np.exp(-(0.7 + 0.5 * STREAMS[kind](rng, (steps, len(segments))))))
    belief = Belief(traffic.HELLO)
    for step in range(steps):
        drawn = rng.geometric(1.0 - np.minimum(alphas[step], 1.0 - 1e-6)[:, None], (len(segments), 8)) - 1
        taken = np.minimum(drawn, 5).tolist()
        groups = [traffic.group(name, 5, found) for name, found in zip(segments, taken, strict=True)]
        belief.observe(traffic.report(step, groups))
    belief.fold()
    assert belief.alarms["acceptance"] + belief.alarms["coverage"] <= 1


def test_a_test_that_trusts_neighbours_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the long-run deviation, bursts alone raise alarm after alarm."""
    settle = Watch.settle

    def independent(self: Watch) -> npt.NDArray[np.bool_]:
        renewed = settle(self)
        self.state.deviation[:] = self.state.alone
        return renewed

    monkeypatch.setattr(Watch, "settle", independent)
    levels = STREAMS["bursts"](np.random.default_rng(0), (20_000, 32))
    assert watched(levels) > 20


def accepted(rng: np.random.Generator, alpha: float, requests: int, k: int = 5) -> list[int]:
    """Tokens accepted by request."""
    first_refusal = rng.geometric(max(1.0 - alpha, 1e-9), requests) - 1
    return [int(n) for n in np.minimum(first_refusal, k)]


class Engine:
    """Steps of one or more segments, bursty in acceptance and in seconds."""

    def __init__(self, seed: int, requests: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.belief = Belief(traffic.HELLO)
        self.requests = requests
        self.level = np.zeros(2)
        self.step = 0

    def run(self, steps: int, alphas: dict[str, float], *, slow: float = 1.0, coverage: float = 1.0) -> None:
        """So many steps of these segments."""
        for _ in range(steps):
            noise = self.rng.standard_normal(2) * math.sqrt(1.0 - PHI * PHI)
            self.level = PHI * self.level + noise
            groups = []
            for segment, alpha in alphas.items():
                odds = math.log(alpha / (1.0 - alpha)) + 0.7 * self.level[0]
                drafted = int(self.rng.binomial(self.requests, coverage))
                taken = accepted(self.rng, 1.0 / (1.0 + math.exp(-odds)), drafted)
                groups.append(traffic.group(segment, 5, taken, undrafted=self.requests - drafted))
            seconds = slow * 0.008 * math.exp(0.05 * self.level[1])
            self.belief.observe(traffic.report(self.step, groups, verify_s=seconds))
            self.step += 1

    def believed(self, segment: str = "code") -> SegmentBelief:
        return next(found for found in self.belief.segments() if found.segment == segment)


def width(belief: SegmentBelief) -> float:
    """Of the interval of the first position."""
    return belief.acceptance_high[0] - belief.acceptance_low[0]


@pytest.mark.parametrize(("before", "after"), [(0.8, 0.5), (0.5, 0.8), (0.9, 0.3), (0.2, 0.9)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_change_of_acceptance_is_recovered_from(before: float, after: float, seed: int) -> None:
    """Within 300 steps the belief is where one that never saw the old traffic would be, and says so."""
    engine, fresh = Engine(seed), Engine(seed + 10)
    engine.run(2000, {"code": before})
    fresh.run(300, {"code": after})
    assert not engine.belief.drifts
    engine.run(300, {"code": after})
    now, new = engine.believed(), fresh.believed()
    assert now.acceptance[0] == pytest.approx(new.acceptance[0], abs=0.08)
    assert engine.belief.alarms["acceptance"] >= 1
    assert {drift.segment for drift in engine.belief.drifts} == {"code"}


def test_without_the_watch_it_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting alone does not pass the test above."""
    monkeypatch.setattr("steersman_controller.belief.watch.CAUTION", 1e9)
    engine = Engine(1)
    engine.run(2000, {"code": 0.9})
    engine.run(300, {"code": 0.3})
    assert engine.believed().acceptance[0] > 0.38 + 0.05


@pytest.mark.parametrize("slow", [1.3, 2.0, 0.7])
def test_a_change_of_cost_is_recovered_from(slow: float) -> None:
    """A machine that becomes slower or faster is predicted within 5 % after 300 steps."""
    engine = Engine(3)
    engine.run(2000, {"code": 0.7})
    assert not engine.belief.alarms
    engine.run(300, {"code": 0.7}, slow=slow)
    assert engine.belief.alarms["cost"] >= 1
    step = {
        "context_tokens": 800,
        "prefill_tokens": 0,
        "depth": 5,
        "requests_drafting": 8,
        "decode_requests": 8,
    }
    predicted = engine.belief.cost.predict(target_tokens=48, **step)
    assert predicted.verify_s == pytest.approx(0.008 * slow, rel=0.05)


def grown(seed: int) -> Belief:
    """A segment of one request, that always has a draft; then it has 48."""
    rng, belief = np.random.default_rng(seed), Belief(traffic.HELLO)
    for step in range(3000):
        accepted = np.minimum(rng.geometric(0.3, 1 if step < 2000 else 48) - 1, 4).tolist()
        belief.observe(traffic.report(step, [traffic.group("unknown", 4, accepted)]))
    return belief


@pytest.mark.parametrize("seed", range(4))
def test_more_of_the_same_requests_are_no_drift(seed: int) -> None:
    """What a reference made of few requests is off by is not a change, however many requests show it."""
    assert {drift.kind for drift in grown(seed).taken_drifts()} <= {"cost"}


def test_a_drafter_that_stops_matching_is_noticed() -> None:
    """Coverage that falls from 0.9 to 0.4 is a drift of its own kind."""
    engine = Engine(4)
    engine.run(1500, {"code": 0.7}, coverage=0.9)
    engine.run(200, {"code": 0.7}, coverage=0.4)
    assert engine.belief.alarms["coverage"] == 1
    assert engine.believed().coverage == pytest.approx(0.4, abs=0.08)


def test_an_alarm_widens_and_touches_its_segment_alone() -> None:
    """The interval of the segment that changed becomes wider; its neighbour is believed as before."""
    engine = Engine(5)
    engine.run(2000, {"code": 0.8, "chat": 0.6})
    before, other = engine.believed(), engine.believed("chat")
    while not engine.belief.alarms:
        engine.run(1, {"code": 0.3, "chat": 0.6})
        engine.belief.fold()
        assert engine.step < 2300
    after, same = engine.believed(), engine.believed("chat")
    assert after.weight < 0.1 * before.weight
    assert (
        after.acceptance_high[0] - after.acceptance_low[0]
        > before.acceptance_high[0] - before.acceptance_low[0]
    )
    assert same.weight == pytest.approx(other.weight, rel=0.05)


def test_autocorrelation_and_dispersion_are_reported() -> None:
    """Bursty traffic shows both; independent drafts show neither."""
    bursty, calm = Engine(6, requests=16), Belief(traffic.HELLO)
    bursty.run(1500, {"code": 0.7})
    rng = np.random.default_rng(1)
    for step in range(1500):
        calm.observe(traffic.report(step, [traffic.group("code", 5, accepted(rng, 0.7, 16))]))
    rho, dispersion = bursty.belief.bursts()["code"]
    assert rho > 0.2
    assert dispersion > 1.6
    rho, dispersion = calm.bursts()["code"]
    assert rho < 0.12
    assert dispersion == pytest.approx(1.0, abs=0.25)


def decaying(steps: int, alpha: float, shares: tuple[int, int], belief: Belief, first: int) -> None:
    """Steps of one segment: requests in two contexts, the longer of which is half as easy to draft for."""
    rng = np.random.default_rng(first)
    for step in range(first, first + steps):
        groups = [
            traffic.group("code", 4, accepted(rng, level, requests, 4), bucket=bucket)
            for bucket, requests, level in ((0, shares[0], alpha), (3, shares[1], alpha / 2.0))
            if requests
        ]
        belief.observe(traffic.report(step, groups))


def test_slow_decay_is_noticed_and_a_shift_of_the_mix_is_not() -> None:
    """A tenth of the accepted length lost over 10,000 steps is; the same loss with longer contexts is not."""
    shifting, sinking = Belief(traffic.HELLO), Belief(traffic.HELLO)
    for belief in (shifting, sinking):
        decaying(2500, 0.8, (6, 2), belief, 0)
    for part in range(20):
        decaying(500, 0.8 - 0.008 * part, (6, 2), sinking, 2500 + 500 * part)
        decaying(500, 0.8, (6 - part // 4, 2 + part // 4), shifting, 2500 + 500 * part)
    for belief in (shifting, sinking):
        belief.fold()
    assert sinking.alarms["decay"] >= 1
    assert shifting.alarms["decay"] == 0


def test_decay_watched_on_all_traffic_would_blame_the_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """With today's contexts instead of the first ones, the shift above is called decay."""
    look = Decay.look

    def with_present_mix(self: Decay, evidence: Evidence, asked_steps: npt.NDArray[np.int64]) -> object:
        reached = evidence.by_context().reached[:, :, 0]
        found = look(self, evidence, asked_steps)
        self.state.mix = reached / np.maximum(reached.sum(axis=1, keepdims=True), 1e-300)
        return found

    monkeypatch.setattr(Decay, "look", with_present_mix)
    shifting = Belief(traffic.HELLO)
    decaying(2500, 0.8, (6, 2), shifting, 0)
    for part in range(20):
        decaying(500, 0.8, (6 - part // 4, 2 + part // 4), shifting, 2500 + 500 * part)
    shifting.fold()
    assert shifting.alarms["decay"] >= 1
