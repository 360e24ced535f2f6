"""Every installed policy keeps the contract, on views that nobody would think of."""

from collections.abc import Callable
from typing import ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman_policies.conformance import checks, example_view, example_views
from steersman_policies.plan import Plan
from steersman_policies.policy import Memory, available, load
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import SegmentBelief, StepCost, View
from steersman_policies.zoo.fixed import Policy as Fixed

shares = st.floats(0.0, 1.0)
seconds = st.floats(0.0, 1e4)


@st.composite
def rows(draw: st.DrawFn, length: int) -> tuple[float, ...]:
    return tuple(draw(st.lists(seconds, min_size=length, max_size=length)))


@st.composite
def beliefs(draw: st.DrawFn, name: str, k_max: int) -> SegmentBelief:
    by_position = st.lists(shares, min_size=k_max, max_size=k_max).map(tuple)
    return SegmentBelief(
        segment=name,
        share=draw(shares),
        weight=draw(st.sampled_from((0.0, 10.0, 1e6))),
        coverage=draw(shares),
        acceptance=draw(by_position),
        acceptance_low=draw(by_position),
        drafted_share=draw(by_position),
    )


@st.composite
def costs(draw: st.DrawFn, k_max: int, prefill_tokens: int) -> StepCost:
    tokens = tuple(sorted(draw(st.sets(st.integers(0, 4096), min_size=1, max_size=5))))
    contexts = tuple(sorted(draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=3))))
    prefills = (0, prefill_tokens) if prefill_tokens else (0,)
    requests = tuple(sorted(draw(st.sets(st.integers(1, 256), min_size=1, max_size=3))))
    return StepCost(
        tokens_grid=tokens,
        context_grid_tokens=contexts,
        prefill_grid_tokens=prefills,
        verify_s=tuple(tuple(draw(rows(len(tokens))) for _ in contexts) for _ in prefills),
        requests_grid=requests,
        draft_s=tuple(draw(rows(len(requests))) for _ in range(k_max + 1)),
        other_s=draw(rows(len(requests))),
        relative_error=draw(shares),
    )


@st.composite
def views(draw: st.DrawFn) -> View:
    reachable = tuple(sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=6))))
    k_max, max_batch = max(reachable), draw(st.integers(1, 64))
    base = example_view(
        acceptance=0.5,
        weight=1.0,
        max_batch=max_batch,
        reachable_k=reachable,
        per_request_k=draw(st.booleans()),
    )
    names = [UNKNOWN_SEGMENT, *(f"s{i}" for i in range(draw(st.integers(0, 4))))]
    prefill_tokens = draw(st.sampled_from((0, 1, 500)))
    return msgspec.structs.replace(
        base,
        cost=draw(costs(k_max, prefill_tokens)),
        segments=tuple(draw(beliefs(name, k_max)) for name in names),
        mean_context_tokens=draw(st.floats(0.0, 1e6)),
        prefill_tokens=float(prefill_tokens),
        batch_edges=tuple(sorted(draw(st.sets(st.integers(1, 64), max_size=3)))),
        context_edges=tuple(sorted(draw(st.sets(st.integers(0, 10**5), max_size=2)))),
        mode=draw(st.sampled_from(("shadow", "steer"))),
    )


@pytest.mark.parametrize("name", available())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(view=views())
def test_every_policy_conforms(name: str, view: View) -> None:
    """Each check holds for each installed policy on any view that keeps its contract."""
    for _, check in checks(load(name)):
        check(view)


@pytest.mark.parametrize("name", available())
def test_every_policy_conforms_on_the_examples(name: str) -> None:
    """The views that authors start with exercise every check."""
    for view in example_views():
        for _, check in checks(load(name)):
            check(view)


def changed(**changes: object) -> Callable[[View, Memory, float], tuple[Plan, Memory]]:
    """The plan of `fixed`, with a fault."""

    def plan(view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        made, _ = Fixed().plan(view, memory, u)
        return msgspec.structs.replace(made, **changes), memory

    return plan


class Faulty:
    """A policy whose plan is what a test makes of it."""

    version: ClassVar[str] = "1"

    def __init__(self, plan: Callable[[View, Memory, float], tuple[Plan, Memory]]) -> None:
        self.plan = plan


calls = iter(range(10**9))


def forgetful(view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
    made, _ = Fixed().plan(view, memory, u)
    return made, {"pair": (1, 2)}  # a tuple comes back from JSON as a list


def moody(view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
    made, _ = Fixed().plan(view, memory, u)
    return made, {"calls": next(calls)}


def meddling(view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
    view.slo["code"] = None  # type: ignore[assignment]
    return Fixed().plan(msgspec.structs.replace(view, slo={}), memory, u)


def fragile(view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
    if view.segments[0].coverage == 1.0:
        return changed(fallback=())(view, memory, u)
    return Fixed().plan(view, memory, u)


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        (changed(fallback=(9, 9, 9, 9, 9)), "plan is accepted by the engine"),
        (changed(fingerprint="other"), "plan is accepted by the engine"),
        (changed(plan_id=0), "plan is made for the view"),
        (changed(mode="shadow"), "plan is made for the view"),
        (moody, "same input, same output"),
        (forgetful, "plan and memory survive JSON"),
        (meddling, "view is left alone"),
        (fragile, "acceptance 0 and 1 are fine"),
    ],
)
def test_each_check_finds_its_fault(
    fault: Callable[[View, Memory, float], tuple[Plan, Memory]], found_by: str
) -> None:
    """A check that cannot fail is worthless: a planted fault fails the check that looks for it."""
    check = dict(checks(Faulty(fault)))[found_by]
    with pytest.raises(AssertionError):
        check(example_view(acceptance=0.5, weight=10.0))


def test_a_clock_in_a_policy_is_found(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A policy module that imports a clock, or uses a generator of its own, fails."""
    for index, line in enumerate(("import time", "from random import random", "numpy.random")):
        source = f"{line}\n" if "import" in line else f"class numpy:\n    random = 1\n\n\n{line}\n"
        source += "class Policy:\n    version = '1'\n"
        (tmp_path / f"clocked{index}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        module = __import__(f"clocked{index}")
        with pytest.raises(AssertionError, match="uses"):
            dict(checks(module.Policy()))["no clock, no chance of its own"](example_views()[0])
