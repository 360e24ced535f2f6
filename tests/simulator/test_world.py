"""The world against closed forms, and the rules that any engine keeps."""

import math
import random
from collections import Counter
from itertools import pairwise

import pytest

from steersman_policies.messages import StepReport
from steersman_simulator.acceptance.segments import ConstantAcceptance, expected_tokens
from steersman_simulator.simulate import arm_summary
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.world import Arm, Change


def reports(outcome, arm=0) -> list[StepReport]:
    return [step.report for step in outcome.steps if step.arm == arm]


def test_without_drafts_a_token_takes_one_step(make_world, arm):
    """At K = 0 and a constant step, tokens per second are 1 / step seconds."""
    world = make_world(truth=ConstantSteps(0.05))
    outcome = world.run([arm([Arrival(0.0, "chat", 10, 101)])])
    (served,) = outcome.served
    assert served.report.tpot_s == pytest.approx(0.05)
    assert served.report.ttft_s == pytest.approx(0.05)
    assert served.report.steps == 100


@pytest.mark.parametrize(("acceptance", "k"), [(0.7, 4), (0.5, 1), (0.9, 8)])
def test_constant_acceptance_brings_the_textbook_number_of_tokens(make_world, arm, acceptance, k):
    """Mean tokens per request-step lie within 3 standard errors of the formula."""
    world = make_world(acceptance=ConstantAcceptance(acceptance))
    arrivals = [Arrival(0.0, "chat", 10, 2000) for _ in range(4)]
    outcome = world.run([arm(arrivals, "fixed", k=k)])
    tokens = [
        accepted + 1
        for step in reports(outcome)
        for group in step.groups
        for drafted, accepted, count in group.outcomes
        for _ in range(count)
        if drafted == k
    ]
    mean = sum(tokens) / len(tokens)
    spread = math.sqrt(sum((n - mean) ** 2 for n in tokens) / len(tokens))
    assert len(tokens) > 500
    assert abs(mean - expected_tokens(acceptance, k)) < 3.0 * spread / math.sqrt(len(tokens))


def test_one_slot_queues_like_m_d_1(make_world, arm):
    """One-token requests at one slot wait load x service / (2 (1 - load)) on average."""
    rng, at_s, arrivals, service_s, load = random.Random(3), 0.0, [], 0.1, 0.6
    for _ in range(4000):
        at_s += rng.expovariate(load / service_s)
        arrivals.append(Arrival(at_s, "chat", 1, 1))
    outcome = make_world(truth=ConstantSteps(service_s), max_batch=1).run([arm(arrivals)])
    mean_s = sum(s.report.queue_s for s in outcome.served) / len(outcome.served)
    assert mean_s == pytest.approx(load * service_s / (2.0 * (1.0 - load)), rel=0.1)


def test_every_request_finishes_once_with_all_its_tokens(recorded):
    """Nothing is lost or invented: requests, output tokens and committed tokens agree."""
    outcome = recorded
    assert outcome.running == ()
    assert sorted(s.report.request for s in outcome.served) == list(range(120))
    for arm_index in range(3):
        served = [s for s in outcome.served if s.arm == arm_index]
        output = sum(s.report.output_tokens for s in served)
        assert output == sum(step.committed_tokens for step in reports(outcome, arm_index))
        assert output == sum(tokens for s in served for _, tokens in s.deliveries)


def test_a_horizon_lists_what_is_still_running(make_world, arm, mixed):
    """Finished and running requests together are all that arrived before the horizon."""
    arrivals = mixed(60, per_s=3.0)
    outcome = make_world().run([arm(arrivals)], horizon_s=10.0)
    arrived = sum(1 for arrival in arrivals if arrival.at_s <= 10.0)
    assert outcome.running
    finished = {s.report.request for s in outcome.served}
    assert finished | set(outcome.running) == set(range(arrived))
    assert not finished & set(outcome.running)


def test_k_chosen_in_a_step_is_verified_in_the_next(recorded):
    """A group's commanded K is the K its segment was given one step before."""
    steps, seen = [step.report for step in recorded.steps], Counter()
    for before, after in pairwise(steps):
        for group in after.groups:
            assert group.commanded_k == before.commanded[group.segment]
            seen[group.commanded_k] += group.requests
    assert seen[0] > 100
    assert seen[4] > 100


def test_a_switch_shows_up_one_step_late(make_world, arm):
    """In the step that is told K = 4 for the first time, what is verified was made under K = 0."""
    world = make_world(acceptance=ConstantAcceptance(0.8))
    changes = (Change(0.0, "off"), Change(2.0, "fixed", {"k": 4}))
    outcome = world.run([Arm("switch", (Arrival(0.0, "chat", 10, 200),), changes)])
    steps = reports(outcome)
    at = next(i for i, step in enumerate(steps) if step.commanded.get("chat") == 4)
    assert steps[at].groups[0].commanded_k == 0
    assert steps[at].drafting_depth == 4
    assert not steps[at].first_after_switch
    assert steps[at + 1].groups[0].commanded_k == 4
    assert steps[at + 1].target_tokens == 5
    assert steps[at + 1].first_after_switch


def test_requests_are_admitted_in_order_within_slots_and_budget(make_world, arm, mixed):
    """Never more than `max_batch` decode, never more than the budget prefills, first come first served."""
    world = make_world(max_batch=4, prefill_budget_tokens=64)
    outcome = world.run([arm(mixed(40, per_s=5.0), "fixed", k=3)])
    steps = reports(outcome)
    assert max(step.decode_requests for step in steps) == 4
    assert max(step.prefill_tokens for step in steps) == 64
    admitted = [
        s.report.arrived_s + s.report.queue_s for s in sorted(outcome.served, key=lambda s: s.report.request)
    ]
    assert admitted == sorted(admitted)
    assert max(s.report.queue_s for s in outcome.served) > 1.0


def test_an_arm_starts_when_the_one_before_has_drained(recorded):
    """Arms do not overlap, and each is served under its own policy."""
    outcome = recorded
    for served in outcome.served:
        start_s, end_s = outcome.spans[served.arm]
        assert start_s <= served.report.arrived_s
        assert served.report.arrived_s + served.report.e2e_s <= end_s
    assert all(k == 0 for step in reports(outcome, 0) for k in step.commanded.values())
    assert all(k == 4 for step in reports(outcome, 1) for k in step.commanded.values())


def test_steering_drafts_where_it_pays_and_only_there(make_world, arm, mixed):
    """Late in a steered run, edits get a long proposal and chats a short one."""
    costly = ConstantSteps(step_s=0.02, per_token_s=0.004, per_drafting_request_s=1e-4)
    outcome = make_world(truth=costly).run([arm(mixed(150, 1.5), "goodput")])
    late = [s for s in reports(outcome)[len(outcome.steps) // 2 :] if s.reason in {"table", "dwell"}]
    mean = {
        segment: sum(s.commanded[segment] for s in late if segment in s.commanded)
        / sum(1 for s in late if segment in s.commanded)
        for segment in ("edit", "chat")
    }
    assert mean["edit"] > 2.0
    assert mean["chat"] < 1.0


def test_a_longer_output_than_known_does_not_limit_drafts(make_world, arm):
    """A request that ends by a stop token is drafted for beyond its end, and gets no token more."""
    world = make_world(acceptance=ConstantAcceptance(1.0))
    arrivals = [Arrival(0.0, "chat", 10, 8, stops=True)]
    outcome = world.run([arm(arrivals, "fixed", k=4)])
    outcomes = [o for step in reports(outcome) for group in step.groups for o in group.outcomes]
    assert {drafted for drafted, _, _ in outcomes} == {4}
    assert outcome.served[0].report.output_tokens == 8


def test_token_gaps_share_the_gap_of_their_delivery(make_world, arm):
    """Five tokens a delivery: ITL per delivery is the step, ITL per token and TPOT a fifth of it."""
    world = make_world(truth=ConstantSteps(0.05), acceptance=ConstantAcceptance(1.0))
    outcome = world.run([arm([Arrival(0.0, "chat", 10, 102)], "fixed", k=4)])
    figures = arm_summary(outcome, 0)
    assert figures["median_itl_ms"] == pytest.approx(50.0)
    assert figures["median_itl_per_token_ms"] == pytest.approx(10.0)
    assert figures["busy_s_per_token"] == pytest.approx(22 * 0.05 / 102)
    assert figures["segments"]["chat"]["position_acceptance"] == [1.0] * 4


def test_a_drafter_that_takes_no_time_is_steered_too(make_world, arm, mixed):
    """Zero seconds of drafting are a valid report; with them, drafting is free and is used."""
    world = make_world(truth=ConstantSteps(0.05), acceptance=ConstantAcceptance(0.8))
    outcome = world.run([arm(mixed(10)), arm(mixed(10), "fixed", k=4), arm(mixed(20), "goodput")])
    assert outcome.running == ()
    assert max(k for step in reports(outcome, 2) for k in step.commanded.values()) == 8
