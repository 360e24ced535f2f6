"""Translates what happens in the fleet into metrics.

Nothing is done per step here: steps are counted where they are learned from, and shown once a second.
"""

from typing import TYPE_CHECKING

from steersman_controller.core import Controller
from steersman_controller.events import Received
from steersman_controller.sidecar.metrics import Metrics
from steersman_policies.messages import Hello, PlanAck, RequestReport

if TYPE_CHECKING:
    from steersman_controller.sidecar.server import Sidecar


def note(metrics: Metrics, received: Received) -> None:
    """Count a frame that was applied and is no step."""
    engine, record = received.engine_id, received.record
    match record:
        case RequestReport():
            metrics.request(engine, record)
        case PlanAck():
            metrics.add("plan_acks", 1.0, engine, "applied" if record.applied else "refused")
        case Hello():
            metrics.set("engine_observe_only", float(bool(record.observe_only)), engine)


def refresh(sidecar: "Sidecar", now_s: float) -> None:
    """Show what is counted or believed elsewhere."""
    metrics, fleet = sidecar.metrics, sidecar.fleet
    for engine, controller in fleet.controllers.items():
        stream = fleet.streams[engine]
        metrics.heard(engine, stream.kinds, now_s - sidecar.peers[engine].heard_s)
        metrics.reach("frames_lost", stream.lost, engine)
        metrics.reach("frames_duplicate", stream.duplicate + stream.old_epoch + stream.far, engine)
        metrics.reach("engine_dropped", stream.dropped_by_engine, engine)
        metrics.reach("sends_dropped", sidecar.telemetry.dropped(engine), engine)
        metrics.set("silent_seconds", now_s - sidecar.peers[engine].heard_s, engine)
        _show(metrics, engine, controller)
        health = fleet.health.get(engine)
        complaints = () if health is None else health.complaints
        for kind in ("acceptance", "cost"):
            metrics.set("outlier", float(kind in complaints), engine, kind)
    if sidecar.recorder is not None:
        metrics.set("recording_failed", 1.0 if sidecar.recorder.failed else 0.0)


def _show(metrics: Metrics, engine: str, controller: Controller) -> None:
    plan = controller.plan_in_force
    if plan is not None:
        acts = plan.mode == "steer" and not controller.hello.observe_only
        metrics.set("steering", float(acts), engine)
    if controller.leased_plan_id is not None:
        metrics.set("leased_plan_id", controller.leased_plan_id, engine)
    metrics.beliefs(engine, controller.segments(), controller.variation())
    metrics.steps(engine, controller.belief.tally, controller.last_report)
    restart = controller.restart()
    if restart is not None:
        metrics.set("restart_without_drafter_gain_ratio", restart.gain, engine)
        metrics.set("restart_without_drafter_wins", float(restart.wins), engine)
    for kind, number in controller.belief.alarms.items():
        metrics.reach("drifts", number, engine, kind)
    counters = controller.counted()
    metrics.reach("plan_errors", counters["planner_errors"], engine)
    metrics.reach("reports_refused", counters["reports_refused"], engine)
