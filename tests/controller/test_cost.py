"""The step-cost belief against truths of several shapes."""

import random
from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from steersman_controller.belief.belief import Belief
from steersman_controller.belief.fit import Line, Rows, predictions
from steersman_controller.belief.steps import StepSeconds
from steersman_policies.messages import Fingerprint, Hello, StepReport
from steersman_policies.view import StepCost

FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "model", "none", "float32", "cpu", "eager")
HELLO = Hello(FINGERPRINT, 8, tuple(range(9)), 0, 4, 16, True, True, False, True)

Truth = Callable[[float], float]


def concave(tokens: float) -> float:
    """A CPU: 1 token 75 ms, 5 tokens 160 ms, 80 tokens 490 ms."""
    return float(np.interp(tokens, (1, 5, 20, 80, 200), (0.075, 0.160, 0.300, 0.490, 0.800)))


def hinge(tokens: float) -> float:
    """A GPU: flat while it waits for memory, then linear."""
    return 0.007 + 0.00012 * max(tokens - 60.0, 0.0)


def stairs(tokens: float) -> float:
    """Graph buckets of 16 tokens."""
    return 0.008 + 0.0012 * -(-tokens // 16)


class Model:
    """The cost belief, fed with reports as a controller feeds it."""

    def __init__(self) -> None:
        self.belief = Belief(HELLO)
        self.clock_s = 0.0

    def observe(self, report: StepReport) -> None:
        self.clock_s += report.busy_s
        self.belief.observe(msgspec.structs.replace(report, started_s=self.clock_s))

    def predict(self, **step: float) -> StepSeconds:
        return self.belief.cost.predict(**step)  # type: ignore[arg-type]

    def compile(self, prefill_tokens: float) -> StepCost:
        return self.belief.cost.compile(prefill_tokens)

    @property
    def relative_error(self) -> float:
        return self.belief.cost.relative_error

    @property
    def first_after_switch_s(self) -> float:
        return self.belief.cost.first_after_switch_s


def step(
    truth: Truth, requests: int, k: int, chance: random.Random, noise: float, *, prefill: int = 0
) -> StepReport:
    """A step in which every request verifies `k` draft tokens and is drafted for again."""
    tokens = requests * (k + 1) + prefill
    seconds = truth(tokens) * chance.lognormvariate(0.0, noise)
    return StepReport(
        step=1,
        started_s=1.0,
        draft_s=(0.002 * k + 0.0001 * k * requests) * chance.lognormvariate(0.0, noise) if k else 0.0,
        verify_s=seconds,
        other_s=0.001 + 0.0001 * requests,
        decode_requests=requests,
        prefill_tokens=prefill,
        target_tokens=tokens,
        context_tokens=300 * requests,
        drafting_depth=k,
        requests_drafting=requests if k else 0,
        waiting=0,
        kv_used_fraction=0.0,
        committed_tokens=requests,
        plan_id=1,
    )


def learn(truth: Truth, noise: float, steps: int = 600, seed: int = 1) -> Model:
    """A model after a run whose batch wanders and whose K is 0, 2, 4 or 8."""
    chance, model, requests = random.Random(seed), Model(), 4
    for _ in range(steps):
        requests = min(max(requests + chance.choice((-1, 0, 1)), 1), 16)
        model.observe(step(truth, requests, chance.choice((0, 2, 4, 8)), chance, noise))
    return model


def verify_s(model: Model, requests: int, k: int) -> float:
    """Predicted seconds of the target's forward."""
    predicted = model.predict(
        target_tokens=requests * (k + 1),
        context_tokens=300 * requests,
        prefill_tokens=0,
        depth=k,
        requests_drafting=requests if k else 0,
        decode_requests=requests,
    )
    return predicted.verify_s


@pytest.mark.parametrize(
    ("truth", "noise", "mean_error"),
    [(concave, 0.05, 0.04), (hinge, 0.05, 0.04), (stairs, 0.05, 0.06), (concave, 0.2, 0.09)],
)
def test_it_learns_shapes(truth: Truth, noise: float, mean_error: float) -> None:
    """Predictions at every batch and K, visited (0, 2, 4, 8) or not (1, 3, 6), are near the truth."""
    model = learn(truth, noise)
    errors = [
        abs(verify_s(model, requests, k) / truth(requests * (k + 1)) - 1.0)
        for requests in range(1, 17)
        for k in (0, 1, 2, 3, 4, 6, 8)
    ]
    assert sum(errors) / len(errors) < mean_error
    assert model.relative_error < 1.3 * noise + 0.03


def test_the_first_predictions_are_finite_and_monotone() -> None:
    """Before any report, and after a single one, seconds are positive and rise with the tokens."""
    model = Model()
    assert model.relative_error == 1.0
    for _ in range(2):
        seconds = [verify_s(model, 1, k) for k in range(9)]
        assert all(0.0 < left < right < 10.0 for left, right in pairwise(seconds))
        model.observe(step(concave, 1, 0, random.Random(1), 0.0))
    assert verify_s(model, 1, 0) == pytest.approx(concave(1), rel=0.01)


def test_a_gap_is_interpolated() -> None:
    """Seen at 1 and 128 tokens only, the model is within a factor of 1.5 in between."""
    model, chance = Model(), random.Random(1)
    for _ in range(100):
        model.observe(step(hinge, 1, 0, chance, 0.02))
        model.observe(step(hinge, 16, 7, chance, 0.02))
    for requests, k in ((1, 4), (4, 3), (8, 3), (16, 3)):
        assert 1 / 1.5 < verify_s(model, requests, k) / hinge(requests * (k + 1)) < 1.5


def test_stalls_do_not_wreck_it() -> None:
    """One step in twenty that takes three times as long moves the prediction by less than 8 %."""
    clean, stalled, chance = Model(), Model(), random.Random(1)
    for index in range(600):
        report = step(concave, 4, 4, chance, 0.05)
        clean.observe(report)
        if index % 20 == 10:
            report = msgspec.structs.replace(report, verify_s=3.0 * report.verify_s)
        stalled.observe(report)
    assert verify_s(stalled, 4, 4) == pytest.approx(verify_s(clean, 4, 4), rel=0.08)


def test_a_lasting_change_gets_through() -> None:
    """A machine that becomes twice as slow is followed within 300 steps."""
    model, chance = learn(concave, 0.05), random.Random(2)
    for _ in range(300):
        model.observe(step(lambda n: 2.0 * concave(n), 4, 4, chance, 0.05))
    assert verify_s(model, 4, 4) == pytest.approx(2.0 * concave(20), rel=0.1)


def test_what_was_learned_elsewhere_stays() -> None:
    """A thousand steps at batch 16 leave the prediction at batch 1 within 5 %."""
    model, chance = Model(), random.Random(1)
    for _ in range(200):
        model.observe(step(concave, 1, 0, chance, 0.02))
    before = verify_s(model, 1, 0)
    for _ in range(1000):
        model.observe(step(concave, 16, 4, chance, 0.02))
    assert verify_s(model, 1, 0) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize(
    "special",
    [
        {"warm_up": True},
        {"graph_capture": True},
        {"preemption": True},
        {"committed_tokens": 0},
        {"first_after_switch": True},
    ],
)
def test_special_steps_teach_nothing(special: dict[str, object]) -> None:
    """Warm-up, capture, preemption, a stalled step and the first after a switch leave the tables alone."""
    model = learn(concave, 0.05, steps=100)
    before = model.compile(0.0)
    for _ in range(300):
        report = step(lambda _: 9.0, 4, 4, random.Random(1), 0.0)
        model.observe(msgspec.structs.replace(report, **special))
    if "first_after_switch" not in special:
        assert model.compile(0.0) == before
    # What is learned of acceptance ends blocks, which weighs the same evidence a little differently.
    assert model.compile(0.0).verify_at(20, 1200) == pytest.approx(before.verify_at(20, 1200), rel=1e-3)
    assert model.compile(0.0).first_after_switch_s == max(model.first_after_switch_s, 0.0)
    assert (model.first_after_switch_s > 1.0) == ("first_after_switch" in special)


@pytest.mark.parametrize("planted_s", [0.0, 0.004])
def test_what_a_switch_costs_is_found(planted_s: float) -> None:
    """Steps that follow a switch and last 4 ms longer say so to planners, and change nothing else."""
    model, chance = learn(hinge, 0.02, steps=200), random.Random(3)
    for index in range(400):
        report = step(hinge, 4, chance.choice((0, 4)), chance, 0.02)
        if index % 4 == 0:
            report = msgspec.structs.replace(
                report, verify_s=report.verify_s + planted_s, first_after_switch=True
            )
        model.observe(report)
    assert model.compile(0.0).first_after_switch_s == pytest.approx(planted_s, abs=0.0004)
    assert verify_s(model, 4, 4) == pytest.approx(hinge(20), rel=0.05)


def test_drafting_costs_by_depth_and_requests() -> None:
    """Draft seconds are recovered within 10 % and are 0 where nobody is asked."""
    cost = learn(concave, 0.05).compile(0.0)
    for depth, requests in ((2, 2), (4, 8), (8, 16)):
        truth = 0.002 * depth + 0.0001 * depth * requests
        assert cost.draft_at(depth, requests) == pytest.approx(truth, rel=0.1)
    assert cost.draft_s[0] == (0.0, 0.0)


def test_prefill_is_told_apart() -> None:
    """A prefill token that costs a fifth of a decode token does not change what decode costs."""
    model, chance = Model(), random.Random(1)
    for index in range(800):
        requests, k, prefill = chance.randint(1, 16), chance.choice((0, 4)), 200 if index % 4 == 0 else 0
        report = step(concave, requests, k, chance, 0.02, prefill=prefill)
        seconds = concave(requests * (k + 1)) + 0.0005 * prefill
        model.observe(msgspec.structs.replace(report, verify_s=seconds))
    cost = model.compile(200.0)
    plain, with_prefill = cost.verify_at(40, 2400), cost.verify_at(240, 2400, 200.0)
    assert plain + cost.other_at(8) == pytest.approx(concave(40) + 0.0018, rel=0.1)
    assert with_prefill + cost.other_at(8) == pytest.approx(concave(40) + 0.1 + 0.0018, rel=0.1)


def test_tables_agree_with_the_model() -> None:
    """The compiled tables say what the model says, also beyond the largest knot."""
    model = learn(concave, 0.05)
    cost = model.compile(0.0)
    for requests, k in ((1, 0), (3, 2), (16, 8)):
        context = cost.context_grid_tokens[1]
        predicted = model.predict(
            target_tokens=requests * (k + 1),
            context_tokens=context,
            prefill_tokens=0,
            depth=k,
            requests_drafting=requests if k else 0,
            decode_requests=requests,
        )
        table_s = cost.verify_at(requests * (k + 1), context) + cost.other_at(requests)
        table_s += cost.draft_at(k, requests)
        assert table_s == pytest.approx(predicted.step_s, rel=1e-9)
    assert cost.verify_at(4000, 0) > cost.verify_at(1024, 0)


def test_coefficients_are_never_negative() -> None:
    """Data that fall with a feature give it the coefficient 0."""
    line, chance = Line(prior=(0.0, 0.0), strength=(1e-3, 1e-3)), random.Random(1)
    x = np.array([chance.random() for _ in range(200)])
    rows = np.column_stack([np.ones(200), x])
    block = Rows(np.zeros(200, np.int64), rows, np.zeros(200), 2.0 - x)
    found = line.solved(line.gram(block))
    assert found[1] == 0.0
    assert predictions(found, np.array([1.0, 0.5])) == pytest.approx(1.5, rel=0.15)
