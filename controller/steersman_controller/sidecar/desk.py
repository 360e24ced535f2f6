"""Answers operators: checks a request completely, then applies it between two plans.

What is refused has changed nothing: policy, plan and plan id in force stay as they were.
"""

import os
from typing import TYPE_CHECKING

from steersman_controller.core import Controller
from steersman_controller.events import ModeSet, PolicySet
from steersman_controller.sidecar.admin import (
    About,
    Accepted,
    EngineStatus,
    ModeRequest,
    PolicyRequest,
    Rejected,
    Reply,
    Request,
    Status,
)
from steersman_policies import policy
from steersman_policies.plan import refusal
from steersman_policies.policy import Planner, did_you_mean

if TYPE_CHECKING:
    from steersman_controller.sidecar.server import Sidecar


def answer(sidecar: "Sidecar", request: Request) -> Reply:
    """Do what is asked, or say why not. Never raises for anything an operator asks."""
    try:
        match request:
            case PolicyRequest():
                return _set_policy(sidecar, request)
            case ModeRequest():
                return _set_mode(sidecar, request)
            case _:
                return _status(sidecar)
    except ValueError as error:
        return Rejected(str(error))


def _set_policy(sidecar: "Sidecar", request: PolicyRequest) -> Reply:
    now_s = sidecar.clock()
    planner = policy.load(request.policy, request.params)
    for engine_id, controller in _chosen(sidecar, request.engine_id).items():
        if sidecar.peers[engine_id].is_silent(now_s) and not request.engine_id:
            continue  # who is gone has no say in what the others follow
        _try(planner, request.policy, engine_id, controller, now_s)
    sidecar.apply(
        PolicySet(at_s=now_s, engine_id=request.engine_id, policy=request.policy, params=request.params)
    )
    return Accepted(_plan_now(sidecar, request.engine_id))


def _set_mode(sidecar: "Sidecar", request: ModeRequest) -> Reply:
    _chosen(sidecar, request.engine_id)
    mode = "shadow" if request.action == "pause" else sidecar.config.controller.mode
    sidecar.apply(ModeSet(at_s=sidecar.clock(), engine_id=request.engine_id, mode=mode))
    return Accepted(_plan_now(sidecar, request.engine_id), mode)


def _chosen(sidecar: "Sidecar", engine_id: str) -> dict[str, Controller]:
    known = sidecar.fleet.controllers
    if not engine_id:
        return dict(known)
    if engine_id not in known:
        connected = ", ".join(sorted(known)) or "none"
        raise ValueError(f"engine: no {engine_id!r}{did_you_mean(engine_id, known)}; connected: {connected}")
    return {engine_id: known[engine_id]}


def _try(planner: Planner, name: str, engine_id: str, controller: Controller, now_s: float) -> None:
    """Raise ValueError where the policy cannot plan for this engine. Changes nothing."""
    try:
        plan, _ = planner.plan(controller.view(now_s), {}, 0.0)
    except Exception as error:
        raise ValueError(f"policy {name}: fails for engine {engine_id} ({type(error).__name__})") from error
    unfit = refusal(plan, controller.hello, controller.fingerprint)
    if unfit is not None:
        raise ValueError(f"policy {name}: its plan does not fit engine {engine_id}: {unfit}")


def _plan_now(sidecar: "Sidecar", engine_id: str) -> dict[str, int]:
    """Plan at once; by engine, the plan to be acknowledged. An engine that is gone is not waited for."""
    now_s = sidecar.clock()
    plan_ids: dict[str, int] = {}
    for chosen, controller in _chosen(sidecar, engine_id).items():
        if sidecar.peers[chosen].is_silent(now_s) and not engine_id:
            continue
        sidecar.plan(chosen)
        if controller.plan_in_force is not None:
            plan_ids[chosen] = controller.plan_in_force.plan_id
    return plan_ids


def _status(sidecar: "Sidecar") -> Status:
    now_s = sidecar.clock()
    config, recorder = sidecar.config, sidecar.recorder
    return Status(
        version=sidecar.version,
        epoch=sidecar.epoch,
        pid=os.getpid(),
        mode=config.controller.mode,
        policy=sidecar.policy.name,
        params=dict(sidecar.policy.params),
        telemetry=config.telemetry,
        recording="" if recorder is None else recorder.failed or str(recorder.folder),
        engines=[_engine(sidecar, engine_id, now_s) for engine_id in sidecar.fleet.controllers],
        refused_frames=dict(sidecar.refused_frames),
    )


def _engine(sidecar: "Sidecar", engine_id: str, now_s: float) -> EngineStatus:
    controller = sidecar.fleet.controllers[engine_id]
    status = controller.status(now_s)
    stream, peer = sidecar.fleet.streams[engine_id], sidecar.peers[engine_id]
    plan, refused = status.plan, peer.refused
    report = controller.last_report
    return EngineStatus(
        engine_id=engine_id,
        about=_about(controller),
        mode=status.mode,
        policy=status.policy,
        policy_version=status.policy_version,
        params=status.params,
        plan_id=None if plan is None else plan.plan_id,
        plan_policy="" if plan is None else plan.policy,
        acked_plan_id=status.leased_plan_id,
        refused_plan_id=None if refused is None else refused.plan_id,
        refusal="" if refused is None else refused.reason,
        lease_age_s=None if peer.leased_s is None else now_s - peer.leased_s,
        lease_s=sidecar.config.lease_s,
        attached_s=now_s - stream.booted_s,
        silent_s=now_s - peer.heard_s,
        reports=status.counters.get("reports", 0),
        reason="" if report is None else report.reason,
        proposal_length={} if report is None else report.commanded,
        would_be={} if report is None else report.would_be,
        segments={belief.segment: belief.share for belief in status.segments if belief.share > 0.0},
        variation=status.variation,
        alike=status.alike,
        frames=stream.frames,
        frames_lost=stream.lost,
        frames_duplicate=stream.duplicate + stream.old_epoch + stream.far,
        prior=status.prior,
        restart=status.restart,
    )


def _about(controller: Controller) -> About:
    hello = controller.hello
    fingerprint = hello.fingerprint
    return About(
        engine=fingerprint.engine,
        engine_version=fingerprint.engine_version,
        target=fingerprint.target,
        drafter=fingerprint.drafter,
        method=fingerprint.method,
        fingerprint=controller.fingerprint,
        runner=hello.runner,
        observe_only=hello.observe_only,
        k_max=hello.k_max,
        launch_k=hello.launch_k,
        reachable_k=hello.reachable_k,
        counters=hello.counters,
    )
