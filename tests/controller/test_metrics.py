"""What Prometheus is told."""

import math
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from steersman_controller.belief.belief import Belief
from steersman_controller.belief.prior import CostPrior, Prior, WithoutDrafter
from steersman_controller.belief.tally import REASONS
from steersman_controller.console import status_lines
from steersman_controller.events import Alarmed
from steersman_controller.findings import engine_findings
from steersman_controller.fleet import Fleet
from steersman_controller.look import Look
from steersman_controller.request_spread import Spread
from steersman_controller.sidecar.admin import Status, StatusRequest
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.desk import answer
from steersman_controller.sidecar.metrics import Metrics
from steersman_controller.state_dir import state_files
from steersman_controller.status import Variation
from steersman_controller.trace.recorder import Recorder
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_policies.units import MAX_SEGMENTS
from steersman_policies.view import SegmentBelief, SignalBelief

Make = Callable[..., Any]
Step = Callable[..., StepReport]


def metrics() -> Metrics:
    return Metrics("0.0.0", lambda: 1e9)


def families(one: Metrics) -> dict[str, Any]:
    """Scraped metrics by name."""
    text = generate_latest(one.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def shown(one: Metrics, hello: Hello, *reports: StepReport) -> None:
    """Show what an engine reported."""
    belief = Belief(hello)
    for report in reports:
        belief.observe(report)
    belief.fold()
    one.steps("gpu0", belief.tally, reports[-1])


def test_outcomes_are_counted_by_position(hello: Hello, step: Step) -> None:
    """A verification reaches the position after the last accepted one; K bounds it."""
    one = metrics()
    # Two requests, three draft tokens each; a warm-up counts like any other step.
    shown(one, hello, step(1, accepted=2), msgspec.structs.replace(step(2, accepted=3), warm_up=True))

    def value(name: str, **labels: str) -> float | None:
        return one.registry.get_sample_value(f"steersman_{name}", {"engine": "gpu0", **labels})

    assert value("drafts_total") == 4
    assert value("draft_tokens_total") == 12
    assert value("accepted_tokens_total") == 10
    assert value("committed_tokens_total") == 14
    assert [value("reached_tokens_per_position_total", position=p) for p in "1234"] == [4, 4, 4, None]
    assert [value("accepted_tokens_per_position_total", position=p) for p in "1234"] == [4, 4, 2, None]
    assert value("steps_by_depth_total", k="3") == 2
    assert value("step_seconds_count", phase="verify") == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_no_number_spoils_a_metric(bad: float) -> None:
    """What is not finite, or negative where that means nothing, is left out and raises nothing."""
    one = metrics()
    one.observe("step_seconds", bad, "gpu0", "draft")
    one.add("committed_tokens", bad, "gpu0")
    one.set("coverage_ratio", bad if bad != -1.0 else math.nan, "gpu0", "chat")
    one.reach("frames_lost", bad, "gpu0")
    one.reach("frames_lost", 3.0, "gpu0")
    samples = [s for family in families(one).values() for s in family.samples]
    assert not [s for s in samples if math.isnan(s.value)]
    assert one.registry.get_sample_value("steersman_frames_lost_total", {"engine": "gpu0"}) == 3.0


def test_label_sets_are_closed(hello: Hello, step: Step) -> None:
    """Whatever an engine names its segments and reasons, the number of series is bounded."""
    one = metrics()
    for number in range(3 * MAX_SEGMENTS):
        segment = f"s{number}"
        report = msgspec.structs.replace(step(number, segment), reason=f"r{number}")
        shown(one, hello, report)
        belief = SegmentBelief(segment, 1.0, 1.0, 0.5, (0.5,) * 64, (0.4,) * 64, (1.0,) * 64)
        one.beliefs("gpu0", [belief], {segment: Variation(0.5, 2.0)})
    found = families(one)
    segments = {s.labels["segment"] for s in found["steersman_proposal_length"].samples}
    assert len(segments) == MAX_SEGMENTS + 1
    assert "other" in segments
    reasons = {s.labels["reason"] for s in found["steersman_steps"].samples}
    assert reasons == {"other"} <= {*REASONS, "other"}
    assert len(found["steersman_position_acceptance_ratio"].samples) <= (MAX_SEGMENTS + 1) * 16


def test_variation_and_paying_signals_are_shown() -> None:
    """Each under its segment; the gain of a signal is gone once it does not pay any more."""
    one = metrics()
    state = SignalBelief((1.0,), ((0.5,),), 0.03, 0.002)
    belief = SegmentBelief("code", 1.0, 1.0, 0.5, (0.5,), (0.4,), (1.0,), by_signal={"state": state})
    found = {"code": Variation(0.5, 2.0, Spread(90.0, 0.7, 0.2, 3.0, True))}
    labels = {"engine": "gpu0", "segment": "code"}

    def value(name: str, **more: str) -> float | None:
        return one.registry.get_sample_value(f"steersman_{name}", labels | more)

    one.beliefs("gpu0", [belief], found)
    assert value("acceptance_autocorrelation") == 0.5
    assert value("acceptance_dispersion_ratio") == 2.0
    assert value("request_acceptance_deviation_ratio") == 0.2
    assert value("signal_gain_nats", signal="state") == 0.03
    assert value("signal_gain_nats", signal="confidence") is None
    one.beliefs("gpu0", [msgspec.structs.replace(belief, by_signal={})], {})
    assert value("signal_gain_nats", signal="state") is None
    one.beliefs("gpu0", [belief], {})
    assert value("signal_gain_nats", signal="state") == 0.03


def test_a_total_that_starts_anew_goes_on() -> None:
    """A counter kept by an engine that booted again adds to what it had."""
    one = metrics()
    for total in (5.0, 7.0, 2.0, 2.0):
        one.reach("engine_dropped", total, "gpu0")
    assert one.registry.get_sample_value("steersman_engine_dropped_total", {"engine": "gpu0"}) == 9.0


def test_names_follow_the_conventions() -> None:
    """One prefix, base units, no colon, a help text for each."""
    found = families(metrics())
    assert all(name.startswith("steersman_") and ":" not in name for name in found)
    assert all(family.documentation.endswith(".") or "process" in name for name, family in found.items())
    assert not [name for name in found if name.endswith(("_ms", "_us", "_percent"))]


def test_a_running_sidecar_shows_itself(
    config: SidecarConfig,
    hello: Hello,
    step: Step,
    request_report: RequestReport,
    sidecars: Make,
    engines: Make,
) -> None:
    """After real traffic a scrape has plan, K, belief and errors, and no NaN anywhere."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    for number in range(1, 41):
        engine.send(step(number))
    engine.send(request_report)
    one.frames(42)
    one.ticks(1.5, engine)
    found = families(one.metrics)
    samples = [s for family in found.values() for s in family.samples]
    assert not [s for s in samples if math.isnan(s.value)]
    assert one.value("steering", engine="gpu0") == 1
    assert one.value("engine_observe_only", engine="gpu0") == 0
    assert one.value("plan_id", engine="gpu0") == one.value("leased_plan_id", engine="gpu0")
    assert one.value("policy_info", engine="gpu0", policy="goodput", policy_version="2") == 1
    assert one.value("plan_acks_total", engine="gpu0", result="applied") >= 1
    assert one.value("proposal_length", engine="gpu0", segment="chat") == 3
    assert one.value("coverage_ratio", engine="gpu0", segment="chat") > 0.5
    assert one.value("position_acceptance_ratio", engine="gpu0", segment="chat", position="1") > 0.5
    assert one.value("prediction_error_ratio_count", engine="gpu0", phase="verify") > 30
    assert one.value("request_ttft_seconds_count", engine="gpu0") == 1
    assert one.value("last_frame_timestamp_seconds", engine="gpu0") == pytest.approx(1e9, abs=2.0)


def test_an_engine_that_only_observes_can_be_alerted_on(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """From its first hello to that in which it follows again; plans to it are ACKed and do not steer."""
    one, engine = sidecars(config), engines(config.telemetry)
    for reason in ("stopped: KeyError", ""):
        engine.send(msgspec.structs.replace(hello, observe_only=reason))
        one.frames(1)
        assert one.value("engine_observe_only", engine="gpu0") == bool(reason)
        one.ticks(1.1, engine)
        assert one.value("steering", engine="gpu0") == (not reason)
    assert one.value("plan_acks_total", engine="gpu0", result="applied") >= 1
    assert one.value("plan_acks_total", engine="gpu0", result="refused") is None
    samples = families(one.metrics)["steersman_engine_observe_only"].samples
    assert [set(sample.labels) for sample in samples] == [{"engine"}]


def test_it_is_served_on_loopback_and_a_taken_port_is_one_clear_line() -> None:
    """A scrape works; a second exporter on the port says so and what to do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = metrics().serve(port)
    with urllib.request.urlopen(url) as reply:
        assert b'steersman_build_info{version="0.0.0"} 1.0' in reply.read()
    with pytest.raises(ValueError, match=rf"--metrics-port: cannot listen on 127.0.0.1:{port}.*0 for no"):
        metrics().serve(port)


def test_a_launch_without_a_drafter_is_compared_where_it_was_measured(
    config: SidecarConfig,
    hello: Hello,
    step: Step,
    sidecars: Make,
    engines: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twice as fast without a drafter: a gauge, one warning with its source, a line of the status, and a
    finding. Without such a measurement: nothing of all that."""
    fast = WithoutDrafter((1, 8), (0,), ((0.005, 0.005),))
    cost = CostPrior((1, 8, 40), (0.01, 0.012, 0.02), 0.0, 0.0, (0.0, 0.0, 0.0003, 0.0), relative_error=0.05)
    known = msgspec.structs.replace(cost, without_drafter=fast)
    for prior, wins in ((cost, None), (known, 1.0)):
        given = (Prior("b.zip (0123)", hello.fingerprint, cost=prior),)
        one, engine = sidecars(config, priors=given), engines(config.telemetry)
        engine.send(hello)
        for number in range(300):
            engine.send(step(number, accepted=0))
        one.frames(301)
        caplog.clear()
        one.ticks(2.2)
        assert one.value("restart_without_drafter_wins", engine="gpu0") == wins
        told = [r.getMessage() for r in caplog.records if "without speculation" in r.getMessage()]
        status = answer(one.sidecar, StatusRequest())
        assert isinstance(status, Status)
        lines = "\n".join(status_lines(status))
        look = Look(status.engines[0], None, 1.0, status, state_files(Path("none"), "gpu0", ""))
        findings = {finding.check: finding for finding in engine_findings(look)}
        assert findings["prior"].status == "ok"
        if wins is None:
            assert not told
            assert "drafter" not in findings
            assert "without a drafter" not in lines
        else:
            assert len(told) == 1
            assert "b.zip (0123)" in told[0]
            assert "a restart without speculation would win: without a drafter" in lines
            assert findings["drafter"].status == "note"
            assert one.value("restart_without_drafter_gain_ratio", engine="gpu0") > 0.5
        one.sidecar.close()
        engine.close()


def test_a_drift_is_an_event_a_metric_and_a_line(
    config: SidecarConfig, hello: Hello, step: Step, sidecars: Make, engines: Make, tmp_path: Path
) -> None:
    """A drafter that stops being accepted shows in the scrape, in the recording and nowhere twice."""
    one, engine = sidecars(config, recorder=Recorder(tmp_path / "rec")), engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    for first in range(1, 401, 50):
        for number in range(first, first + 50):
            engine.send(step(number, accepted=0 if number > 350 else 2 + number % 2))
        one.frames(50)
        one.now_s += 1.0
        one.sidecar.tick()
    one.ticks(2.2)
    assert one.value("drifts_total", engine="gpu0", kind="acceptance") == 1
    assert one.value("outlier", engine="gpu0", kind="acceptance") == 0
    one.sidecar.close()
    events = list(read_recording(tmp_path / "rec").events)
    alarms = [event for event in events if isinstance(event, Alarmed)]
    assert [(alarm.engine_id, alarm.kind, alarm.segment) for alarm in alarms] == [
        ("gpu0", "acceptance", "chat")
    ]
    assert 350 < alarms[0].step < 380
    again = Fleet(events[0])
    for event in events[1:]:
        again.apply(event)
    assert again.controllers["gpu0"].snapshot() == one.sidecar.fleet.controllers["gpu0"].snapshot()
