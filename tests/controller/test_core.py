"""The controller, driven by hand: reports in, plans out, no sockets."""

import random
from collections.abc import Callable

import msgspec
import pytest

from steersman_controller.core import Controller, batch_edges
from steersman_controller.events import ControllerConfig
from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import Decision, Executor, Load
from steersman_policies.messages import Fingerprint, Group, Hello, Lease, PlanAck, StepReport
from steersman_policies.plan import Plan
from steersman_policies.policy import Memory, load
from steersman_policies.view import View

FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "ngram", "none", "float32", "cpu", "eager")
HELLO = Hello(
    fingerprint=FINGERPRINT,
    k_max=8,
    reachable_k=tuple(range(9)),
    k_floor=0,
    launch_k=4,
    max_batch=16,
    per_request_k=True,
    draft_timing=True,
    confidence=False,
    drafter_state_survives_off=True,
)
DIGEST = fingerprint_digest(FINGERPRINT)


class Kind:
    """One segment of the toy's traffic: the truth about it."""

    def __init__(self, acceptance: float, coverage: float, requests: int) -> None:
        self.acceptance = acceptance
        self.coverage = coverage
        self.requests = requests

    def draw(self, k: int, chance: random.Random) -> tuple[int, int]:
        """(drafted, accepted) of one request."""
        if k == 0 or chance.random() >= self.coverage:
            return 0, 0
        accepted = 0
        while accepted < k and chance.random() < self.acceptance:
            accepted += 1
        return k, accepted

    def gain(self, k: int) -> float:
        """Expected accepted tokens."""
        return self.coverage * sum(self.acceptance**j for j in range(1, k + 1))


def sublinear_s(tokens: float) -> float:
    """A CPU-like forward: steep at first, about 0.5 s at 80 tokens."""
    return 0.05 + 0.042 * tokens**0.55


class Toy:
    """An engine without a model: steps take what `verify_s` says, drafts are accepted by chance."""

    def __init__(self, kinds: dict[str, Kind], verify_s: Callable[[float], float], seed: int = 1) -> None:
        self.kinds = kinds
        self.verify_s = verify_s
        self.chance = random.Random(seed)
        self.executor = Executor(HELLO, DIGEST)
        self.now_s = 100.0
        self.step = 0
        self.pending: dict[str, int] = dict.fromkeys(kinds, 0)
        self.noise = 0.05

    def run(self, decision: Decision | None = None) -> tuple[StepReport, Decision]:
        """One step: verify what was drafted, then draft anew under the executor's K."""
        started_s, committed, tokens, groups = self.now_s, 0, 0, []
        for name, kind in self.kinds.items():
            if kind.requests == 0:
                continue
            k = self.pending.get(name, 0)
            counts: dict[tuple[int, int], int] = {}
            for _ in range(kind.requests):
                drafted, accepted = kind.draw(k, self.chance)
                tokens += 1 + drafted
                committed += 1 + accepted
                if drafted:
                    counts[drafted, accepted] = counts.get((drafted, accepted), 0) + 1
            outcomes = tuple((d, a, n) for (d, a), n in counts.items())
            groups.append(Group(name, 0, kind.requests, k, sum(counts.values()), outcomes))
        live = {name: kind.requests for name, kind in self.kinds.items() if kind.requests}
        batch = sum(live.values())
        self.step += 1
        self.executor.committed(committed, batch)
        verify_s = self.verify_s(tokens) * self.chance.lognormvariate(0.0, self.noise)
        self.now_s += verify_s + 0.001
        load = Load(self.step, live, 200.0, 0, 0)
        decision = decision or self.executor.decide(load, self.now_s)
        depth = max(decision.proposal_length.values())
        draft_s = 0.0002 * (depth > 0)
        self.now_s += draft_s
        self.pending = dict(decision.proposal_length)
        report = StepReport(
            step=self.step,
            started_s=started_s,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=0.001,
            decode_requests=batch,
            prefill_tokens=0,
            target_tokens=tokens,
            context_tokens=200 * batch,
            drafting_depth=depth,
            requests_drafting=sum(n for name, n in live.items() if decision.proposal_length[name]),
            waiting=0,
            kv_used_fraction=0.1,
            committed_tokens=committed,
            plan_id=decision.plan_id,
            groups=tuple(groups),
            explored=decision.explored,
            probability=decision.probability,
            reason=decision.reason,
            commanded=dict(decision.proposal_length),
        )
        return report, decision

    def goodput(self, lengths: dict[str, int]) -> float:
        """Expected committed tokens per second at these K: the truth."""
        tokens = drafted = 0.0
        for name, kind in self.kinds.items():
            k = lengths.get(name, 0)
            tokens += kind.requests * (1.0 + kind.gain(k))
            drafted += kind.requests * (1.0 + kind.coverage * k)
        return tokens / (self.verify_s(drafted) + 0.001 + 0.0002 * any(lengths.values()))

    def best(self) -> float:
        """Goodput of the best K by segment."""
        first, second = self.kinds
        return max(self.goodput({first: a, second: b}) for a in range(9) for b in range(9))


def closed_loop(controller: Controller, toy: Toy, steps: int) -> list[Decision]:
    """Steer the toy with the controller; the decisions made."""
    decisions = []
    for _ in range(steps):
        plan = controller.plan(toy.now_s)
        if plan is not None:
            controller.observe(toy.executor.adopt(plan), toy.now_s)
        if controller.leased_plan_id is not None:
            toy.executor.renew(Lease(controller.leased_plan_id), toy.now_s)
        report, decision = toy.run()
        controller.observe(report, toy.now_s)
        decisions.append(decision)
    return decisions


def controller(policy: str = "goodput", mode: str = "steer", **params: object) -> Controller:
    config = ControllerConfig(mode=mode, seed=7)  # type: ignore[arg-type]
    return Controller(HELLO, DIGEST, load(policy, params), config)


def mixed(code: float = 0.9, chat: float = 0.2) -> dict[str, Kind]:
    """A full batch of code, which drafts well, and chat, which does not."""
    return {"code": Kind(code, 0.9, 8), "chat": Kind(chat, 0.3, 8)}


@pytest.mark.parametrize("seed", [1, 2])
def test_it_drafts_for_code_and_not_for_chat(seed: int) -> None:
    """After 300 steps at batch 16 the plan is within 3 % of the oracle, with K = 0 for chat."""
    toy = Toy(mixed(), sublinear_s, seed)
    steered = controller()
    decisions = closed_loop(steered, toy, 300)
    assert decisions[0].proposal_length == {"code": 0, "chat": 0}, "a cold start drafts nothing"
    plan = steered.plan_in_force
    assert plan is not None
    lengths = {segment: plan.proposal_length[segment][-1][0] for segment in toy.kinds}
    assert lengths["code"] >= 5
    assert lengths["chat"] == 0
    assert toy.goodput(lengths) >= 0.97 * toy.best()


@pytest.mark.parametrize("seed", [4, 5])
def test_off_is_not_absorbing(seed: int) -> None:
    """When chat becomes predictable, it is drafted for within 1,000 steps."""
    toy = Toy(mixed(), sublinear_s, seed)
    steered = controller()
    assert closed_loop(steered, toy, 300)[-1].proposal_length["chat"] == 0
    toy.kinds["chat"].acceptance = 0.9
    for _ in range(20):
        if any(d.proposal_length["chat"] and not d.explored for d in closed_loop(steered, toy, 50)):
            return
    pytest.fail("chat is still not drafted for")


def test_the_best_k_falls_with_the_batch() -> None:
    """A batch that fluctuates between 1 and 16 leaves tables whose K does not rise with the batch."""
    toy = Toy({"code": Kind(0.7, 1.0, 1), "chat": Kind(0.7, 1.0, 0)}, lambda n: 0.02 + 0.002 * n)
    steered = controller()
    for batch in (1, 16, 4, 16, 1, 8, 2, 16):
        toy.kinds["code"].requests = batch
        closed_loop(steered, toy, 120)
    assert steered.plan_in_force is not None
    by_batch = [row[0] for row in steered.plan_in_force.proposal_length["code"]]
    assert by_batch[0] >= 4
    assert by_batch[-1] <= by_batch[0] - 2


def test_it_learns_in_shadow() -> None:
    """In shadow the engine keeps its launch K, and the plan still becomes the right one."""
    toy = Toy(mixed(), sublinear_s, 3)
    watching = controller(mode="shadow")
    decisions = closed_loop(watching, toy, 300)
    assert {k for d in decisions[2:] for k in d.proposal_length.values()} == {HELLO.launch_k}
    assert decisions[-1].would_be["chat"] == 0
    assert decisions[-1].would_be["code"] >= 3


def test_no_plan_before_its_time() -> None:
    """A plan is made at most once per interval, and only one that differs is given out."""
    fixed = controller("fixed", k=3)
    first = fixed.plan(10.0)
    assert first is not None
    assert first.plan_id == 1
    assert fixed.plan(10.1) is None
    interval_s = fixed.config.plan_interval_s
    assert not fixed.due(10.0 + 0.99 * interval_s)
    assert fixed.due(10.0 + interval_s)
    assert fixed.plan(11.0) is None, "it says the same"
    fixed.set_policy(load("fixed", {"k": 5}), "fixed")
    second = fixed.plan(11.01)
    assert second is not None
    assert second.plan_id == 2
    assert second.fallback[0] == 5


def test_only_an_applied_plan_is_leased() -> None:
    """The leased plan is the last one acknowledged as applied; a refused one is issued anew."""
    fixed = controller("fixed", k=3)
    assert fixed.leased_plan_id is None
    fixed.plan(10.0)
    fixed.observe(PlanAck(1, True), 10.0)
    assert fixed.leased_plan_id == 1
    fixed.set_policy(load("fixed", {"k": 5}), "fixed")
    fixed.plan(11.0)
    fixed.observe(PlanAck(2, False, "no"), 11.0)
    assert fixed.leased_plan_id == 1
    again = fixed.plan(12.0)
    assert again is not None
    assert again.plan_id == 3
    assert fixed.status(12.0).counters["nacks"] == 1


def test_mode_is_in_the_next_plan() -> None:
    """Leaving shadow shows in the very next plan."""
    fixed = controller("fixed", mode="shadow", k=3)
    plan = fixed.plan(1.0)
    assert plan is not None
    assert plan.mode == "shadow"
    fixed.set_mode("steer")
    plan = fixed.plan(1.01)
    assert plan is not None
    assert plan.mode == "steer"


class Broken:
    """A policy of others that fails."""

    version = "1"

    def plan(self, view: object, memory: object, u: float) -> object:
        """Never."""
        raise RuntimeError("oops")


def test_a_failing_policy_leaves_the_plan_in_force() -> None:
    """A planner's exception is counted and changes nothing."""
    fixed = controller("fixed", k=3)
    plan = fixed.plan(1.0)
    fixed.set_policy(Broken(), "broken")  # type: ignore[arg-type]
    assert fixed.plan(2.0) is None
    assert fixed.plan_in_force is plan
    assert fixed.counters["planner_errors"] == 1


def test_a_change_of_phase_shows_within_two_seconds() -> None:
    """The share of a segment that left falls below a tenth in 2 s and its belief stays."""
    toy = Toy(mixed(), lambda n: 0.02, 3)
    one = controller("fixed", k=4)
    closed_loop(one, toy, 100)
    believed = {s.segment: s for s in one.segments()}
    assert believed["code"].share == pytest.approx(0.5, abs=0.01)
    toy.kinds["code"].requests = 0
    closed_loop(one, toy, 110)
    now = {s.segment: s for s in one.segments()}
    assert now["code"].share < 0.1
    assert now["chat"].share > 0.9
    assert now["code"].acceptance == pytest.approx(believed["code"].acceptance, abs=0.01)


def test_at_most_sixteen_segments() -> None:
    """The segment unseen for longest makes room; a crowd of new ones is served as unknown."""
    one = controller("fixed", k=4)
    for index in range(40):
        toy = Toy({f"s{index}": Kind(0.5, 1.0, 2)}, sublinear_s, index)
        toy.now_s += index * 60.0
        closed_loop(one, toy, 30)
    names = {s.segment for s in one.segments()}
    assert len(names) == 16
    assert "unknown" in names
    assert "s39" in names
    assert "s0" not in names


def test_batch_edges_end_below_the_largest_batch() -> None:
    """Edges ascend and the open last bucket is never empty."""
    for largest in range(1, 70):
        edges = batch_edges(largest)
        assert list(edges) == sorted(set(edges))
        assert all(edge < largest for edge in edges)


class Overreaching:
    """A policy that asks for what the engine cannot do."""

    version = "1"

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = 9 of 8."""
        plan, _ = load("fixed", {"k": 8}).plan(view, memory, u)
        return msgspec.structs.replace(plan, fallback=(9,) * len(plan.fallback)), memory


def test_a_plan_that_the_engine_cannot_follow_is_never_sent() -> None:
    """A planner's unreachable K is counted and the plan in force stays."""
    one = controller("fixed", k=3)
    plan = one.plan(1.0)
    one.set_policy(Overreaching(), "overreaching")
    assert one.plan(2.0) is None
    assert one.plan_in_force is plan
    assert one.counters["plans_unfit"] == 1


class Watching:
    """A policy that writes down what it is shown."""

    version = "1"

    def __init__(self) -> None:
        self.afresh: list[bool] = []

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = 2."""
        self.afresh.append(view.afresh)
        return load("fixed", {"k": 2}).plan(view, memory, u)


def test_planners_are_told_when_all_is_in_doubt() -> None:
    """At the first plan, after a change of policy or mode, a restart from a snapshot, an alarm; not else."""
    one, policy = controller("fixed", k=3), Watching()
    snapshot = one.snapshot()
    one.set_policy(policy, "watching")  # type: ignore[arg-type]
    toy = Toy(mixed(), lambda n: 0.02, 3)
    closed_loop(one, toy, 300)
    assert policy.afresh == [True] + [False] * (len(policy.afresh) - 1)

    def told(change: Callable[[], object]) -> list[bool]:
        policy.afresh.clear()
        change()
        one.policy = policy  # type: ignore[assignment]
        for _ in range(2):
            toy.now_s += 1.0
            one.plan(toy.now_s)
        return policy.afresh

    assert told(lambda: None) == [False, False]
    assert told(lambda: one.set_mode("shadow")) == [True, False]
    assert told(lambda: one.set_policy(policy, "watching")) == [True, False]  # type: ignore[arg-type]
    assert told(lambda: one.restore(snapshot)) == [True, False]
    assert told(lambda: one.belief.alarms.update(cost=1)) == [True, False]
