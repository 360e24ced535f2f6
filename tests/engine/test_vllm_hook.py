"""What the hook does to a vLLM step; the step itself is a stand-in with vLLM's names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from link_world import DIGEST, HELLO, Bench

from steersman_engine.adapters.vllm.hook import Hook
from steersman_engine.adapters.vllm.segments import attributes_of, tag_of
from steersman_engine.adapters.vllm.steps import StepReader
from steersman_engine.link import OUTBOX_ITEMS
from steersman_policies.executor import BARREN_STEPS, Executor
from steersman_policies.messages import Lease, RequestReport, StepReport
from steersman_policies.plan import Dwell, Plan
from steersman_policies.prompt_statistics import PromptStatistics, statistics_of
from steersman_policies.segment_tree import SegmentTree
from steersman_policies.segmenter import Segmenter

PLAN = Plan(
    plan_id=1,
    policy="p",
    policy_version="1",
    fingerprint=DIGEST,
    mode="steer",
    batch_edges=(),
    context_edges=(),
    proposal_length={"unknown": ((2,),), "code": ((6,),), "chat": ((0,),)},
    fallback=(1,),
    dwell=Dwell(steps=0, seconds=0.0),
)


def request(request_id: str, segment: str = "", **fields: Any) -> Any:
    extra = {"steersman_segment": segment} if segment else None
    given: dict[str, Any] = {
        "request_id": request_id,
        "arrival_time": 50.0,
        "num_prompt_tokens": 10,
        "prompt_token_ids": [1, 2] * 5,
        "max_tokens": 40,
        "num_output_tokens": 4,
        "lora_request": None,
        "sampling_params": SimpleNamespace(extra_args=extra, temperature=0.0, structured_outputs=None),
        "get_finished_reason": lambda: "stop",
        "spec_token_ids": [],
        "resumable": False,
        "num_stale_output_tokens": 0,
        "drop_stale_output": False,
    }
    return SimpleNamespace(**{**given, **fields})


class World:
    """A hook on a link without a thread, and steps of a batch that only decodes."""

    def __init__(self, folder: Path, *, clamp: bool = True) -> None:
        self.faults: list[Exception] = []
        self.bench = Bench(folder, read=StepReader(lambda: 0.25, self.faults.append))
        self.link = self.bench.link
        self.hook = Hook(
            self.link,
            clamp=clamp,
            reachable_k=HELLO.reachable_k,
            clock=self.bench.clock,
            wall_clock=lambda: 51.0,
        )
        self.scheduler = SimpleNamespace(
            get_request_counts=lambda: (2, 0),
            _inflight_prefills=set(),
            requests={},
            running=[],
        )
        self.bench.turn()

    def lease(self, plan: Plan = PLAN) -> Executor:
        executor = self.link.executor
        assert executor.adopt(plan).applied
        assert executor.renew(Lease(plan_id=plan.plan_id), self.bench.clock())
        return executor

    def admit(self, **segments: str) -> None:
        for request_id, segment in segments.items():
            self.scheduler.requests[request_id] = request(request_id, segment)
            self.scheduler.running.append(self.scheduler.requests[request_id])
            self.hook.admitted(self.scheduler.requests[request_id])

    def output(self, **scheduled: int) -> Any:
        cached = list(scheduled)
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_spec_decode_tokens={},
            num_invalid_spec_tokens=None,
            preempted_req_ids=None,
            num_spec_tokens_to_schedule=4,
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=cached,
                resumed_req_ids=set(),
                num_computed_tokens=[20] * len(cached),
                num_output_tokens=[1] * len(cached),
            ),
        )

    def choose(self, **scheduled: int) -> Any:
        output = self.output(**scheduled)
        self.hook.begin()
        self.hook.choose(self.scheduler, output)
        return output

    def drafted(self) -> dict[str, int]:
        """Draft tokens that are left of six for each request."""
        for held in self.scheduler.requests.values():
            held.spec_token_ids = [5] * 6
        self.hook.limit()
        return {key: len(held.spec_token_ids) for key, held in self.scheduler.requests.items()}

    def finish(self, output: Any, **tokens: list[int]) -> None:
        result = SimpleNamespace(
            sampled_token_ids=list(tokens.values()),
            req_id_to_index={request_id: at for at, request_id in enumerate(tokens)},
        )
        step = self.hook.returned(self.scheduler, output, result)
        assert step is not None
        self.hook.processed(self.scheduler, step)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_deepest_k_of_the_batch_is_asked_for_and_each_request_is_cut_to_its_own(world: World) -> None:
    """One depth a step, many K."""
    world.lease()
    world.admit(a="code", b="chat", c="other")
    output = world.choose(a=1, b=1, c=1)
    assert output.num_spec_tokens_to_schedule == 6
    assert world.drafted() == {"a": 6, "b": 0, "c": 2}


def test_a_segment_that_is_alone_gets_its_own_depth(world: World) -> None:
    """Nobody pays for another segment's K."""
    world.lease()
    world.admit(a="chat")
    assert world.choose(a=1).num_spec_tokens_to_schedule == 0


def test_without_clamp_all_requests_keep_the_depth(tmp_path: Path) -> None:
    """Adaptive verification trims by itself."""
    world = World(tmp_path, clamp=False)
    world.lease()
    world.admit(a="code", b="chat")
    assert world.choose(a=1, b=1).num_spec_tokens_to_schedule == 6
    assert world.drafted() == {"a": 6, "b": 6}


@pytest.mark.parametrize("case", ["nobody", "shadow", "paused", "observe_only"])
def test_who_is_not_steered_keeps_vllms_own_number(world: World, case: str) -> None:
    """And the report says which number that was."""
    if case != "nobody":
        mode = "shadow" if case == "shadow" else "steer"
        executor = world.lease(msgspec.structs.replace(PLAN, mode=mode))
        executor.paused = case == "paused"
        if case == "observe_only":
            executor.hello = msgspec.structs.replace(HELLO, observe_only="why")
    world.admit(a="code", b="chat")
    output = world.choose(a=1, b=1)
    assert output.num_spec_tokens_to_schedule == 4
    world.finish(output, a=[1], b=[1])
    (report,) = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert report.commanded == {"code": 4, "chat": 4}
    assert report.drafting_depth == 4


def test_the_load_leaves_out_requests_that_go_on_prefilling(world: World) -> None:
    """They will not be drafted for; one whose prompt ends in this step will."""
    world.lease()
    world.admit(a="chat", b="code", c="code")
    output = world.output(a=1, b=8, c=8)
    output.scheduled_cached_reqs.num_output_tokens = [1, 0, 0]
    output.scheduled_new_reqs = [SimpleNamespace(req_id="b"), SimpleNamespace(req_id="c")]
    world.scheduler._inflight_prefills = _Hashable.of(("b", 8, 100), ("c", 8, 16))
    world.hook.begin()
    world.hook.choose(world.scheduler, output)
    world.finish(output, a=[1], b=[], c=[1])
    (report,) = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert (report.requests_drafting, report.prefill_tokens, report.drafting_depth) == (2, 16, 6)
    assert report.committed_tokens == 2


class _Hashable(SimpleNamespace):
    """vLLM keeps requests in sets."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    @classmethod
    def of(cls, *facts: tuple[str, int, int]) -> "set[_Hashable]":
        return {cls(request_id=i, num_computed_tokens=done, num_tokens=all_) for i, done, all_ in facts}


def test_the_end_of_a_request_comes_after_the_step_that_brought_its_last_token(world: World) -> None:
    """vLLM frees a request while it processes that step."""
    world.admit(a="chat")
    output = world.choose(a=1)
    result = SimpleNamespace(sampled_token_ids=[[1]], req_id_to_index={"a": 0})
    step = world.hook.returned(world.scheduler, output, result)
    assert step is not None
    world.hook.ended(world.scheduler.requests["a"])
    world.hook.processed(world.scheduler, step)
    kinds = [type(body).__name__ for body in world.bench.turn(0.1) if type(body).__name__ != "Hello"]
    assert kinds == ["StepReport", "RequestReport"]


def test_seconds_of_a_step_run_from_the_return_of_the_one_before(world: World) -> None:
    """While there is work the engine is never idle; after a pause a step begins when it is scheduled."""
    clock = world.bench.clock
    world.admit(a="chat")
    reports: list[StepReport] = []
    for gap_s in (0.0, 0.25):
        clock.now_s += gap_s
        output = world.choose(a=1)
        clock.now_s += 1.0
        world.finish(output, a=[1])
    world.scheduler.get_request_counts = lambda: (0, 0)
    output = world.choose(a=1)
    clock.now_s += 1.0
    world.finish(output, a=[1])
    clock.now_s += 50.0
    output = world.choose(a=1)
    clock.now_s += 1.0
    world.finish(output, a=[1])
    reports = [body for body in world.bench.turn() if isinstance(body, StepReport)]
    assert [report.verify_s for report in reports] == pytest.approx([1.0] * 4)
    assert [report.other_s for report in reports] == pytest.approx([0.0, 0.25, 0.0, 0.0])


def test_a_fault_on_the_other_thread_is_raised_in_the_next_step(world: World) -> None:
    """Whoever cannot report must not steer."""
    world.admit(a="chat")
    world.hook.fault = RuntimeError("planted")
    with pytest.raises(RuntimeError, match="planted"):
        world.choose(a=1)


def test_output_that_comes_back_out_of_order_is_a_surprise(world: World) -> None:
    """Nothing may be attributed to the wrong step."""
    world.admit(a="chat")
    world.choose(a=1)
    with pytest.raises(RuntimeError, match="in order"):
        world.finish(world.output(a=1), a=[1])


def test_a_k_that_vllm_is_not_ready_for_is_a_surprise(world: World) -> None:
    """A plan is checked when it is adopted; this is the last line."""
    executor = world.lease()
    executor.plan = msgspec.structs.replace(PLAN, proposal_length={"unknown": ((5,),)})
    world.admit(a="chat")
    with pytest.raises(RuntimeError, match="reachable"):
        world.choose(a=1)


def test_limits_end_with_the_plan_that_set_them_and_come_back_with_it(world: World) -> None:
    """A pause in between leaves all drafts alone, and the same decision cuts again afterwards."""
    executor = world.lease()
    world.admit(a="code", b="chat")
    world.choose(a=1, b=1)
    world.choose(a=1, b=1)
    assert world.drafted() == {"a": 6, "b": 0}
    executor.paused = True
    assert world.choose(a=1, b=1).num_spec_tokens_to_schedule == 4
    assert world.drafted() == {"a": 6, "b": 6}
    executor.paused = False
    world.choose(a=1, b=1)
    assert world.choose(a=1, b=1).num_spec_tokens_to_schedule == 6
    assert world.drafted() == {"a": 6, "b": 0}


def test_a_report_says_how_long_contexts_are_and_how_many_wait(world: World) -> None:
    """The load that a plan is looked up with is the load that is told."""
    asked: list[Any] = []
    decide = world.link.decide
    world.link.decide = lambda load: asked.append(load) or decide(load)  # type: ignore[method-assign, func-returns-value]
    world.scheduler.get_request_counts = lambda: (2, 7)
    world.admit(a="code", b="chat")
    output = world.output(a=1, b=1)
    output.scheduled_cached_reqs.num_computed_tokens = [10, 40]
    world.hook.choose(world.scheduler, output)
    world.finish(output, a=[1], b=[1])
    (report,) = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert (asked[0].mean_context_tokens, asked[0].waiting) == (25.0, 7)
    assert (report.context_tokens, report.waiting) == (50, 7)


def test_the_guard_hears_of_steps_that_bring_nothing(world: World) -> None:
    """After so many of them it switches drafting off."""
    world.lease()
    world.admit(a="code")
    for _ in range(BARREN_STEPS):
        output = world.choose(a=1)
        assert output.num_spec_tokens_to_schedule == 6
        world.finish(output, a=[])
    assert world.choose(a=1).num_spec_tokens_to_schedule == HELLO.k_floor


def test_drafts_belong_to_the_next_step_only(world: World) -> None:
    """What came before the last step explains nothing in this one."""
    world.lease()
    world.admit(a="code")
    world.finish(world.choose(a=1), a=[1])
    world.hook.drafted(SimpleNamespace(req_ids=["a"], draft_token_ids=[[]]))
    for _ in range(2):
        world.finish(world.choose(a=1), a=[1])
    reports = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert [dict(group.not_drafted) for report in reports[1:] for group in report.groups] == [
        {"no_match": 1},
        {"length_limit": 1},
    ]


def test_a_workers_list_of_ids_may_change_afterwards(world: World) -> None:
    """One in the same process keeps it up to date in place."""
    world.lease()
    world.admit(a="code")
    world.finish(world.choose(a=1), a=[1])
    ids = ["a"]
    world.hook.drafted(SimpleNamespace(req_ids=ids, draft_token_ids=[[]]))
    world.finish(world.choose(a=1), a=[1])
    ids.append("b")
    reports = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert not world.faults
    assert [dict(group.not_drafted) for group in reports[1].groups] == [{"no_match": 1}]


@pytest.mark.parametrize("dropped", [False, True])
def test_output_of_a_preempted_request_counts_unless_vllm_throws_it_away(world: World, dropped: bool) -> None:
    """vLLM delivers what was in flight, but for requests that have begun anew meanwhile."""
    world.lease()
    world.admit(a="code", b="code")
    output = world.choose(a=1, b=1)
    later = world.output(b=1)
    later.preempted_req_ids = {"a"}
    world.hook.choose(world.scheduler, later)
    preempted = world.scheduler.requests["a"]
    preempted.num_stale_output_tokens, preempted.drop_stale_output = 1, dropped
    world.finish(output, a=[1], b=[1])
    (report,) = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert report.committed_tokens == (1 if dropped else 2)


def test_streamed_input_makes_vllm_throw_output_away(world: World) -> None:
    """Its request stops and goes on without ever ending."""
    world.lease()
    held = request("a", "code", resumable=True, num_stale_output_tokens=1, drop_stale_output=True)
    world.scheduler.requests["a"] = held
    world.scheduler.running.append(held)
    world.hook.admitted(held)
    world.finish(world.choose(a=1), a=[1])
    (report,) = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert report.committed_tokens == 0


def test_waiting_for_something_outside_is_no_time_of_the_engine(world: World) -> None:
    """A request that waits for more input keeps nobody busy."""
    clock = world.bench.clock
    world.admit(a="chat")
    world.finish(world.choose(a=1), a=[1])
    world.choose()
    clock.now_s += 60.0
    world.finish(world.choose(a=1), a=[1])
    reports = [body for body in world.bench.turn() if isinstance(body, StepReport)]
    assert reports[-1].other_s == 0.0


def test_a_burst_of_requests_loses_none_of_them(world: World) -> None:
    """Who is admitted must be known for as long as it lives."""
    for number in range(2 * OUTBOX_ITEMS):
        world.admit(**{f"r{number}": "chat"})
    world.bench.turn()
    world.finish(world.choose(r0=1, r4095=1), r0=[1], r4095=[1])
    (report,) = [body for body in world.bench.turn(0.1) if isinstance(body, StepReport)]
    assert (report.decode_requests, world.bench.counters()["dropped"]) == (2, 0)


# --- segments ---------------------------------------------------------------------------------


def test_a_tag_is_read_from_the_extra_arguments_and_then_from_the_request_id() -> None:
    """Never from the prompt."""
    assert tag_of(request("chatcmpl-segment:code:17", "chat")) == "chat"
    assert tag_of(request("chatcmpl-segment:code:17-abc")) == "code"
    assert tag_of(request("segment:code/py:17")) == "code/py"
    assert tag_of(request("chatcmpl-17")) == ""
    assert tag_of(request("my-segment:code:17")) == ""


def test_rules_may_look_at_what_the_request_is_not_at_what_it_says() -> None:
    """Sampling, constraint, LoRA, tenant and route."""
    sampling = SimpleNamespace(
        extra_args={"steersman_tenant": "t", "steersman_route": 7},
        temperature=0.7,
        structured_outputs=SimpleNamespace(json={"type": "object"}, regex=None),
    )
    found = attributes_of(
        request("a", sampling_params=sampling, lora_request=SimpleNamespace(lora_name="sql"))
    )
    assert found == {"tenant": "t", "lora": "sql", "sampling": "sampled", "structured_output": "json"}
    assert attributes_of(request("a")) == {"sampling": "greedy"}


def test_a_request_without_a_tag_is_sorted_by_the_plans_tree(world: World) -> None:
    """By statistics of its token ids, of which the report of its end holds nothing else."""
    tree = SegmentTree((3, -1, -1), (0.25, 0.0, 0.0), (1, -1, -1), (2, -1, -1), ("", "chat", "code"))
    world.lease(msgspec.structs.replace(PLAN, segmenter=Segmenter(1, (), tree)))
    copies = request("a", prompt_token_ids=[7, 8] * 40, num_prompt_tokens=80)
    plain = request("b", prompt_token_ids=list(range(80)), num_prompt_tokens=80)
    embedded = request("c", prompt_token_ids=None)
    for held in (copies, plain, embedded):
        world.hook.admitted(held)
        world.hook.ended(held)
    reports = [record for record in world.bench.turn() if isinstance(record, RequestReport)]
    assert [report.segment for report in reports] == ["code", "chat", "chat"]
    assert reports[0].statistics == statistics_of([7, 8] * 40, max_output_tokens=40, temperature=0.0)
    assert reports[2].statistics == PromptStatistics(0, 32)
    assert world.faults == []
