"""The benchmark of the decision measures what it says, and fails where the executor is at fault."""

import json
import time
from typing import Any

import pytest

from steersman_engine.bench import decision
from steersman_policies import prompt_statistics
from steersman_policies.executor import Decision, Executor, Load


def test_it_is_one_json_object_with_units() -> None:
    """With the keys that were promised, whatever the figures are on this machine."""
    found = json.loads(json.dumps(decision.run(calls=2_000)))
    assert found["calls"] == 2_000
    assert 0.0 < found["p50_us"] <= found["p99_us"]
    assert {"machine", "version", "passed", "missed", "memory_growth_bytes", "segments"} <= set(found)


def test_the_plan_is_replaced_every_hundred_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans are adopted, and every decision follows the one in force."""
    seen: list[int] = []
    decide = Executor.decide

    def spy(self: Executor, load: Load, now_s: float) -> Decision:
        made = decide(self, load, now_s)
        seen.append(made.plan_id)
        return made

    monkeypatch.setattr(Executor, "decide", spy)
    decision.run(calls=1_000)
    assert seen == [number // 100 + 1 for number in range(1_000)]


def test_a_slow_decision_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call in twenty that waits is enough."""
    decide = Executor.decide

    def slow(self: Executor, load: Load, now_s: float) -> Decision:
        if load.step % 20 == 0:
            time.sleep(0.0002)
        return decide(self, load, now_s)

    monkeypatch.setattr(Executor, "decide", slow)
    result = decision.run(calls=2_000)
    assert not result["passed"]
    assert any(line.startswith("p99_us") for line in result["missed"])


def test_a_leak_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred bytes a call are enough."""
    decide = Executor.decide
    leaked: list[Any] = []

    def leaky(self: Executor, load: Load, now_s: float) -> Decision:
        leaked.append(bytes(100))
        return decide(self, load, now_s)

    monkeypatch.setattr(Executor, "decide", leaky)
    result = decision.run(calls=10_000)
    assert not result["passed"]
    assert any(line.startswith("object_growth") for line in result["missed"])


def test_a_slow_admission_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics that look at the whole of a long prompt cost too much."""
    monkeypatch.setattr(prompt_statistics, "WINDOW_TOKENS", 8_192)
    monkeypatch.setattr(decision, "ADMISSIONS", 100)
    result = decision.run(calls=1_000)
    assert set(result["admission_us_by_prompt_tokens"]) == {"64", "1024", "32768"}
    assert any(line.startswith("admission_p50_us") for line in result["missed"])
