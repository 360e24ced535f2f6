"""The order of the executor's rules, and that each of them does what it says."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import BARREN_STEPS, Executor, Fallback, Load, table_lookup
from steersman_policies.messages import Fingerprint, Hello, Lease
from steersman_policies.plan import Dwell, Explore, Plan, bucket

FINGERPRINT = Fingerprint("e", "1", "target", "lookup", "1", "ngram", "none", "float32", "cpu", "eager")
DIGEST = fingerprint_digest(FINGERPRINT)
HELLO = Hello(FINGERPRINT, 6, (0, 1, 2, 3, 4, 5, 6), 0, 2, 64, True, True, False, False)
NO_DWELL = Dwell(steps=0, seconds=0.0)
PLAN = Plan(
    plan_id=1,
    policy="p",
    policy_version="1",
    fingerprint=DIGEST,
    mode="steer",
    batch_edges=(2, 8),
    context_edges=(100,),
    proposal_length={"unknown": ((3, 3), (2, 2), (1, 1)), "code": ((6, 5), (4, 3), (2, 1))},
    prefill_proposal_length={"code": ((1, 1), (1, 1), (1, 1))},
    deficit_proposal_length={"code": ((5, 5), (5, 5), (5, 5))},
    fallback=(4, 3, 0),
    dwell=NO_DWELL,
)


def change(plan: Plan, **fields: Any) -> Plan:
    return msgspec.structs.replace(plan, **fields)


def load(step: int = 0, **fields: Any) -> Load:
    given: dict[str, Any] = {
        "decode_requests": {"code": 1, "chat": 1},
        "mean_context_tokens": 50.0,
        "prefill_tokens": 0,
        "waiting": 0,
    }
    return Load(step=step, **{**given, **fields})


def steered(plan: Plan = PLAN, lease_s: float = 1.0) -> Executor:
    """An executor with a plan and a lease that began at second 0."""
    executor = Executor(HELLO, DIGEST)
    assert executor.adopt(plan).applied
    assert executor.renew(Lease(plan_id=plan.plan_id, lease_s=lease_s), 0.0)
    return executor


# --- the order of the rules -------------------------------------------------------------------


def test_every_rule_gives_way_to_those_before_it() -> None:
    """With all reasons present at once, taking them away one by one shows their order."""
    plan = change(
        PLAN, explore=Explore(1, 1.0, (0,)), dwell=Dwell(steps=1_000, seconds=0.0, lower_steps=1_000)
    )
    executor = steered(plan)
    executor.decide(load(), 0.0)
    for _ in range(BARREN_STEPS):
        executor.committed(0, 2)
    executor.paused = True
    busy = load(1, deficit={"code": 1})
    assert executor.decide(busy, 5.0).reason == "guard"
    executor.committed(1, 2)
    assert executor.decide(busy, 5.0).reason == "pause"
    executor.paused = False
    assert executor.decide(busy, 5.0).reason == "lease"
    executor.renew(Lease(plan_id=1), 5.0)
    assert executor.decide(busy, 5.0).reason == "explore"
    executor.adopt(change(plan, explore=None))
    assert executor.decide(busy, 5.0).reason == "dwell"
    executor.adopt(change(plan, explore=None, dwell=NO_DWELL))
    assert executor.decide(busy, 5.0).reason == "deficit"
    assert executor.decide(load(2), 5.0).reason == "table"


def test_guard_pause_and_lease_bypass_dwell() -> None:
    """A K that was changed a moment ago gives way at once."""
    plan = change(PLAN, dwell=Dwell(steps=1_000, seconds=1_000.0, lower_steps=1_000))
    executor = steered(plan)
    assert executor.decide(load(), 0.0).proposal_length == {"code": 6, "chat": 3}
    executor.paused = True
    assert executor.decide(load(1), 0.1).proposal_length == {"code": 2, "chat": 2}
    executor.paused = False
    assert executor.decide(load(2), 1.0).proposal_length == {"code": 4, "chat": 4}
    for _ in range(BARREN_STEPS):
        executor.committed(0, 2)
    assert executor.decide(load(3), 1.0).proposal_length == {"code": 0, "chat": 0}


@pytest.mark.parametrize(
    ("executor", "reason", "plan_id"),
    [
        (Executor(HELLO, DIGEST), "launch", 0),
        (Executor(HELLO, DIGEST, Fallback(DIGEST, (), (5,))), "lease", 0),
    ],
)
def test_without_any_plan(executor: Executor, reason: str, plan_id: int) -> None:
    """The launch setting, or the table that was kept from an earlier boot."""
    decision = executor.decide(load(), 0.0)
    assert (decision.reason, decision.plan_id) == (reason, plan_id)
    assert set(decision.proposal_length.values()) == {5 if reason == "lease" else HELLO.launch_k}


# --- guard ------------------------------------------------------------------------------------


def test_the_guard_counts_barren_steps_in_a_row() -> None:
    """One token starts the count anew, and a step without decode requests counts for nothing."""
    executor = steered()
    for _ in range(BARREN_STEPS - 1):
        executor.committed(0, 2)
    executor.committed(0, 0)
    assert executor.decide(load(), 0.0).reason == "table"
    executor.committed(1, 2)
    executor.committed(0, 2)
    assert executor.decide(load(), 0.0).reason == "table"
    for _ in range(BARREN_STEPS - 1):
        executor.committed(0, 2)
    assert executor.decide(load(), 0.0).reason == "guard"


def test_the_guard_asks_for_the_floor() -> None:
    """Which is not 0 for every engine."""
    executor = Executor(change_hello(k_floor=1), DIGEST)
    for _ in range(BARREN_STEPS):
        executor.committed(0, 1)
    assert set(executor.decide(load(), 0.0).proposal_length.values()) == {1}


def change_hello(**fields: Any) -> Hello:
    return msgspec.structs.replace(HELLO, **fields)


# --- lease ------------------------------------------------------------------------------------


@given(lease_s=st.floats(0.001, 100.0), now_s=st.floats(0.0, 1e6), fraction=st.floats(0.0, 2.0))
def test_no_decision_follows_a_plan_after_its_lease(lease_s: float, now_s: float, fraction: float) -> None:
    """Followed strictly before the end, never at it or after it."""
    executor = steered()
    executor.renew(Lease(plan_id=1, lease_s=lease_s), now_s)
    at_s = now_s + fraction * lease_s
    followed = executor.decide(load(), at_s).plan_id == 1
    assert followed == (at_s < now_s + lease_s)
    assert followed == (executor.lease_left_s(at_s) > 0.0)


def test_the_fallback_follows_the_batch() -> None:
    """It has the plan's batch buckets."""
    executor = steered()
    for requests, k in ((2, 4), (3, 3), (8, 3), (9, 0)):
        lengths = executor.decide(load(decode_requests={"code": requests}), 9.0).proposal_length
        assert lengths == {"code": k}


def test_a_lease_for_another_plan_renews_nothing() -> None:
    """Neither an older nor a newer one, and none where there is no plan."""
    executor = steered()
    assert not executor.renew(Lease(plan_id=2), 0.5)
    assert not executor.renew(Lease(plan_id=0), 0.5)
    assert executor.decide(load(), 1.2).reason == "lease"
    executor.forget()
    assert not executor.renew(Lease(plan_id=1), 0.5)


def test_a_lease_that_comes_back_puts_the_plan_back() -> None:
    """Nothing latches."""
    executor = steered()
    assert executor.decide(load(), 2.0).reason == "lease"
    executor.renew(Lease(plan_id=1), 2.0)
    assert executor.decide(load(1), 2.5).reason == "table"


def test_a_new_sidecar_starts_from_nothing() -> None:
    """After `forget` a lower plan id is no old plan, and needs a lease of its own."""
    executor = steered(change(PLAN, plan_id=50))
    assert not executor.adopt(change(PLAN, plan_id=3)).applied
    executor.forget()
    assert executor.adopt(change(PLAN, plan_id=3)).applied
    assert executor.decide(load(), 0.1).reason == "lease"


# --- adopt ------------------------------------------------------------------------------------


def test_a_refused_plan_leaves_the_last_good_one() -> None:
    """The answer says why; the lease of the good plan can still be renewed."""
    executor = steered()
    ack = executor.adopt(change(PLAN, plan_id=2, fingerprint="other"))
    assert (ack.applied, ack.plan_id) == (False, 2)
    assert "fingerprint" in ack.reason
    assert executor.renew(Lease(plan_id=1), 0.5)
    assert executor.decide(load(), 1.2).plan_id == 1


def test_the_same_plan_again_is_applied_again() -> None:
    """A sidecar that heard no answer repeats itself."""
    executor = steered()
    assert executor.adopt(PLAN).applied
    assert executor.decide(load(), 0.5).plan_id == 1


# --- shadow -----------------------------------------------------------------------------------


def test_shadow_touches_nothing_and_says_what_it_would_do() -> None:
    """The launch K, with the table's K beside it."""
    decision = steered(change(PLAN, mode="shadow")).decide(load(), 0.0)
    assert decision.reason == "shadow"
    assert decision.proposal_length == {"code": 2, "chat": 2}
    assert decision.would_be == {"code": 6, "chat": 3}
    assert (decision.plan_id, decision.explored, decision.probability) == (1, False, 1.0)


def test_a_sidecar_that_dies_in_shadow_leaves_the_launch_setting() -> None:
    """Also where an earlier, steering sidecar left a fallback, and also until its successor speaks."""
    executor = Executor(HELLO, DIGEST, Fallback(DIGEST, (), (5,)))
    executor.adopt(change(PLAN, mode="shadow"))
    executor.renew(Lease(plan_id=1), 0.0)
    assert executor.decide(load(), 9.0).reason == "launch"
    executor.forget()
    assert executor.decide(load(), 9.0).reason == "launch"


# --- dwell ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "now_s", "moved"), [(19, 0.9, False), (20, 0.2, False), (20, 0.25, True), (19, 0.1, False)]
)
def test_both_limits_of_dwell_must_have_passed(step: int, now_s: float, moved: bool) -> None:
    """To raise K: steps and seconds, counted from the last change of that segment."""
    executor = steered(change(PLAN, dwell=Dwell(steps=20, seconds=0.25)))
    assert executor.decide(load(0, mean_context_tokens=500.0), 0.0).proposal_length["code"] == 5
    decision = executor.decide(load(step), now_s)
    assert decision.proposal_length["code"] == (6 if moved else 5)
    assert decision.reason == ("table" if moved else "dwell")
    assert decision.switched == moved


@pytest.mark.parametrize(("step", "moved"), [(1, False), (2, True)])
def test_lowering_waits_for_a_few_steps_only(step: int, moved: bool) -> None:
    """A rising load is answered soon, whatever the seconds; the way back up takes the whole dwell."""
    executor = steered(change(PLAN, dwell=Dwell(steps=20, seconds=9.0, lower_steps=2)))
    executor.decide(load(0), 0.0)
    lowered = executor.decide(load(step, mean_context_tokens=500.0), 0.01)
    assert lowered.proposal_length["code"] == (5 if moved else 6)
    if moved:
        executor.renew(Lease(plan_id=1), 99.0)
        assert executor.decide(load(step + 19), 99.0).reason == "dwell"
        assert executor.decide(load(step + 20), 99.0).proposal_length["code"] == 6


def test_dwell_counts_for_each_segment_alone() -> None:
    """A segment that comes in later may be given any K at once, and then waits in its turn."""
    executor = steered(change(PLAN, dwell=Dwell(steps=10, seconds=0.0, lower_steps=10)))
    executor.decide(load(0, decode_requests={"code": 1}), 0.0)
    both = executor.decide(load(8, mean_context_tokens=500.0), 0.1)
    assert both.proposal_length == {"code": 6, "chat": 3}
    many = {"code": 3, "chat": 3}
    later = executor.decide(load(12, decode_requests=many), 0.1)
    assert later.proposal_length == {"code": 4, "chat": 3}
    assert executor.decide(load(18, decode_requests=many), 0.1).proposal_length == {"code": 4, "chat": 2}


def test_switched_says_whether_a_k_changed() -> None:
    """Not for a segment that is new, and not for one that left."""
    executor = steered()
    assert not executor.decide(load(0), 0.0).switched
    assert not executor.decide(load(1), 0.0).switched
    assert executor.decide(load(2, mean_context_tokens=500.0), 0.0).switched
    assert not executor.decide(load(3, mean_context_tokens=500.0), 0.0).switched
    fewer = load(4, mean_context_tokens=500.0, decode_requests={"code": 1})
    assert not executor.decide(fewer, 0.0).switched
    assert not executor.decide(load(5, mean_context_tokens=500.0, decode_requests={}), 0.0).switched


# --- tables -----------------------------------------------------------------------------------


@given(
    code=st.integers(0, 20),
    other=st.integers(0, 20),
    context=st.floats(0.0, 1e5),
    prefill=st.sampled_from([0, 1]),
    deficit=st.sampled_from([{}, {"code": 1}, {"chat": 2}, {"code": 0}]),
)
def test_the_table_says_what_a_plain_reading_says(
    code: int, other: int, context: float, prefill: int, deficit: dict[str, int]
) -> None:
    """Deficit before prefill before the first table; an unnamed segment reads `unknown`'s row."""
    situation = load(
        decode_requests={"code": code, "chat": other},
        mean_context_tokens=context,
        prefill_tokens=prefill,
        deficit=deficit,
    )
    row, column = bucket((2, 8), code + other), bucket((100,), context)
    table = PLAN.proposal_length["code"]
    if prefill:
        table = PLAN.prefill_proposal_length["code"]
    if deficit.get("code"):
        table = PLAN.deficit_proposal_length["code"]
    lengths, reason = table_lookup(PLAN, situation)
    assert lengths == {"code": table[row][column], "chat": PLAN.proposal_length["unknown"][row][column]}
    assert reason == ("deficit" if deficit.get("code") else "table")


def test_an_engine_that_only_observes_treats_every_plan_as_shadow() -> None:
    """It keeps its own setting, whatever the plan says, also when the lease or its patience ends."""
    executor = steered()
    executor.hello = msgspec.structs.replace(HELLO, observe_only="unknown version")
    decision = executor.decide(load(launch_k=4), 0.5)
    assert (decision.proposal_length, decision.reason) == ({"code": 4, "chat": 4}, "shadow")
    assert decision.would_be == {"code": 6, "chat": 3}
    for _ in range(BARREN_STEPS):
        executor.committed(0, 2)
    decision = executor.decide(load(launch_k=4), 5.0)
    assert (decision.proposal_length, decision.reason) == ({"code": 4, "chat": 4}, "launch")


def test_a_launch_setting_that_depends_on_the_step_is_taken_from_the_load() -> None:
    """An engine with a table of its own has no single launch K."""
    executor = steered()
    executor.paused = True
    assert executor.decide(load(launch_k=5), 0.5).proposal_length == {"code": 5, "chat": 5}
    assert executor.decide(load(), 0.5).proposal_length == {"code": 2, "chat": 2}


def test_the_guard_leaves_a_shadowed_engine_alone() -> None:
    """Shadow touches nothing."""
    executor = steered(change(PLAN, mode="shadow"))
    for _ in range(BARREN_STEPS):
        executor.committed(0, 2)
    assert executor.decide(load(), 0.5).reason == "shadow"
