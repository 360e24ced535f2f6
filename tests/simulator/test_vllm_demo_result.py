"""Figures, marks and report of the vLLM arms, on made-up runs whose right answers are known."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from made_steps import made_step
from msgspec.structs import replace
from rich.console import Console

from steersman_simulator.demo.arms import ArmRun, TimedStep
from steersman_simulator.demo.client import Outcome
from steersman_simulator.demo.compare import Runs, against, busy_per_token, texts_against
from steersman_simulator.demo.measure import arm_figures
from steersman_simulator.demo.report import render
from steersman_simulator.demo.result import Findings, timelines
from steersman_simulator.demo.schedule import Phase, Request, Schedule
from steersman_simulator.demo.vllm import console
from steersman_simulator.demo.vllm.result import missed_marks, speeds, sweep_figures
from steersman_simulator.demo.vllm.sweep import Point
from steersman_simulator.demo.workload import WorkItem

PHASES = (Phase("quiet", 0.0), Phase("saturated", 100.0), Phase("quiet_again", 200.0))
SCHEDULE = Schedule(
    tuple(Request(n, phase.name, phase.start_s, WorkItem(prompt="x")) for n, phase in enumerate(PHASES)),
    PHASES,
)
TOKENS = 40
MS_PER_TOKEN = {
    "off": (60.0, 7.0, 60.0),
    "k0": (61.0, 7.1, 61.0),
    "static4": (31.0, 9.0, 31.0),
    "table": (30.0, 7.0, 30.0),
    "steered": (30.0, 6.5, 30.0),
}
DRAFTS = {"static4": 4, "table": 2, "steered": 3}


def step(at_s: float, verify_s: float, k: int) -> TimedStep:
    return made_step(at_s, verify_s, TOKENS, k=k, depth=k)


def outcome(number: int, seconds: float, text: str = "same") -> Outcome:
    phase = PHASES[number]
    return Outcome(
        number=number,
        segment="chat",
        phase=phase.name,
        scheduled_s=phase.start_s,
        sent_s=phase.start_s,
        first_token_s=phase.start_s + seconds / 2,
        last_token_s=phase.start_s + seconds,
        tokens=TOKENS,
        prompt_tokens=7,
        text=text,
        drafted=None,
        accepted=None,
        finish_reason="length",
    )


def run(arm: str, number: int, ms_per_token: tuple[float, float, float], text: str = "same") -> ArmRun:
    """One step and one request a phase, at these busy milliseconds per token."""
    seconds = [ms * TOKENS / 1e3 for ms in ms_per_token]
    outcomes = tuple(outcome(n, s, text) for n, s in enumerate(seconds))
    steps = tuple(
        step(phase.start_s + 0.1, s, DRAFTS.get(arm, 0)) for phase, s in zip(PHASES, seconds, strict=True)
    )
    return ArmRun(arm, number, SCHEDULE, outcomes, steps)


def runs(rounds: int = 5, **others: tuple[float, float, float]) -> dict[str, list[ArmRun]]:
    """All arms, as above where nothing else is said."""
    figures = MS_PER_TOKEN | others
    return {arm: [run(arm, n, ms) for n in range(1, rounds + 1)] for arm, ms in figures.items()}


def result(found: Runs) -> dict[str, Any]:
    """What the marks and the pages read."""
    every = [run for of_arm in found.values() for run in of_arm]
    failed = [o.number for run in every for o in run.outcomes if o.error]
    points = [Point(batch, k, 0.01 * (1 + k), 1, 3) for batch in (1, 16) for k in (0, 4)]
    return {
        "version": "1",
        "machine": {"processor": "made up", "cpus": 2},
        "started_at": "2024-01-01T00:00:00Z",
        "rounds": max(run.round for run in every),
        "engine": {
            "model": "m",
            "runner": "v1",
            "max_batch": 16,
            "fingerprint": {"engine_version": "0.32.0"},
        },
        "workload": {"requests_per_arm": len(PHASES), "source": "made up"},
        "sweep": sweep_figures(points) | {"table": [[1, 4, 0], [5, 16, 0]]},
        "arms": {arm: arm_figures(of_arm) for arm, of_arm in found.items()},
        "speed": speeds(found),
        "outputs": texts_against(found, "off"),
        "prediction": {"steps": 0},
        "timelines": timelines(every),
        "failed_requests": failed,
        "notes": ["A note."],
    }


def test_speed_is_by_phase_and_against_each_arm() -> None:
    """The best other arm may be another one in each phase; above 1 is better."""
    found = speeds(runs())
    busy = found["busy_s_per_token"]
    assert busy["quiet"]["steered_vs_best"]["best"] == "table"
    assert busy["quiet"]["steered_vs"]["off"]["ratio"] == pytest.approx(2.0)
    assert busy["saturated"]["steered_vs"]["static4"]["ratio"] == pytest.approx(9.0 / 6.5)
    assert busy["overall"]["steered_vs"]["static4"]["ratio"] == pytest.approx((31 + 9 + 31) / (30 + 6.5 + 30))
    assert busy["quiet"]["off_vs_k0"]["ratio"] == pytest.approx(61.0 / 60.0)
    assert found["e2e_mean_s"]["saturated"]["steered_vs"]["off"]["ratio"] == pytest.approx(7.0 / 6.5)


def test_mean_e2e_is_over_identical_requests() -> None:
    """A request that failed once, anywhere, counts in no arm: a short one missing would flatter."""
    found = runs()
    first = found["off"][0]
    failed = replace(first.outcomes[1], error="HTTP 500", first_token_s=None, last_token_s=None)
    found["off"][0] = replace(first, outcomes=(first.outcomes[0], failed, first.outcomes[2]))
    with pytest.raises(ValueError, match="no request in phase saturated was served in every arm and round"):
        speeds(found)


def test_bounds_follow_the_rounds() -> None:
    """Rounds that agree have a tight interval, rounds that do not a wide one, one round none."""
    steady = against(runs(), "static4", busy_per_token)
    assert steady["low"] == pytest.approx(steady["ratio"])
    noisy = runs()
    noisy["steered"] = [run("steered", n, (ms, 6.5, ms)) for n, ms in enumerate((20, 40, 20, 40, 30), 1)]
    assert against(noisy, "static4", busy_per_token)["low"] < 1.0
    assert against(runs(rounds=1), "static4", busy_per_token)["low"] is None


def test_good_runs_miss_no_mark() -> None:
    """Steered as fast as the best of each phase and faster than K = 4 over all passes."""
    assert missed_marks(result(runs())) == []


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"steered": (31.5, 6.5, 30.0)}, "busy_s_per_token.quiet: lower bound 0.9524 against table"),
        ({"steered": (30.0, 7.5, 30.0)}, "busy_s_per_token.saturated: lower bound 0.9333 against off"),
        ({"table": (30.0, 7.0, 20.0)}, "e2e_mean_s.quiet_again: lower bound 0.6667 against table"),
        (
            {"static4": (20.0, 6.0, 31.0)},
            "e2e_mean_s.overall: lower bound 0.8571 against static4, must be above 1",
        ),
    ],
)
def test_slow_steering_misses_its_mark(fault: dict[str, Any], expected: str) -> None:
    """A slower steered arm, or a faster other one, is named with its phase and its bound."""
    assert any(line.startswith(expected) for line in missed_marks(result(runs(**fault))))


def test_wide_intervals_miss_the_mark() -> None:
    """A good mean over rounds that disagree is no evidence."""
    noisy = runs()
    noisy["steered"] = [run("steered", n, (ms, 6.5, ms)) for n, ms in enumerate((20, 40, 20, 40, 25), 1)]
    missed = missed_marks(result(noisy))
    assert [line.split(":")[0] for line in missed][:2] == [
        "busy_s_per_token.quiet",
        "busy_s_per_token.quiet_again",
    ]


def test_too_few_rounds_miss_the_mark() -> None:
    """Five interleaved rounds are promised."""
    assert "rounds: 2, at least 5" in missed_marks(result(runs(rounds=2)))


def test_arms_that_are_not_what_they_are_called_miss_the_mark() -> None:
    """Drafts without speculation, no drafts with it, and steps that were never reported."""
    found = result(runs())
    for arm, key, value in (
        ("off", "drafted_tokens", 3),
        ("static4", "drafted_tokens", 0),
        ("steered", "committed_tokens", 7),
    ):
        found["arms"][arm][key] = value
    missed = missed_marks(found)
    assert "arms.off.drafted_tokens: 3, must be 0" in missed
    assert "arms.static4.drafted_tokens: 0, must be above 0: nothing was compared" in missed
    assert any(line.startswith("arms.steered.committed_tokens: 7, but the clients") for line in missed)


def test_texts_are_held_against_those_of_one_arm() -> None:
    """A text that the arm gave in any round is no difference; another one is, and is named."""
    found = runs()
    found["off"][1] = run("off", 2, MS_PER_TOKEN["off"], text="tie")
    found["k0"][0] = run("k0", 1, MS_PER_TOKEN["k0"], text="tie")
    found["steered"][3] = run("steered", 4, MS_PER_TOKEN["steered"], text="wrong")
    outputs = texts_against(found, "off")
    assert outputs["differing"] == {"k0": 0, "static4": 0, "table": 0, "steered": 3}
    assert outputs["differing_requests"]["steered"] == [0, 1, 2]
    assert outputs["differing_in_itself"] == 3


def test_report_and_console_say_what_was_found() -> None:
    """Both show the ratio of each phase, the sweep and every missed mark; the page is whole."""
    found = runs(steered=(31.5, 6.5, 30.0))
    shown = result(found)
    shown |= {"missed": missed_marks(shown), "passed": False}
    every = tuple(run for of_arm in found.values() for run in of_arm)
    page = render(
        Findings(json.loads(json.dumps(shown)), every, ()),
        template="vllm.html.j2",
        summarise=console.summary_lines,
    )
    assert page.rstrip().endswith("</html>")
    out = io.StringIO()
    console.show(shown, Path("out"), Console(width=200, file=out))
    for text in (page, out.getvalue()):
        assert "busy_s_per_token.quiet: lower bound 0.9524 against table" in text
        assert "K = 4" in text
