"""Every request that arrives is finished, refused, or still there; no slot and no block gets lost."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman_policies.messages import Hello
from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.admission import Admission
from steersman_simulator.world.cluster import Cluster
from steersman_simulator.world.outcome import Outcome
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, World

STEPS = ConstantSteps(0.01, per_token_s=1e-4, host_s=0.001)


def small_world(hello: Hello, shape: Shape, cluster: Cluster, k: int, seed: int = 0) -> World:
    return World(
        started=None,
        hello=hello,
        shape=shape,
        truth=STEPS,
        acceptance=ConstantAcceptance(0.7),
        cluster=cluster,
        fixed_k=k,
        seed=seed,
    )


def assert_conserved(outcome: Outcome, arrivals: list[Arrival]) -> None:
    finished = Counter(one.report.request for one in outcome.served)
    refused = Counter(one.request for one in outcome.rejected)
    ends = finished + refused + Counter(outcome.running)
    assert ends == Counter(range(outcome.arrived))
    assert all(one.reason for one in outcome.rejected)
    for one in outcome.served:
        assert one.report.output_tokens == arrivals[one.report.request].output_tokens
        assert sum(tokens for _, tokens in one.deliveries) == one.report.output_tokens
        assert [at_s for at_s, _ in one.deliveries] == sorted(at_s for at_s, _ in one.deliveries)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    max_batch = draw(st.integers(1, 9))
    token_budget = draw(st.sampled_from([0, max_batch, max_batch + 7, 64]))
    return Shape(
        max_batch=max_batch,
        prefill_budget_tokens=draw(st.sampled_from([16, 100] if not token_budget else [0, 16])),
        token_budget=max(token_budget, max_batch) if token_budget else 0,
        kv_blocks=draw(st.sampled_from([0, 12, 20, 60])),
        kv_block_tokens=8,
        drafter_kv_blocks=draw(st.sampled_from([0])),
        prefix_cache=draw(st.booleans()),
        graph_sizes=draw(st.sampled_from([(), (4, 16, 32)])),
        off=draw(st.sampled_from(["stateless", "warm", "cold"])),
        scheduling=draw(st.sampled_from(["sync", "async"])),
    )


@st.composite
def requests(draw: st.DrawFn) -> list[Arrival]:
    at_s, out = 0.0, []
    for _ in range(draw(st.integers(0, 25))):
        at_s += draw(st.sampled_from([0.0, 0.01, 0.3]))
        prompt = draw(st.integers(0, 90))
        ids = tuple(draw(st.integers(0, 1)) + 10 * place for place in range(prompt // 16))
        out.append(
            Arrival(
                at_s, draw(st.sampled_from(["a", "b", "c"])), prompt, draw(st.integers(0, 40)),
                stops=draw(st.booleans()), hash_ids=ids, hash_block_tokens=16,
            )
        )  # fmt: skip
    return out


@given(shapes(), requests(), st.integers(0, 8), st.sampled_from([1, 2, 3]), st.booleans(), st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_whatever_the_shape(hello, shape, arrivals, k, engines, lockstep, data):
    """Drained or stopped at any moment, every request is accounted for once, with all its tokens."""
    cluster = Cluster(
        engines, data.draw(st.sampled_from(["round_robin", "least_loaded"])), lockstep and engines > 1
    )
    horizon_s = data.draw(st.sampled_from([None, 0.05, 0.5]))
    world = small_world(hello, shape, cluster, k)
    outcome = world.run([Arm("a", iter(arrivals))], horizon_s=horizon_s)
    assert_conserved(outcome, arrivals)
    if horizon_s is None:
        assert outcome.arrived == len(arrivals)
        assert outcome.running == ()


TIGHT = Shape(4, 64, kv_blocks=12, kv_block_tokens=8)
CROWD = [Arrival(0.01 * i, "a", 20, 40) for i in range(12)]


def test_a_leaked_block_is_noticed(hello, monkeypatch):
    """A request that keeps one block for ever does not go unseen."""
    release = Admission.release
    monkeypatch.setattr(Admission, "release", lambda self, live, blocks: release(self, live, blocks - 1))
    with pytest.raises(AssertionError, match=r"blocks: .* free"):
        small_world(hello, TIGHT, Cluster(), 2).run([Arm("a", CROWD[:1])])


def test_a_lost_request_is_noticed(hello, monkeypatch):
    """A preempted request that nobody puts back into the queue does not go unseen."""

    def lose(self, live, blocks):
        self.release(live, blocks)

    monkeypatch.setattr(Admission, "requeue", lose)
    world = small_world(hello, TIGHT, Cluster(), 2)
    with pytest.raises(AssertionError, match="accounted for"):
        world.run([Arm("a", CROWD)], horizon_s=30.0)
