"""Exploration is logged with its true probability, and any plan under any load gives a sane decision."""

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import Decision, Executor, Load, _LookedUp, mix
from steersman_policies.messages import Fingerprint, Hello, Lease
from steersman_policies.plan import Dwell, Explore, Plan

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


def outcomes(
    plan: Plan, situation: Load, steps: int, per_request_k: bool = True
) -> tuple[Counter[Any], dict[Any, set[float]]]:
    """How often each decision comes, and the probabilities that were logged for it."""
    seen: Counter[Any] = Counter()
    logged: dict[Any, set[float]] = {}
    executor = steered(plan, lease_s=1e9)
    executor.hello = msgspec.structs.replace(executor.hello, per_request_k=per_request_k)
    for step in range(steps):
        decision = executor.decide(msgspec.structs.replace(situation, step=step), 0.0)
        key = tuple(decision.proposal_length.items())
        seen[key] += 1
        logged.setdefault(key, set()).add(decision.probability)
    return seen, logged


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("k_set", [(0, 4), (0, 3, 6), (6,), (1, 1, 2), (3,)])
@pytest.mark.parametrize("segments", [{"code": 1}, {"code": 1, "chat": 1}])
@pytest.mark.parametrize("per_request_k", [True, False])
def test_logged_probabilities_are_those_of_the_decisions(
    epsilon: float, k_set: tuple[int, ...], segments: dict[str, int], per_request_k: bool
) -> None:
    """One probability per decision, they sum to 1, and the frequencies agree with them."""
    plan = change(PLAN, explore=Explore(7, epsilon, k_set))
    number = 20_000
    seen, logged = outcomes(plan, load(decode_requests=segments), number, per_request_k)
    if not per_request_k:
        assert all(len({k for _, k in key}) == 1 for key in seen)
    assert all(len(probabilities) == 1 for probabilities in logged.values())
    probability = {key: next(iter(values)) for key, values in logged.items()}
    assert sum(probability.values()) == pytest.approx(1.0)
    for key, count in seen.items():
        expected = number * probability[key]
        assert abs(count - expected) <= 5.0 * (expected + 1.0) ** 0.5


def test_exploration_replays() -> None:
    """Same plan, same steps, same draws; another seed, others."""
    plan = change(PLAN, explore=Explore(7, 0.5, (0, 4)))
    one, two, other = (
        [steered(p).decide(load(step), 0.0).proposal_length for step in range(200)]
        for p in (plan, plan, change(plan, explore=Explore(8, 0.5, (0, 4))))
    )
    assert one == two
    assert one != other


def test_exploring_changes_one_segment_for_one_step() -> None:
    """It is no switch: the K in force stays, and dwell does not begin anew."""
    plan = change(PLAN, explore=Explore(7, 0.5, (0,)), dwell=Dwell(steps=3, seconds=0.0))
    executor = steered(plan)
    explored = [executor.decide(load(step), 0.0) for step in range(100)]
    assert {decision.explored for decision in explored} == {True, False}
    for decision in explored:
        assert not decision.switched
        different = sum(decision.proposal_length[s] != k for s, k in (("code", 6), ("chat", 3)))
        assert different == (1 if decision.explored else 0)
        assert (decision.reason == "explore") == decision.explored


@pytest.mark.parametrize("explore", [None, Explore(1, 0.0, (0,))])
def test_without_exploration_a_decision_is_certain(explore: Explore | None) -> None:
    """Probability 1."""
    decision = steered(change(PLAN, explore=explore)).decide(load(), 0.0)
    assert (decision.explored, decision.probability) == (False, 1.0)


def test_an_empty_batch_needs_no_decision() -> None:
    """Nothing to explore on, nothing raised."""
    plan = change(PLAN, explore=Explore(1, 1.0, (0,)))
    assert steered(plan).decide(load(decode_requests={}), 0.0).proposal_length == {}


@given(st.lists(st.integers(0, 2**64), min_size=1, max_size=4))
def test_the_hash_stays_within_64_bits(words: list[int]) -> None:
    """Whatever it is fed."""
    assert 0 <= mix(*words) < 2**64


# --- any plan, any load -----------------------------------------------------------------------

k = st.sampled_from(HELLO.reachable_k)
ktable = st.lists(st.lists(k, min_size=2, max_size=2).map(tuple), min_size=2, max_size=2).map(tuple)
tables = st.dictionaries(st.sampled_from(["unknown", "code", "chat"]), ktable)


@given(
    main=tables,
    prefill=tables,
    deficit=tables,
    unknown=ktable,
    counts=st.dictionaries(st.sampled_from(["unknown", "code", "chat", "x"]), st.integers(1, 99)),
    prefill_tokens=st.integers(0, 2),
    epsilon=st.floats(0.0, 1.0),
    mode=st.sampled_from(["shadow", "steer"]),
    now_s=st.floats(0.0, 2.0),
)
def test_a_decision_covers_the_load_with_reachable_k(
    main: Any,
    prefill: Any,
    deficit: Any,
    unknown: Any,
    counts: dict[str, int],
    prefill_tokens: int,
    epsilon: float,
    mode: Any,
    now_s: float,
) -> None:
    """Whatever the plan and the load: every segment present has a K that the engine can do."""
    plan = Plan(
        plan_id=1,
        policy="p",
        policy_version="1",
        fingerprint=DIGEST,
        mode=mode,
        batch_edges=(8,),
        context_edges=(100,),
        proposal_length={**main, "unknown": unknown},
        prefill_proposal_length=prefill,
        deficit_proposal_length=deficit,
        fallback=(1, 0),
        explore=Explore(1, epsilon, (0, 6)),
    )
    executor = steered(plan)
    situation = load(decode_requests=counts, prefill_tokens=prefill_tokens, deficit=dict.fromkeys(counts, 1))
    decision = executor.decide(situation, now_s)
    assert set(decision.proposal_length) == set(counts)
    assert set(decision.proposal_length.values()) <= set(HELLO.reachable_k)
    assert 0.0 <= decision.probability <= 1.0


moment = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2]),  # which plan; the first one explores not
    st.sampled_from([{"code": 1}, {"code": 1, "chat": 1}, {"code": 9, "chat": 1}]),
    st.sampled_from([50.0, 500.0]),
    st.sampled_from([0, 0, 64]),
    st.sampled_from([{}, {}, {"code": 1}, {"chat": 1}]),
    st.sampled_from(["", "", "", "pause", "no lease"]),
)


@given(st.lists(moment, max_size=40), st.integers(0, 3))
def test_a_look_up_that_is_remembered_changes_nothing(moments: list[Any], dwell_steps: int) -> None:
    """An executor that is made to look everything up anew decides the same in every situation."""
    dwell = Dwell(steps=dwell_steps, seconds=0.0)
    plans = [
        change(PLAN, dwell=dwell),
        change(PLAN, dwell=dwell, fallback=(2, 2, 2)),
        change(PLAN, dwell=dwell, proposal_length={"unknown": ((1, 2), (3, 4), (5, 6))}),
    ]
    remembering, forgetful = Executor(HELLO, DIGEST), Executor(HELLO, DIGEST)
    for step, (plan, counts, context, prefill, deficit, event) in enumerate(moments):
        situation = load(
            step,
            decode_requests=counts,
            mean_context_tokens=context,
            prefill_tokens=prefill,
            deficit=deficit,
        )
        decisions = []
        for executor in (remembering, forgetful):
            if executor.plan is not plans[plan]:
                executor.adopt(plans[plan])
            executor.renew(Lease(plan_id=1), 0.0)
            executor.paused = event == "pause"
            decisions.append(executor.decide(situation, 5.0 if event == "no lease" else 0.5))
        assert decisions[0] == decisions[1]
        forgetful._looked_up = _LookedUp()


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads change over as often as they can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("hurried")
def test_two_threads_never_see_half_a_plan() -> None:
    """While another thread adopts, renews and forgets, each decision is one plan's or nobody's."""
    executor = Executor(HELLO, DIGEST)
    enough = threading.Event()

    def publish() -> None:
        for n in itertools.count(1):
            k = n % 7
            plan = change(PLAN, plan_id=n, proposal_length={"unknown": ((k,) * 2,) * 3}, fallback=(k,) * 3)
            executor.adopt(plan)
            executor.renew(Lease(plan_id=n, lease_s=1e9), 0.0)
            if enough.is_set():
                return
            if n % 50 == 0:
                executor.forget()

    thread = threading.Thread(target=publish)
    thread.start()
    situation = load(decode_requests={"a": 1, "b": 1})
    decisions: list[Decision] = []
    while len({decision.plan_id for decision in decisions[::100]}) < 20:
        decisions += [executor.decide(situation, 1.0) for _ in range(200)]
    enough.set()
    thread.join()
    for decision in decisions:
        values = set(decision.proposal_length.values())
        assert len(values) == 1
        if decision.plan_id:
            assert values == {decision.plan_id % 7}


def test_an_engine_with_one_k_a_step_gets_the_longest_of_the_segments_present() -> None:
    """In steering, during a dwell, and in what shadow would have done."""
    plan = change(
        PLAN,
        batch_edges=(),
        context_edges=(),
        proposal_length={"unknown": ((2,),), "code": ((6,),), "chat": ((0,),)},
        prefill_proposal_length={},
        deficit_proposal_length={},
        fallback=(0,),
        explore=None,
        dwell=Dwell(steps=10, seconds=0.0, lower_steps=10),
    )
    executor = steered(plan, lease_s=1e9)
    executor.hello = msgspec.structs.replace(executor.hello, per_request_k=False)

    def decided(step: int, **requests: int) -> dict[str, int]:
        return executor.decide(load(step, decode_requests=requests), 0.0).proposal_length

    assert decided(0, chat=3) == {"chat": 0}
    assert decided(20, chat=3, code=1) == {"chat": 6, "code": 6}
    assert decided(21, chat=3, other=1) == {"chat": 6, "other": 6}
    assert decided(60, chat=3, other=1) == {"chat": 2, "other": 2}
    executor.adopt(change(plan, mode="shadow", plan_id=plan.plan_id + 1))
    executor.renew(Lease(plan_id=plan.plan_id + 1), 0.0)
    decision = executor.decide(load(61, decode_requests={"chat": 3, "code": 1}), 0.5)
    assert decision.would_be == {"chat": 6, "code": 6}
