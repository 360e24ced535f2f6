"""The benchmark of the link measures what it says, and fails where the link is at fault."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from steersman_engine.bench import hook, link
from steersman_engine.bench.driven import DrivenEngine
from steersman_engine.bench.expiry import FALLBACK_K, PLAN_K, Judge, real_trials, virtual_trials
from steersman_engine.bench.hook import difference
from steersman_engine.link import Link
from steersman_engine.rows import StepRows
from steersman_engine.steering import Launch
from steersman_policies.executor import Executor
from steersman_policies.messages import Lease

GOOD: dict[str, Any] = {
    "added_us": {state: {"p50": 10.0, "p99": 50.0} for state in hook.STATES},
    "step_difference_fraction": 0.002,
    "decisions_after_expiry": 0,
    "trials_without_fallback": 0,
}


def stand_in(endpoint: str, _: Path) -> list[str]:
    return [sys.executable, "-m", "steersman_engine.bench.stand_in", endpoint, "6", "1", "1.0"]


def measure(**change: Any) -> hook.HookResult:
    fields: dict[str, Any] = {"steps": 60, "groups": 2, "step_s": 0.001, "command": stand_in, **change}
    return hook.measure(64, random.Random(1), **fields)


@pytest.fixture
def immortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a lease that never ends."""

    def renew(executor: Executor, lease: Lease, now_s: float) -> bool:
        executor.lease_until_s = float("inf")
        return True

    monkeypatch.setattr(Executor, "renew", renew)


def test_no_decision_outlives_its_lease_on_a_virtual_clock(tmp_path: Path) -> None:
    """And the fallback comes within the lease and a frame's way after the kill."""
    trials = virtual_trials(50, random.Random(3), tmp_path)
    assert sum(trial.decisions_after_expiry for trial in trials) == 0
    after_s = [trial.fallback_after_s for trial in trials]
    assert all(s is not None and 0.8 < s < 1.1 for s in after_s)


@pytest.mark.usefixtures("immortal")
def test_a_link_that_ignores_the_lease_is_caught_on_a_virtual_clock(tmp_path: Path) -> None:
    """In every trial, by a judge who does not ask the executor; and the benchmark fails."""
    trials = virtual_trials(20, random.Random(3), tmp_path)
    assert all(trial.decisions_after_expiry > 0 and trial.fallback_after_s is None for trial in trials)
    result = {**GOOD, **link._about_leases(trials, [])}
    assert not link.verdict(result)["passed"]


def test_no_decision_outlives_its_lease_on_real_processes(tmp_path: Path) -> None:
    """Each trial kills a process and sees the fallback."""
    trials = real_trials(3, random.Random(1), tmp_path, lease_s=0.4)
    assert sum(trial.decisions_after_expiry for trial in trials) == 0
    assert all(trial.fallback_after_s is not None for trial in trials)


@pytest.mark.usefixtures("immortal")
def test_a_link_that_ignores_the_lease_is_caught_on_real_processes(tmp_path: Path) -> None:
    """The plan's K is still asked for when no lease is left."""
    trials = real_trials(2, random.Random(1), tmp_path, lease_s=0.3)
    assert all(trial.decisions_after_expiry > 0 for trial in trials)


def test_the_judge_looks_at_the_drafts_asked_for() -> None:
    """At the very end of the lease the plan's K is too late; the fallback is timed from the kill."""
    judge = Judge(lease_s=1.0)
    judge.see(PLAN_K, 5.9, lease_read_s=5.0)
    judge.killed(5.95)
    judge.see(PLAN_K, 6.0, lease_read_s=5.0)
    judge.see(FALLBACK_K, 6.2, lease_read_s=5.0)
    trial = judge.verdict(counted_by_link=0)
    assert trial.decisions_after_expiry == 1
    assert trial.fallback_after_s == pytest.approx(0.25)
    assert Judge(1.0).verdict(counted_by_link=3).decisions_after_expiry == 3


def test_a_plan_that_was_never_followed_proves_nothing() -> None:
    """Such a trial has no fallback to time, and the benchmark does not pass with it."""
    judge = Judge(lease_s=1.0)
    judge.killed(1.0)
    judge.see(FALLBACK_K, 1.5, lease_read_s=None)
    trial = judge.verdict(0)
    assert trial.fallback_after_s is None
    assert not link.verdict({**GOOD, **link._about_leases([trial], [])})["passed"]


def test_a_blocking_put_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that waits for somebody shows in every state and in the step difference."""

    def record(self: Link, rows: StepRows) -> None:
        time.sleep(0.003)

    monkeypatch.setattr(Link, "record", record)
    result = measure()
    assert set(result.added_us) == set(hook.STATES)
    assert all(added.p50 >= 3_000.0 for added in result.added_us.values())
    assert result.difference.fraction > link.MARKS["step_difference_fraction"]
    verdict = link.verdict({**GOOD, **link._about_hook([result, result])})
    assert not verdict["passed"]
    assert any("alive.p50" in line for line in verdict["missed"])


def test_a_sidecar_that_does_not_start_is_said() -> None:
    """With its last words."""
    with pytest.raises(RuntimeError, match="code 3: no such thing"):
        measure(command=lambda *_: [sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)"])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"added_us": {**GOOD["added_us"], "stopped": {"p50": 15.1, "p99": 50.0}}}, "stopped.p50"),
        ({"added_us": {**GOOD["added_us"], "absent": {"p50": 10.0, "p99": 60.1}}}, "absent.p99"),
        ({"added_us": {**GOOD["added_us"], "alive": {"p50": float("nan"), "p99": 1.0}}}, "alive.p50"),
        ({"step_difference_fraction": 0.0051}, "step_difference_fraction"),
        ({"decisions_after_expiry": 1}, "decisions_after_expiry"),
        ({"trials_without_fallback": 1}, "trials_without_fallback"),
    ],
)
def test_every_mark_counts(change: dict[str, Any], word: str) -> None:
    """One miss is enough, and it is named."""
    assert link.verdict(GOOD) == {"passed": True, "missed": []}
    verdict = link.verdict({**GOOD, **change})
    assert not verdict["passed"]
    assert word in verdict["missed"][0]


def test_the_difference_is_paired_within_groups() -> None:
    """A drift that hits both arms alike cancels out."""
    off, on = [], []
    for index, steered in enumerate([False, True, True, False] * 10):
        (on if steered else off).append(0.007 + index * 1e-5 + (35e-6 if steered else 0.0))
    found = difference(off, on)
    assert found.low == found.fraction == found.high
    assert found.fraction == pytest.approx(35e-6 / (found.step_ms / 1e3), rel=1e-3)


def test_the_driven_engine_does_the_same_work_in_both_arms() -> None:
    """Without steering nothing is added; with it the next step drafts what was decided."""
    engine = DrivenEngine(16, random.Random(1), 0.0)
    assert engine.step(None)[0] == 0.0
    assert engine.step(Launch(3))[0] > 0.0
    assert not engine.steered


def test_the_whole_benchmark_is_one_json_object() -> None:
    """With the keys that were promised, whatever the figures are on this machine."""
    result = link.run(steps=20, groups=2, step_s=0.001, trials=5, real_trials=1, command=stand_in)
    found = json.loads(json.dumps(result))
    for state in hook.STATES:
        assert set(found["added_us"][state]) == set(found["added_us"]["at_256"][state]) == {"p50", "p99"}
    assert {"machine", "version", "passed", "step_difference_fraction", "floor_us"} <= set(found)
    assert (found["decisions_after_expiry"], found["trials"], found["real_trials"]) == (0, 5, 1)
    assert 0.0 <= found["fallback_after_s"]["p50"] <= found["fallback_after_s"]["max"] < 3.0


@pytest.mark.slow
def test_the_real_sidecar_steers_the_driven_engine() -> None:
    """Plans arrive and are followed; the hook is measured in all four states."""
    result = measure(command=hook.serve_command)
    assert all(added.p50 > 0.0 for added in result.added_us.values())
