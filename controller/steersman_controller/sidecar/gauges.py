"""Translates what happens in the fleet into metrics."""

from typing import TYPE_CHECKING

from msgspec import Struct

from steersman_controller.events import Received
from steersman_controller.fleet import Fleet
from steersman_controller.sidecar.metrics import Metrics
from steersman_policies.messages import Hello, PlanAck, RequestReport, StepReport

if TYPE_CHECKING:
    from steersman_controller.sidecar.server import Sidecar


class Learned(Struct, frozen=True, gc=False):
    """How far the fleet is with one engine."""

    frames: int
    steps: int


def learned(fleet: Fleet, engine_id: str) -> Learned:
    """To be taken before a frame is applied, for `note` to see what it changed."""
    stream, controller = fleet.streams.get(engine_id), fleet.controllers.get(engine_id)
    frames = 0 if stream is None else stream.frames
    return Learned(frames, 0 if controller is None else controller.cost.steps)


def note(metrics: Metrics, fleet: Fleet, received: Received, before: Learned) -> None:
    """Count a frame that was applied; one that was a duplicate or too old counts in `refresh`."""
    engine, record = received.engine_id, received.record
    after = learned(fleet, engine)
    if after.frames <= before.frames:
        return
    metrics.heard(engine, str(record.__struct_config__.tag))
    match record:
        case StepReport():
            metrics.step(engine, record)
            metrics.commanded(engine, "proposal_length", record.commanded)
            metrics.commanded(engine, "would_be_proposal_length", record.would_be)
        case RequestReport():
            metrics.request(engine, record)
        case PlanAck():
            metrics.add("plan_acks", 1.0, engine, "applied" if record.applied else "refused")
        case Hello():
            metrics.set("engine_observe_only", float(bool(record.observe_only)), engine)
    if after.steps > before.steps:
        for phase, error in fleet.controllers[engine].cost.errors.items():
            if error.actual_s > 0.0:
                ratio = abs(error.predicted_s - error.actual_s) / error.actual_s
                metrics.observe("prediction_error_ratio", ratio, engine, phase)


def refresh(sidecar: "Sidecar", now_s: float) -> None:
    """Show what is counted or believed elsewhere."""
    metrics, fleet = sidecar.metrics, sidecar.fleet
    for engine, controller in fleet.controllers.items():
        stream = fleet.streams[engine]
        metrics.reach("frames_lost", stream.lost, engine)
        metrics.reach("frames_duplicate", stream.duplicate + stream.old_epoch, engine)
        metrics.reach("engine_dropped", stream.dropped_by_engine, engine)
        metrics.reach("sends_dropped", sidecar.telemetry.dropped(engine), engine)
        metrics.reach("plan_errors", controller.counters["planner_errors"], engine)
        metrics.set("silent_seconds", now_s - sidecar.peers[engine].heard_s, engine)
        plan = controller.plan_in_force
        if plan is not None:
            acts = plan.mode == "steer" and not controller.hello.observe_only
            metrics.set("steering", float(acts), engine)
        if controller.leased_plan_id is not None:
            metrics.set("leased_plan_id", controller.leased_plan_id, engine)
        metrics.beliefs(engine, controller.segments())
    if sidecar.recorder is not None:
        metrics.set("recording_failed", 1.0 if sidecar.recorder.failed else 0.0)
