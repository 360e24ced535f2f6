"""`steersman bench simulator`: what it counts is what happened. Its times are not tested here."""

import json

import pytest

from steersman_controller.core import Controller
from steersman_simulator.bench import simulator


@pytest.fixture(scope="module")
def small() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "REPEATS", 1)
        return simulator.run(virtual_s=3.0, segments=2, requests=0)


def test_every_report_of_a_step_was_observed(small):
    """Occupied slots, steps and reports are counted in the world and in the controller."""
    assert small["steps"] > 200
    assert small["reports_observed"] in {small["steps"], small["steps"] - 1}
    assert small["plans"] > 0
    assert 0.95 < small["occupied_fraction"] <= 1.0
    assert small["virtual_s"] == 3.0
    assert 5.0 < small["mean_step_ms"] < 20.0


@pytest.mark.slow
def test_the_other_process_serves_every_request():
    """It says how many, and what memory that took."""
    many = simulator._in_child(300, 0)
    assert many["requests"] == 300
    assert 10 << 20 < many["peak_rss_bytes"] < 2 << 30


def test_the_result_is_json_and_names_what_was_missed(small):
    """A mark that was not met is named, with what was found."""
    assert json.loads(json.dumps(small))["passed"] is (not small["missed"])


def test_reports_that_nobody_observes_are_noticed(monkeypatch):
    """A controller that throws reports away fails the bench."""
    monkeypatch.setattr(simulator, "REPEATS", 1)
    monkeypatch.setattr(Controller, "_observe_step", lambda self, report, now_s: None)
    found = simulator.run(virtual_s=1.0, segments=1, requests=0)
    assert found["reports_observed"] == 0
    assert any(line.startswith("reports_observed") for line in found["missed"])
