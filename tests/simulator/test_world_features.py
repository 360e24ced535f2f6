"""What serving engines do beyond batching: budgets, blocks, prefixes, lags, padding, ranks, routers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from steersman_controller.events import ControllerConfig
from steersman_policies.executor import Decision, Load
from steersman_policies.messages import Hello, StepReport
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.acceptance.segments import AcceptanceTruth, ConstantAcceptance, SegmentTruth
from steersman_simulator.simulate import started
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.blocks import BlockPool
from steersman_simulator.world.cluster import Cluster
from steersman_simulator.world.gaps import gap_quantile_s
from steersman_simulator.world.outcome import Outcome
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, Change, World


@dataclass
class Watched:
    """A truth that remembers what it was asked."""

    steps: ConstantSteps = field(default_factory=lambda: ConstantSteps(0.05))
    verified: list[VerifyWork] = field(default_factory=list)
    drafted: list[DraftWork] = field(default_factory=list)

    def sampler(self, chance) -> "Watched":
        return self

    def verify_s(self, work: VerifyWork) -> float:
        self.verified.append(work)
        return self.steps.verify_s(work)

    def draft_s(self, work: DraftWork) -> float:
        self.drafted.append(work)
        return self.steps.draft_s(work)

    def other_s(self, **counts: int) -> float:
        return self.steps.other_s(**counts)


@dataclass
class Scripted:
    """A link that says K by step, and remembers how much it was told before each decision."""

    k_at: Callable[[int], int]
    told: int = 0
    told_before: list[int] = field(default_factory=list)
    wants_reports = False

    def committed(self, tokens: int, decode_requests: int) -> None:
        self.told += 1

    def decide(self, load: Load, now_s: float) -> Decision:
        self.told_before.append(self.told)
        return Decision(dict.fromkeys(load.decode_requests, self.k_at(load.step)), 0, "table", False)

    def send(self, record, now_s: float) -> None:
        pass


@pytest.fixture(scope="module")
def build(hello: Hello):
    """A world without a controller, at a fixed K or one that `k_at` gives for each step."""

    def make(
        shape: Shape, truth=None, *, k: int = 0, k_at=None, acceptance=None, k_max: int = 8, **parts
    ) -> World:
        world = World(
            started=None,
            hello=replace(hello, k_max=k_max),
            shape=shape,
            truth=truth or ConstantSteps(0.05),
            acceptance=acceptance or ConstantAcceptance(0.7),
            fixed_k=k,
            **parts,
        )
        if k_at is not None:
            for engine in world.engines:
                engine.link = Scripted(k_at)
        return world

    return make


def reports(outcome: Outcome, engine: int = 0) -> list[StepReport]:
    return [step.report for step in outcome.steps if step.engine == engine]


def serve(world: World, *arrivals: Arrival) -> Outcome:
    return world.run([Arm("a", arrivals)])


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"prefill_budget_tokens": 0}, "prefill_budget_tokens"),
        ({"token_budget": 3}, "token_budget"),
        ({"kv_blocks": -1}, "kv_blocks"),
        ({"kv_block_tokens": 0}, "kv_block_tokens"),
        ({"kv_blocks": 5, "drafter_kv_blocks": 5}, "drafter_kv_blocks"),
        ({"graph_sizes": (8, 4)}, "graph_sizes"),
    ],
)
def test_a_shape_that_no_engine_has_is_refused(parts, named):
    """One line names the field and what is allowed."""
    with pytest.raises(ValueError, match=f"^shape.{named}: "):
        Shape(**{"max_batch": 4, "prefill_budget_tokens": 64} | parts)


def test_decode_requests_come_first_in_the_token_budget(build):
    """A prompt gets what anchors and drafts leave of the budget, and all of it while it is alone."""
    world = build(Shape(4, token_budget=20), k=4, acceptance=ConstantAcceptance(1.0))
    outcome = serve(world, Arrival(0.0, "a", 20, 60), Arrival(0.06, "a", 70, 5))
    steps = reports(outcome)
    assert max(step.target_tokens for step in steps) == 20
    mixed = [step for step in steps if step.prefill_tokens and step.decode_requests]
    assert [step.prefill_tokens for step in mixed] == [15, 15, 15, 15, 10]
    assert steps[0].prefill_tokens == 20


def test_drafts_that_exceed_the_token_budget_are_cut(build):
    """Rows are served in order of admission; the last ones get shorter drafts or no place at all."""
    world = build(Shape(4, 100, token_budget=9), k=4, acceptance=ConstantAcceptance(1.0))
    outcome = serve(world, *(Arrival(0.0, "a", 1, 30) for _ in range(4)))
    full = next(step for step in reports(outcome) if step.target_tokens == 9 and not step.prefill_tokens)
    assert full.decode_requests == 2
    assert sorted(row for group in full.groups for row in group.outcomes) == [(3, 3, 1), (4, 4, 1)]
    assert all(one.report.output_tokens == 30 for one in outcome.served)


def test_the_last_admitted_gives_way_and_is_recomputed(build):
    """Short of blocks, the younger request loses its cache, keeps its tokens, and is read again with them."""
    world = build(Shape(2, 64, kv_blocks=12, kv_block_tokens=8), k=2)
    outcome = serve(world, *(Arrival(0.0, "a", 20, 40) for _ in range(2)))
    first, second = sorted(outcome.served, key=lambda one: one.report.request)
    assert (first.preemptions, second.preemptions > 0) == (0, True)
    steps = reports(outcome)
    assert sum(step.preemption for step in steps) == second.preemptions
    again = [step.prefill_tokens for step in steps if step.prefill_tokens][1:]
    assert len(again) == second.preemptions
    assert all(20 < tokens < 60 for tokens in again)
    assert second.report.output_tokens == sum(tokens for _, tokens in second.deliveries) == 40
    assert second.report.queue_s == 0.0
    assert max(step.kv_used_fraction for step in steps) <= 1.0


def test_preempted_requests_are_first_in_the_queue(build):
    """Whoever waited all along does not overtake the one that gave way."""
    world = build(Shape(2, 64, kv_blocks=12, kv_block_tokens=8), k=2)
    outcome = serve(world, *(Arrival(0.0, "a", 20, 40) for _ in range(3)))
    assert sum(one.preemptions for one in outcome.served) > 0
    assert [one.report.request for one in outcome.served] == [0, 1, 2]


def test_drafts_have_places_in_the_cache_whatever_k_is(build):
    """Every request holds blocks for its longest draft: at K = 0, too, but not where no drafter is."""
    shape = Shape(1, 64, kv_blocks=10, kv_block_tokens=8)
    used = {
        k_max: reports(serve(build(shape, k_max=k_max), Arrival(0.0, "a", 16, 2)))[0].kv_used_fraction
        for k_max in (0, 8)
    }
    assert used == {0: pytest.approx(0.3), 8: pytest.approx(0.4)}


def test_a_loaded_drafter_takes_blocks_of_the_pool(build):
    """What fits without a drafter is turned away with one, and the reason says so."""
    shape = Shape(1, 64, kv_blocks=10, kv_block_tokens=8, drafter_kv_blocks=4)
    without = serve(build(shape, k_max=0), Arrival(0.0, "a", 40, 16))
    assert (len(without.served), without.rejected) == (1, ())
    (refused,) = serve(build(shape, k_max=8), Arrival(0.0, "a", 40, 16)).rejected
    assert refused.reason == "needs 8 KV blocks of 6"


def test_nobody_is_admitted_without_blocks(build):
    """The queue stops at a request whose blocks are not there, though a slot is."""
    world = build(Shape(4, 128, kv_blocks=8, kv_block_tokens=8), k_max=0)
    outcome = serve(world, Arrival(0.0, "a", 40, 8), Arrival(0.0, "a", 32, 2), Arrival(0.0, "a", 1, 2))
    queued = [one.report.queue_s for one in sorted(outcome.served, key=lambda one: one.report.request)]
    assert queued[0] == 0.0
    assert queued[1] > 0.2
    assert queued[2] >= queued[1]


def prompt(at_s: float, *ids: int, tokens: int = 70) -> Arrival:
    return Arrival(at_s, "a", tokens, 3, hash_ids=ids, hash_block_tokens=32)


def test_a_known_prefix_is_not_read_again(build):
    """Only what follows the equal ids is prefilled; with other ids, or no cache, all of it is."""
    for ids, cache, read in (((1, 2), True, 6), ((1, 3), True, 38), ((4, 2), True, 70), ((1, 2), False, 70)):
        shape = Shape(2, 100, kv_blocks=60, kv_block_tokens=8, prefix_cache=cache)
        steps = reports(serve(build(shape), prompt(0.0, 1, 2), prompt(9.0, *ids)))
        assert [step.prefill_tokens for step in steps if step.prefill_tokens] == [70, read]


def test_the_last_token_of_a_prompt_is_always_read(build):
    """A prompt that is cached as a whole still needs a forward for its first token."""
    shape = Shape(2, 100, kv_blocks=60, kv_block_tokens=8)
    steps = reports(serve(build(shape), prompt(0.0, 1, 2, tokens=64), prompt(9.0, 1, 2, tokens=64)))
    assert [step.prefill_tokens for step in steps if step.prefill_tokens] == [64, 32]


def test_shared_blocks_count_once(build):
    """Two requests with one prefix hold it once."""
    shape = Shape(2, 200, kv_blocks=100, kv_block_tokens=8)

    def most(second: tuple[int, ...]) -> float:
        first = replace(prompt(0.0, 1, 2), output_tokens=20)
        late = replace(prompt(0.2, *second), output_tokens=20)
        return max(step.kv_used_fraction for step in reports(serve(build(shape, k_max=0), first, late)))

    assert most((3, 4)) - most((1, 2)) == pytest.approx(8 / 100)


def test_cached_blocks_are_evicted_least_recently_used_first_and_ends_before_beginnings():
    """Room is made of what nobody uses; what somebody uses stays."""
    pool = BlockPool(6, 8)
    pool.hash_with(8)
    pool.take(6)
    for hash_id in range(6):
        assert pool.cache(hash_id)
    pool.leave([0, 1])
    pool.leave([2, 3])
    pool.use([0])
    assert pool.available == 3
    pool.take(2)
    assert [hash_id for hash_id in range(6) if hash_id in pool.users] == [0, 2, 4, 5]
    assert pool.cached([0, 1]) == 1


@pytest.mark.parametrize(("scheduling", "lag"), [("sync", 0), ("async", 2)])
def test_feedback_comes_so_many_steps_late(build, scheduling, lag):
    """K of step t is chosen knowing the outcome of step t - lag, and of none after it."""
    world = build(Shape(2, 64, scheduling=scheduling), k_at=lambda step: 0)
    serve(world, Arrival(0.0, "a", 10, 20))
    told = world.engines[0].link.told_before
    assert told == [max(0, step + 1 - lag) for step in range(len(told))]


def test_under_async_a_finished_request_takes_part_once_more(build):
    """Its last step commits nothing, and its slot is free one step later than otherwise."""
    found = {}
    for scheduling in ("sync", "async"):
        world = build(Shape(1, 64, scheduling=scheduling))
        outcome = serve(world, Arrival(0.0, "a", 10, 5), Arrival(0.0, "a", 10, 5))
        empty = sum(group.requests_empty for step in reports(outcome) for group in step.groups)
        found[scheduling] = (empty, outcome.served[1].report.queue_s, outcome.served[0].report.e2e_s)
    assert found["sync"] == (0, pytest.approx(0.25), pytest.approx(0.25))
    assert found["async"][1:] == (pytest.approx(0.30), pytest.approx(0.25))
    assert found["async"][0] >= 1


def test_under_async_short_drafts_are_filled_up(build):
    """Nobody knows yet how long a draft will be, so there is place for all of it."""
    nothing = AcceptanceTruth({"unknown": SegmentTruth(0.0, 0.0, (1.0,), (0.5,))})
    truth = Watched()
    serve(build(Shape(1, 64, scheduling="async"), truth, k=4, acceptance=nothing), Arrival(0.0, "a", 10, 20))
    assert {work.padding_tokens for work in truth.verified[2:10]} == {4}


def test_a_report_is_told_one_step_later_under_async(hello):
    """What the sidecar learns of a step arrives when the next one is over."""
    late = {}
    for scheduling in ("sync", "async"):
        world = World(
            started=started(ControllerConfig(), "off", {}),
            hello=hello,
            shape=Shape(2, 64, scheduling=scheduling),
            truth=ConstantSteps(0.05),
            acceptance=ConstantAcceptance(0.5),
        )
        events = serve(world, Arrival(0.0, "a", 10, 30)).events
        told = [e for e in events if isinstance(getattr(e, "record", None), StepReport)]
        late[scheduling] = [e.at_s - e.record.started_s for e in told[1:20]]
    assert late["sync"] == [pytest.approx(0.05)] * 19
    assert late["async"] == [pytest.approx(0.10)] * 19


def test_steps_without_prompts_are_filled_up_to_a_captured_graph(build):
    """At every K, 0 included; steps with prompts and those beyond the largest graph are not."""
    for k in (0, 3):
        truth = Watched()
        shape = Shape(8, 64, graph_sizes=(6, 9))
        world = build(shape, truth, k=k, acceptance=ConstantAcceptance(1.0))
        outcome = serve(world, *(Arrival(0.06 * i, "a", 10, 25) for i in range(3)))
        plain = [work for work in truth.verified if not work.prefill_tokens]
        small = [work for work in plain if work.target_tokens <= 9]
        assert {work.target_tokens for work in small} <= {6, 9}
        assert any(work.padding_tokens for work in small)
        assert all(work.padding_tokens == 0 for work in truth.verified if work.prefill_tokens)
        if k:
            assert max(work.target_tokens for work in plain) == 12
        for step, work in zip(reports(outcome), truth.verified, strict=True):
            assert step.target_tokens == work.target_tokens - work.padding_tokens


def test_rows_shorter_than_the_longest_draft_are_ragged(build):
    """One request that is drafted for beside one that is not makes one ragged row."""
    acceptance = AcceptanceTruth(
        {"full": SegmentTruth(1.0, 0.0, (1.0,), (0.5,)), "none": SegmentTruth(0.0, 0.0, (1.0,), (0.5,))}
    )
    truth = Watched()
    world = build(Shape(4, 64), truth, k=4, acceptance=acceptance)
    serve(world, *(Arrival(0.0, name, 10, 30) for name in ("full", "none", "full")))
    assert {work.ragged_rows for work in truth.verified[2:6]} == {1}


def test_a_drafter_that_is_off_has_no_state_follows_or_goes_stale(build):
    """Off-warm reads every token as it comes; off-cold reads what it missed when it is wanted again."""
    read = {}
    for off in ("stateless", "warm", "cold"):
        truth = Watched()
        world = build(Shape(2, 64, off=off), truth, k_at=lambda step: 4 if step >= 5 else 0)
        serve(world, Arrival(0.0, "a", 10, 40))
        assert [work.depth for work in truth.drafted[:6]] == [0, 0, 0, 0, 0, 4]
        read[off] = [work.stale_tokens for work in truth.drafted[:8]]
    assert read["stateless"] == [0] * 8
    # The prompt and the first token, then a token a step; while it drafts it follows anyway.
    assert read["warm"] == [11, 1, 1, 1, 1, 0, 0, 0]
    # All of it at once: prompt and 5 tokens; the token of this step is what it drafts from.
    assert read["cold"][:5] == [0] * 5
    assert read["cold"][5] in {15, 16}
    assert read["cold"][6:] == [0, 0]


def test_the_forward_knows_of_a_switch(build):
    """What the report calls first after a switch, the truth can make slow."""
    truth = Watched()
    world = build(Shape(2, 64), truth)

    class Switching(Scripted):
        def decide(self, load, now_s):
            return replace(super().decide(load, now_s), switched=load.step == 4)

    world.engines[0].link = Switching(lambda step: 4 if step >= 4 else 0)
    outcome = serve(world, Arrival(0.0, "a", 10, 40))
    assert [work.first_after_switch for work in truth.verified].index(True) == 5
    assert [step.first_after_switch for step in reports(outcome)].index(True) == 5


@pytest.mark.parametrize(
    ("router", "served_by"), [("round_robin", [0, 1, 0, 1]), ("least_loaded", [0, 1, 1, 1])]
)
def test_a_router_sends_requests_in_turn_or_to_the_least_loaded(build, router, served_by):
    """The first request is long and the others short, so its engine is the loaded one."""
    world = build(Shape(4, 64), cluster=Cluster(2, router))
    outcome = serve(world, Arrival(0.0, "a", 10, 200), *(Arrival(0.3 * i, "a", 10, 3) for i in (1, 2, 3)))
    by_request = sorted(outcome.served, key=lambda one: one.report.request)
    assert [one.engine for one in by_request] == served_by


def test_every_engine_has_a_controller_in_one_fleet(hello, mixed):
    """Both are learned about, apart, and both follow plans."""
    world = World(
        started=started(ControllerConfig(), "goodput", {}),
        hello=hello,
        shape=Shape(8, 256),
        truth=ConstantSteps(0.03, per_token_s=0.001),
        acceptance=ConstantAcceptance(0.8),
        cluster=Cluster(2),
    )
    outcome = world.run([Arm("a", mixed(30, 3.0), (Change(0.0, "goodput"),))])
    controllers = world.sidecar.fleet.controllers
    assert sorted(controllers) == ["simulated-0", "simulated-1"]
    for number, controller in enumerate(controllers.values()):
        steps = reports(outcome, number)
        assert controller.counters["reports"] == len(steps) > 50
        assert any(step.reason == "table" for step in steps)


def test_ranks_in_lock_step_wait_for_the_slowest(build):
    """Steps of all ranks begin and end together; an idle one runs along and reports nothing."""
    truth = Watched(ConstantSteps(0.01, per_context_token_s=1e-3))
    world = build(Shape(4, 64), truth, cluster=Cluster(2, lockstep=True), k_at=lambda step: 0)
    world.engines[1].link = Scripted(lambda step: 3)
    world.engines[0].link = Scripted(lambda step: 2)
    outcome = serve(world, Arrival(0.0, "a", 10, 60), Arrival(0.0, "a", 50, 10))
    first, second = reports(outcome, 0), reports(outcome, 1)
    assert len(second) < len(first)
    for one, other in zip(first, second, strict=False):
        assert one.started_s == other.started_s
        assert one.verify_s == other.verify_s >= 0.01 + 1e-3 * max(one.context_tokens, other.context_tokens)
        assert {one.drafting_depth, other.drafting_depth} <= {0, 2}
    assert sum(work == VerifyWork(1, 0, 0) for work in truth.verified) == len(first) - len(second)


@dataclass(frozen=True)
class Turning:
    """Nothing is accepted before second 1.02 of an arm, everything after it."""

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        return ConstantAcceptance(1.0 if at_s >= 1.02 else 0.0).table(arrival, ordinal, seed, at_s)

    def changes(self) -> tuple[float, ...]:
        return (1.02,)


def test_drafts_of_live_requests_change_with_the_acceptance(build):
    """A request that began under the old acceptance is drafted for under the new one, in every arm."""
    world = build(Shape(2, 64), k=4, acceptance=Turning())
    outcome = world.run([Arm(name, [Arrival(0.0, "a", 10, 60)]) for name in ("a", "b")])
    for arm in (0, 1):
        steps = [one.report for one in outcome.steps if one.arm == arm]
        start_s = outcome.spans[arm][0]
        for step in steps[1:-2]:
            ((_, accepted, _),) = step.groups[0].outcomes
            # Drafts are made at the end of the step before.
            assert accepted == (4 if step.started_s - start_s > 1.03 else 0)


def test_the_truth_can_change_with_time(build):
    """An engine gets sick in the middle of an arm, and the next arm begins with a healthy one."""
    world = build(Shape(2, 64), [(0.0, ConstantSteps(0.05)), (1.0, ConstantSteps(0.075))])
    outcome = world.run([Arm(name, [Arrival(0.0, "a", 10, 40)]) for name in ("a", "b")])
    for arm in (0, 1):
        start_s = outcome.spans[arm][0]
        steps = [one.report for one in outcome.steps if one.arm == arm]
        assert {step.verify_s for step in steps if step.started_s - start_s < 0.99} == {0.05}
        assert {step.verify_s for step in steps if step.started_s - start_s > 1.01} == {0.075}


def test_arrivals_are_taken_as_they_come(build):
    """An endless trace can be served up to a horizon."""
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield Arrival(0.1 * len(taken), "a", 10, 5)

    outcome = build(Shape(4, 64)).run([Arm("a", endless())], horizon_s=5.0)
    assert outcome.arrived + 1 == len(taken) == 51


def test_gaps_are_known_without_deliveries(build, mixed):
    """Quantiles from the histogram are those of all gaps, per delivery and per token, within a percent."""
    steps = ConstantSteps(0.02, per_token_s=0.002, per_context_token_s=1e-6)
    world = build(Shape(8, 64), steps, k=4)
    outcome = serve(world, *mixed(40, 4.0))
    gaps = [(b[0] - a[0], b[1]) for one in outcome.served for a, b in pairwise(one.deliveries)]
    exact = [
        np.array([gap_s for gap_s, _ in gaps]),
        np.concatenate([np.full(tokens, gap_s / tokens) for gap_s, tokens in gaps]),
    ]
    for found, values in zip(world.engines[0].batch.gaps, exact, strict=True):
        assert found.sum() == len(values)
        for quantile in (0.1, 0.5, 0.9, 0.99):
            right = np.quantile(values, quantile, method="inverted_cdf")
            assert gap_quantile_s(found, quantile) == pytest.approx(right, rel=0.011)
