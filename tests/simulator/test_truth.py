"""The truths that are fitted from a recording."""

import random

import numpy as np
import pytest

from steersman_policies.messages import Group, StepReport
from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS
from steersman_simulator.acceptance.fit import fit_acceptance
from steersman_simulator.acceptance.segments import AcceptanceTruth, ConstantAcceptance, SegmentTruth
from steersman_simulator.truths.curves import fit_curves
from steersman_simulator.truths.recorded import StepTruth, fit_steps, held_out_error, relative_error
from steersman_simulator.truths.step_work import VerifyWork
from steersman_simulator.workload.arrival import Arrival, arrivals_of


def step(number: int, rng: random.Random, *, noise: float = 0.0, stalled: bool = False) -> StepReport:
    """A step of a machine with a jump at 16 tokens and a cost of having drafts at all."""
    requests, drafts = rng.randint(1, 12), rng.choice([0, 0, 4])
    prefill, context = rng.choice([0, 0, 0, 64, 128]), requests * rng.randint(50, 400)
    target = requests * (1 + drafts) + prefill
    verify_s = 0.02 + (0.015 if target > 16 else 0.0) + 4e-4 * target + 1e-6 * context
    verify_s += 0.003 if drafts else 0.0
    verify_s *= 1.0 + rng.gauss(0.0, noise)
    if stalled:
        verify_s *= 30.0
    return StepReport(
        step=number,
        started_s=float(number),
        draft_s=(1e-4 * requests if drafts else 0.0),
        verify_s=verify_s,
        other_s=2e-3,
        decode_requests=requests,
        prefill_tokens=prefill,
        target_tokens=target,
        context_tokens=context,
        drafting_depth=drafts,
        requests_drafting=requests if drafts else 0,
        waiting=0,
        kv_used_fraction=0.0,
        committed_tokens=requests,
        plan_id=0,
    )


def machine(count: int, *, seed: int = 0, **kind: float) -> list[StepReport]:
    rng = random.Random(seed)
    return [step(number, rng, **kind) for number in range(count)]


def test_steps_left_out_are_predicted():
    """Held-out steps of a stepped machine are predicted within 3 %, and noise only adds its own size."""
    assert held_out_error(machine(1500)) < 0.03
    assert relative_error(fit_steps(machine(1500, noise=0.1)), machine(500, seed=9)) < 0.04


def test_a_stalled_step_bends_no_curve():
    """With 2 % of the steps thirty times too long, the others are still predicted within 5 %."""
    rng = random.Random(4)
    steps = [step(number, rng, noise=0.02, stalled=rng.random() < 0.02) for number in range(1500)]
    assert relative_error(fit_steps(steps), machine(500, seed=9)) < 0.05


def test_curves_never_fall():
    """More tokens never take less time, whatever the noise."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 100, 300).astype(float)
    curves = fit_curves({"tokens": tokens}, 1.0 + 0.01 * tokens + rng.normal(0, 0.3, 300).clip(-0.9))
    seconds = [curves.seconds(tokens=n) for n in range(200)]
    assert seconds == sorted(seconds)
    assert seconds[150] > seconds[50]


def test_noise_keeps_its_size_and_its_autocorrelation():
    """Sampled residuals have the recorded spread and lag-1 autocorrelation."""
    rng, residuals, level = random.Random(0), [], 0.0
    for _ in range(4000):
        level = 0.7 * level + rng.gauss(0.0, 0.05)
        residuals.append((level, level, level))
    fitted = fit_steps(machine(200))
    sampler = StepTruth(fitted.verify, fitted.draft, fitted.other, tuple(residuals)).sampler(random.Random(1))
    seconds = []
    for _ in range(20000):
        seconds.append(sampler.verify_s(VerifyWork(decode_requests=8, draft_tokens=0, context_tokens=800)))
        sampler.other_s(decode_requests=8, committed_tokens=8)
    relative = np.array(seconds) / np.mean(seconds) - 1.0
    assert np.std(relative) == pytest.approx(np.std([r[0] for r in residuals]), rel=0.1)
    assert np.corrcoef(relative[:-1], relative[1:])[0, 1] == pytest.approx(0.7, abs=0.1)


def test_too_few_steps_are_refused():
    """Nobody gets a truth out of a handful of steps."""
    with pytest.raises(ValueError, match="3 usable steps"):
        fit_steps(machine(3))


TRUE = SegmentTruth(
    coverage=0.6, persistence=0.6, offered_share=(1.0, 0.8, 0.9), acceptance=(0.8, 0.7, 0.75), effect_sd=0.8
)


@pytest.fixture(scope="module")
def fitted(request) -> SegmentTruth:
    """`TRUE`, served at fixed K = 4, and fitted from the reports alone."""
    return fit_served(request.getfixturevalue("serve"), TRUE)


@pytest.fixture(scope="module")
def serve():
    """Steps and requests of an engine that drafts 4 tokens for 8 requests at a time."""

    def run(truth: SegmentTruth, requests: int = 300):
        from steersman_policies.executor import Decision
        from steersman_simulator.world.batch import Batch
        from steersman_simulator.world.requests import Live
        from steersman_simulator.world.shape import Shape

        acceptance = AcceptanceTruth({"unknown": truth})
        batch = Batch(Shape(8, 10_000), lambda live, _: acceptance.table(live.arrival, live.ordinal, 7, 0.0))
        for ordinal in range(requests):
            batch.arrive(Live(ordinal, 0, Arrival(0.0, "chat", 10, 150), 0.0))
        steps, done = [], []
        decision = Decision({"chat": 4}, 0, "table", False)
        while not batch.idle:
            forward = batch.compose(float(batch.totals.steps))
            committed = batch.commit(forward, float(batch.totals.steps))
            drafting = batch.draft({"chat": 4}, forward)
            seconds = (0.0, 1.0, 0.0)
            steps.append(batch.report(forward, committed, decision, drafting, seconds))
            batch.close(forward, committed, False, seconds)
            done += [one.report for one in committed.finished]
        return steps, done

    return run


def fit_served(serve, truth: SegmentTruth) -> SegmentTruth:
    return fit_acceptance(*serve(truth)).segments["chat"]


def test_coverage_and_its_bursts_are_recovered(fitted):
    """Share and lag-1 autocorrelation of having a draft come back."""
    assert fitted.coverage == pytest.approx(TRUE.coverage, abs=0.03)
    assert fitted.persistence == pytest.approx(TRUE.persistence, abs=0.08)


def test_offered_lengths_are_recovered(fitted):
    """A draft cut by K is no evidence that the drafter had no more."""
    assert fitted.offered_share == pytest.approx((1.0, 0.8, 0.9, 0.9), abs=0.04)


def test_requests_differ_as_much_as_they_did(fitted):
    """The spread of the requests and the acceptance at its centre come back."""
    assert fitted.effect_sd == pytest.approx(TRUE.effect_sd, abs=0.2)
    assert fitted.acceptance[:3] == pytest.approx(TRUE.acceptance, abs=0.06)


def test_equal_requests_show_no_spread(serve):
    """Where requests do not differ, hardly any difference is found, and no stretches."""
    same = SegmentTruth(0.6, 0.0, (1.0,), (0.8, 0.7), effect_sd=0.0)
    found = fit_served(serve, same)
    assert found.effect_sd < 0.25
    assert found.wander_sd == 0.0


def test_stretches_are_told_apart_from_requests(serve):
    """Text that wanders within a request is found as such, and the requests are no more different for it."""
    wandering = SegmentTruth(1.0, 0.0, (1.0,), (0.6, 0.6), effect_sd=0.8, wander_sd=1.0, wander_tokens=24.0)
    found = fit_served(serve, wandering)
    assert found.wander_sd == pytest.approx(1.0, abs=0.25)
    assert 12.0 < found.wander_tokens < 48.0
    assert found.effect_sd == pytest.approx(0.8, abs=0.3)
    assert found.acceptance[0] == pytest.approx(0.6, abs=0.05)


def test_a_fitted_segment_brings_the_tokens_of_the_true_one(serve, fitted):
    """Drawing from the fit, tokens per drafted step agree within 3 %."""

    def tokens_per_step(truth: SegmentTruth) -> float:
        steps, _ = serve(truth, 200)
        rows = [group for step in steps for group in step.groups]
        accepted = sum(a * n for group in rows for _, a, n in group.outcomes)
        return 1.0 + accepted / sum(group.requests for group in rows)

    assert tokens_per_step(fitted) == pytest.approx(tokens_per_step(TRUE), rel=0.03)


def test_a_segment_that_was_asked_and_never_drafted_has_no_coverage(serve):
    """Such a segment is known to have nothing, not unknown."""
    steps, done = serve(TRUE, 40)
    silent = Group("poem", 0, 4, 4, 0, (), 0, {"no_match": 4})
    extra = StepReport(
        step=10**6, started_s=0.0, draft_s=0.0, verify_s=1.0, other_s=0.0, decode_requests=4,
        prefill_tokens=0, target_tokens=4, context_tokens=0, drafting_depth=4, requests_drafting=4, waiting=0,
        kv_used_fraction=0.0, committed_tokens=4, plan_id=0, groups=(silent,),
    )  # fmt: skip
    assert fit_acceptance([*steps, extra], done).segments["poem"].coverage == 0.0


def test_without_drafts_nothing_is_known():
    """Steps at K = 0 say nothing about acceptance, and that is said."""
    with pytest.raises(ValueError, match="no drafts"):
        fit_acceptance(machine(30), [])


def test_a_request_meets_the_same_fate_in_every_arm():
    """Drafts depend on the truth, the request and the seed only."""

    def fate(ordinal: int, seed: int) -> list[int]:
        table = AcceptanceTruth({"unknown": TRUE}).table(Arrival(0.0, "chat", 10, 50), ordinal, seed, 0.0)
        return [*table.offered.tolist(), *table.accepted.tolist()]

    assert fate(3, 1) == fate(3, 1)
    assert fate(3, 1) != fate(4, 1)
    assert fate(3, 1) != fate(3, 2)


def test_load_compresses_time(recorded):
    """Twice the load, half the gaps, the same requests."""
    done = [s.report for s in recorded.served if s.arm == 0]
    once, twice = arrivals_of(done), arrivals_of(done, load=2.0)
    assert [a.at_s for a in twice] == pytest.approx([a.at_s / 2.0 for a in once])
    assert [a.prompt_tokens for a in twice] == [a.prompt_tokens for a in once]


def test_certain_acceptance_accepts_everything():
    """At acceptance 1 every draft is accepted, at 0 none."""
    for acceptance in (0.0, 1.0):
        table = ConstantAcceptance(acceptance).table(Arrival(0.0, "chat", 10, 100), 0, 0, 0.0)
        assert set(table.offered.tolist()) == {MAX_DRAFT_TOKENS}
        assert set(table.accepted.tolist()) == {int(MAX_DRAFT_TOKENS * acceptance)}
