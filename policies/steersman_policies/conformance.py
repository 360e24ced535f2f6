"""What every policy must do, as checks that its author can run.

Each check takes a view and raises AssertionError with what went wrong. `example_views` are there to
start with; a property-testing library finds nastier ones.

>>> from steersman_policies.policy import load
>>> for view in example_views():
...     for name, check in checks(load("fixed")):
...         check(view)
"""

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from steersman_policies.messages import Fingerprint, Hello
from steersman_policies.plan import Plan, refusal
from steersman_policies.policy import Memory, Planner
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import SegmentBelief, StepCost, View

Check: TypeAlias = Callable[[View], None]

CLOCKS_AND_CHANCE = frozenset(
    {"time", "datetime", "random", "secrets", "uuid", "os", "socket", "threading", "asyncio"}
)
"""A policy that uses one of these does not replay."""


def checks(policy: Planner) -> Iterator[tuple[str, Check]]:
    """Name and check, one by one."""
    yield "plan is accepted by the engine", lambda view: _is_accepted(policy, view)
    yield "plan is made for the view", lambda view: _is_made_for(policy, view)
    yield "same input, same output", lambda view: _repeats(policy, view)
    yield "plan and memory survive JSON", lambda view: _survives_json(policy, view)
    yield "view is left alone", lambda view: _leaves_alone(policy, view)
    yield "acceptance 0 and 1 are fine", lambda view: _takes_extremes(policy, view)
    yield "no clock, no chance of its own", lambda _: _imports_neither(policy)


def run(policy: Planner, view: View) -> tuple[Plan, Memory]:
    """Three plans in a row, each seeing the one before; the last plan and memory."""
    memory: Memory = {}
    plan: Plan | None = None
    for index, u in enumerate((0.0, 0.5, 1.0 - 2.0**-53)):
        now = msgspec.structs.replace(view, previous=plan, next_plan_id=view.next_plan_id + index)
        plan, memory = policy.plan(now, memory, u)
    assert plan is not None
    return plan, memory


def _is_accepted(policy: Planner, view: View) -> None:
    for shown in (view, msgspec.structs.replace(view, prefill_tokens=0.0)):
        plan, _ = run(policy, shown)
        reason = refusal(plan, view.hello, view.fingerprint)
        assert reason is None, reason
        msgspec.convert(msgspec.to_builtins(plan), Plan)  # the ranges of the contract


def _is_made_for(policy: Planner, view: View) -> None:
    plan, _ = policy.plan(view, {}, 0.5)
    assert plan.plan_id == view.next_plan_id, f"plan_id: {plan.plan_id}, expected {view.next_plan_id}"
    assert plan.mode == view.mode, f"mode: {plan.mode}, expected {view.mode}"
    assert plan.policy, "policy: must not be empty"
    assert plan.policy_version == policy.version, f"policy_version: {plan.policy_version}"


def _repeats(policy: Planner, view: View) -> None:
    first, second = run(policy, view), run(policy, view)
    assert first == second, "two runs on one view differ"


def _survives_json(policy: Planner, view: View) -> None:
    plan, memory = run(policy, view)
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert again == plan, "the plan changes in JSON"
    remembered = msgspec.json.decode(msgspec.json.encode(memory))
    assert remembered == dict(memory), "the memory changes in JSON"
    after = policy.plan(view, remembered, 0.5)
    assert after == policy.plan(view, memory, 0.5), "a memory that went through JSON plans differently"


def _leaves_alone(policy: Planner, view: View) -> None:
    before = msgspec.json.encode(view)
    run(policy, view)
    assert msgspec.json.encode(view) == before, "the view was changed"


def _takes_extremes(policy: Planner, view: View) -> None:
    for share in (0.0, 1.0):
        flat = (share,) * view.hello.k_max
        segments = tuple(
            msgspec.structs.replace(
                s, coverage=share, acceptance=flat, acceptance_low=flat, drafted_share=flat
            )
            for s in view.segments
        )
        extreme = msgspec.structs.replace(view, segments=segments)
        plan, _ = run(policy, extreme)
        reason = refusal(plan, view.hello, view.fingerprint)
        assert reason is None, f"at acceptance {share}: {reason}"
        if plan.explore is not None:
            assert math.isfinite(plan.explore.epsilon), "explore.epsilon: not finite"


def _imports_neither(policy: Planner) -> None:
    module = sys.modules[type(policy).__module__]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr == "random" else []  # such as numpy.random
        found = {name.partition(".")[0] for name in names} & CLOCKS_AND_CHANCE
        assert not found, f"{module.__name__} uses {', '.join(sorted(found))}"


def example_views() -> list[View]:
    """A start, a quiet engine, a busy one with stepped costs, and one that takes few K."""
    return [
        example_view(acceptance=0.5, weight=0.0),
        example_view(acceptance=0.9, weight=500.0),
        example_view(acceptance=0.7, weight=500.0, max_batch=64, verify_s=_stairs),
        example_view(acceptance=0.8, weight=50.0, reachable_k=(0, 1, 3, 7), per_request_k=False),
        example_view(acceptance=0.8, weight=50.0, reachable_k=(2, 4), max_batch=1),
    ]


def example_view(
    *,
    acceptance: float,
    weight: float,
    max_batch: int = 16,
    reachable_k: tuple[int, ...] = tuple(range(9)),
    per_request_k: bool = True,
    verify_s: Callable[[int], float] = lambda tokens: 0.05 + 0.002 * tokens,
) -> View:
    """A view of two segments, of which `chat` accepts half as much as the unknown one."""
    k_max = max(reachable_k)
    hello = Hello(
        fingerprint=Fingerprint("e", "1", "t", "d", "1", "ngram", "none", "float32", "cpu", "eager"),
        k_max=k_max,
        reachable_k=reachable_k,
        k_floor=min(reachable_k),
        launch_k=k_max,
        max_batch=max_batch,
        per_request_k=per_request_k,
        draft_timing=True,
        confidence=False,
        drafter_state_survives_off=True,
    )
    grid = tuple(sorted({1, 2, 4, 8, 16, 32, 64, max_batch * (k_max + 1), max_batch * (k_max + 1) + 256}))
    rows = tuple(verify_s(tokens) for tokens in grid)
    cost = StepCost(
        tokens_grid=grid,
        context_grid_tokens=(0, 4096),
        prefill_grid_tokens=(0, 100),
        verify_s=((rows, tuple(1.1 * s for s in rows)), (rows, rows)),
        requests_grid=(1, max_batch) if max_batch > 1 else (1,),
        draft_s=tuple(((0.001 * depth),) * (2 if max_batch > 1 else 1) for depth in range(k_max + 1)),
        other_s=(0.001,) * (2 if max_batch > 1 else 1),
        relative_error=0.05,
    )
    return View(
        now_s=10.0,
        hello=hello,
        fingerprint="0123456789abcdef",
        mode="steer",
        next_plan_id=7,
        seed=1,
        cost=cost,
        segments=(
            _segment("chat", 0.4, weight, 0.5 * acceptance, k_max),
            _segment(UNKNOWN_SEGMENT, 0.6, weight, acceptance, k_max),
        ),
        mean_context_tokens=300.0,
        prefill_tokens=100.0,
        batch_edges=tuple(edge for edge in (1, 2, 4, 8, 16, 32) if edge < max_batch),
        context_edges=(512,),
    )


def _segment(name: str, share: float, weight: float, acceptance: float, k_max: int) -> SegmentBelief:
    return SegmentBelief(
        segment=name,
        share=share,
        weight=weight,
        coverage=0.8,
        acceptance=(acceptance,) * k_max,
        acceptance_low=(0.8 * acceptance,) * k_max,
        drafted_share=(1.0,) * k_max,
    )


def _stairs(tokens: int) -> float:
    """Seconds that jump at graph buckets of 32 tokens."""
    return 0.05 + 0.02 * (tokens // 32)
