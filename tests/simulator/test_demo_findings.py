"""From runs to the result and the report, on a whole demo in a simulated engine."""

import html.parser
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steersman_controller.events import ControllerConfig
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import Hello
from steersman_simulator.acceptance.segments import AcceptanceTruth
from steersman_simulator.demo.arms import ARMS, running_order
from steersman_simulator.demo.figures import all_figures
from steersman_simulator.demo.measure import FIDELITY, mean_k
from steersman_simulator.demo.predict import fidelity, runs_of, simulate_arms
from steersman_simulator.demo.report import render
from steersman_simulator.demo.result import Findings, by_arm, evaluate
from steersman_simulator.demo.run import Live, Settings
from steersman_simulator.demo.schedule import Pace, make_schedule
from steersman_simulator.demo.spans import SETTLE_S
from steersman_simulator.demo.workload import WorkItem
from steersman_simulator.report.summary import rounded
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.world import Arm, Change, World

ITEMS = tuple(WorkItem(prompt="x", segment=("edit", "chat")[i % 2], max_tokens=40) for i in range(40))
SETTINGS = Settings(ITEMS, "made up", 2, Path("."))


@pytest.fixture(scope="module")
def live(
    tmp_path_factory: pytest.TempPathFactory,
    make_world: Callable[..., World],
    hello: Hello,
    write_recording: Callable[[Path, Sequence[object]], Path],
) -> Live:
    """Two rounds, three phases, two kinds of traffic."""
    pace = Pace(0.2, 0.035, 0.15, 0.005)
    schedule = make_schedule(ITEMS, pace)
    arrivals = tuple(Arrival(r.scheduled_s, r.item.segment or "", 60, 40) for r in schedule.requests)
    order = running_order(SETTINGS.rounds)
    world = make_world(seed=4)
    found = world.run([Arm(a.name, arrivals, (Change(0.0, a.policy, a.params),)) for _, a in order])
    labels = [(arm.name, number) for number, arm in order]
    live_runs = tuple(runs_of(found, labels, schedule))
    requests: dict[str, tuple[object, ...]] = {}
    for served in found.served:
        name = order[served.arm][1].name
        requests[name] = (*requests.get(name, ()), served.report)
    recording = read_recording(write_recording(tmp_path_factory.mktemp("demo") / "journal.bin", found.events))
    return Live(
        runs=live_runs,
        pace=pace,
        model="simulated",
        hello=hello,
        config=ControllerConfig(mode="steer"),
        engine_id="simulated",
        requests=requests,  # type: ignore[arg-type]
        recording=recording,
    )


@pytest.fixture(scope="module")
def findings(live: Live) -> Findings:
    return evaluate(live, SETTINGS, started_at="2024-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def page(findings: Findings) -> str:
    """The report."""
    return render(findings)


def test_result_holds_what_the_demo_promises(findings: Findings) -> None:
    """Every promised key is there, and the object survives JSON."""
    result = json.loads(json.dumps(rounded(findings.result)))
    for arm in ("off", "fixed", "steered"):
        for key in (*FIDELITY, "ttft_p99_s", "position_acceptance_by_segment", "by_phase", "by_segment"):
            assert key in result["arms"][arm]
    assert {"ratio", "low", "high"} <= result["steered_vs_best"].keys()
    assert {"machine", "version", "rounds", "contrast", "prediction", "outputs", "notes"} <= result.keys()
    assert result["simulation"]["fitted_on"] == ["fixed", "off"]
    assert len(result["timelines"]) == 6


def test_simulation_of_a_simulated_engine_is_close(findings: Findings) -> None:
    """Fitted on off and fixed of a known world, the simulator predicts its steered arm within 10 %; within
    15 % where a figure is the median of a few dozen requests, which two runs of one world differ by."""
    ratios = findings.result["fidelity"]["simulated_over_measured"]
    assert set(ratios) == set(FIDELITY)
    for key, ratio in ratios.items():
        tolerance = 0.15 if "p50" in key else 0.1
        assert abs(ratio - 1.0) < tolerance, key


def test_fidelity_never_sees_the_steered_arm(live: Live) -> None:
    """What was measured of the steered arm may be anything: the fitted world and its figures are the same."""
    found = []
    for steps in (None, 40):
        runs = [r if r.arm != "steered" else replace(r, steps=r.steps[:steps]) for r in live.runs[:3]]
        requests = [*live.requests["off"], *live.requests["fixed"]]  # type: ignore[misc]
        arms = simulate_arms(runs, hello=live.hello, config=live.config, requests=requests, settle_s=SETTLE_S)
        found.append(fidelity(runs, arms.runs))
    assert found[0]["simulated"] == found[1]["simulated"]
    assert found[0]["measured"] != found[1]["measured"]


def test_controller_predictions_come_from_the_recording(findings: Findings) -> None:
    """Replayed predictions are near the actual step times of a world that is linear in the features."""
    assert findings.result["prediction"]["steps"] > 500
    assert findings.result["prediction"]["median_relative_error_fraction"] < 0.1


def test_failed_requests_do_not_stop_the_evaluation(live: Live) -> None:
    """A request that failed in one arm is listed, and everything else is still computed."""
    first, *rest = live.runs[:3]
    failed = replace(first.outcomes[0], error="HTTP 500", first_token_s=None, last_token_s=None)
    broken = replace(first, outcomes=(failed, *first.outcomes[1:]))
    found = evaluate(replace(live, runs=(broken, *rest)), SETTINGS, started_at="").result
    assert found["failed_requests"] == [{"arm": "off", "round": 1, "request": 0, "error": "HTTP 500"}]
    assert found["outputs"]["not_served_everywhere"] == 1
    assert found["fidelity"]["simulated_over_measured"]["busy_s_per_token"] == pytest.approx(1.0, abs=0.15)


class _Resources(html.parser.HTMLParser):
    """Collects what a browser would fetch, and what it would run."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "data", "srcset", "action"} and value:
                self.fetched.append(value)


def test_report_opens_offline(page: str) -> None:
    """The page fetches nothing: every reference is inside it, and it runs no script."""
    found = _Resources()
    found.feed(page)
    assert [r for r in found.fetched if not r.startswith(("#", "data:"))] == []
    assert "script" not in found.tags
    assert not re.search(r"@import|url\((?!#)", page)


def test_report_shows_every_figure_and_explains_the_numbers(findings: Findings, page: str) -> None:
    """Each plot is there once, as a drawing with its labels, and no two share an id."""
    figures = all_figures(findings)
    assert set(figures) == {
        "k_over_time",
        "load_over_time",
        "busy_by_phase",
        "position_acceptance",
        "prediction",
        "fidelity",
        "latency",
    }
    assert page.count("<svg") == len(figures)
    for label in ("busy ms per token", "accepted / reached", "simulated / measured, 1 is exact", "TTFT, s"):
        assert label in page
    ids = re.findall(r'\sid="([mp][0-9a-f]{9,})"', "".join(figures.values()))
    assert ids
    assert len(ids) == len(set(ids))


def test_report_of_a_run_without_simulation_says_why(live: Live) -> None:
    """Where nothing could be fitted the page gives the reason in place of numbers."""
    runs = tuple(
        replace(r, outcomes=tuple(replace(o, prompt_tokens=None) for o in r.outcomes)) for r in live.runs[:3]
    )
    found = evaluate(replace(live, runs=runs), SETTINGS, started_at="")
    assert found.result["fidelity"] is None
    assert found.result["simulation_reason"] in render(found)


def test_content_decides_not_the_tag(live: Live, make_world: Callable[..., World]) -> None:
    """With the tags exchanged K per segment is exchanged too: it follows what is accepted."""
    truth: Any = make_world()._acceptance[0]
    swapped = AcceptanceTruth(
        truth.segments | {"edit": truth.segments["chat"], "chat": truth.segments["edit"]}
    )
    schedule = live.runs[0].schedule
    arrivals = tuple(Arrival(r.scheduled_s, r.item.segment or "", 60, 40) for r in schedule.requests)
    arms = [Arm(a.name, arrivals, (Change(0.0, a.policy, a.params),)) for a in ARMS]
    labels = [(arm.name, 1) for arm in ARMS]
    found = {}
    for name, acceptance in (("as named", truth), ("swapped", swapped)):
        mine = runs_of(make_world(seed=4, acceptance=acceptance).run(arms), labels, schedule)
        found[name] = mean_k(by_arm(mine)["steered"][0].reports("saturated"))
    assert found["as named"]["edit"] > found["as named"]["chat"] + 1.0
    assert found["swapped"]["chat"] > found["swapped"]["edit"] + 1.0
