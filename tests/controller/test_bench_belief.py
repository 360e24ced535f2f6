"""The benchmark of the belief measures what it says, and fails where something is slow or leaks."""

import json
import time
from typing import Any

import pytest

from steersman_controller.belief.belief import Belief
from steersman_controller.bench import belief as bench
from steersman_controller.bench import ingest
from steersman_controller.sidecar.server import Sidecar
from steersman_policies.messages import StepReport
from steersman_policies.policy import Memory
from steersman_policies.view import View
from steersman_policies.zoo.goodput import Policy


def measured(**more: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(bench.run(**{"reports": 2_000, "frames": 1_000} | more)))
    return found


def missed(found: dict[str, Any], name: str) -> bool:
    return any(line.startswith(name) for line in found["missed"])


def test_it_is_one_json_object_with_units() -> None:
    """Every figure is there, every frame that was sent was learned from, and a verdict is given."""
    found = measured()
    assert found["reports"] == 2_000
    assert found["ingest"]["learned"] == 1_000
    assert found["ingest"]["lost"] == 0
    assert found["observe_us"]["mean"] > 0.0
    assert found["plan_incremental_ms"]["mean"] > 0.0
    assert found["compile_full_ms"] > 0.0
    assert {"machine", "version", "passed", "missed", "memory_growth_bytes", "decode_us"} <= set(found)


def test_slow_learning_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folding that waits a little for each report is too slow."""
    fold = Belief.fold

    def slow(self: Belief) -> None:
        if self._waiting:
            time.sleep(0.0001 * len(self._waiting))
        fold(self)

    monkeypatch.setattr(Belief, "fold", slow)
    assert missed(measured(), "observe_us.mean")


def test_slow_planning_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that takes 25 ms misses both marks of planning."""
    plan = Policy.plan

    def slow(self: Policy, view: View, memory: Memory, u: float) -> object:
        time.sleep(0.025)
        return plan(self, view, memory, u)

    monkeypatch.setattr(Policy, "plan", slow)
    found = measured(reports=400)
    assert missed(found, "plan_incremental_ms")
    assert missed(found, "compile_full_ms")


def test_a_leak_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object per report that is never let go shows."""
    observe, kept = Belief.observe, []

    def leaky(self: Belief, report: StepReport) -> None:
        kept.append(object())
        observe(self, report)

    monkeypatch.setattr(Belief, "observe", leaky)
    assert missed(measured(), "object_growth")


def test_a_slow_server_and_a_lost_frame_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is that of the whole way from the socket, and a report that does not get through counts."""
    poll = Sidecar.poll

    def slow(self: Sidecar, timeout_s: float) -> int:
        handled = poll(self, timeout_s)
        time.sleep(0.0002 * handled)
        return handled

    monkeypatch.setattr(Sidecar, "poll", slow)
    assert ingest.measure(1_000)["ingest_per_s"] < 15_000.0
