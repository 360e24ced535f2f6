"""Looks at the vLLM engines of a running sidecar twice, a moment apart, and says whether they are
steered and why not. Whatever is wrong out there is a finding; only a wrong question raises."""

import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from steersman_controller.findings import Finding, engine_findings, listed
from steersman_controller.look import Level, Look
from steersman_controller.sidecar.admin import EngineStatus, NoSidecar, Status
from steersman_controller.sidecar.push import status
from steersman_controller.state_dir import state_files
from steersman_policies.policy import did_you_mean

VLLM = "vllm"
"""The engine's name in a fingerprint."""

LOOK_S = 1.2
"""Long enough for a hello, which carries the engine's own counters: it says one every second."""


class Examination(Struct, frozen=True):
    """What was found."""

    is_well: bool
    """Whether nothing is a problem."""
    findings: list[Finding]
    reports_per_s: dict[str, float | None]
    """By engine; None where it attached during the look."""
    engines: list[EngineStatus]
    """The engines that were looked at, as their sidecar sees them."""


def examine_vllm(endpoint: str, state_dir: Path, timeout_s: float, engine_id: str = "") -> Examination:
    """All vLLM engines of the sidecar whose admin endpoint this is, or one of them; takes about `LOOK_S`.

    Raises ValueError where `endpoint` is none.
    """
    try:
        first = status(endpoint, timeout_s)
        began_s = time.monotonic()
        if first.engines:
            time.sleep(LOOK_S)
        now = status(endpoint, timeout_s)
    except NoSidecar as error:
        text, _, advice = str(error).removeprefix("--admin: ").partition("; ")
        return _examination([Finding("", "sidecar", "problem", text, advice)], [])
    seconds = max(time.monotonic() - began_s, 1e-3)
    earlier = {engine.engine_id: engine for engine in first.engines} if first.epoch == now.epoch else {}
    looks = [
        Look(
            engine=engine,
            before=earlier.get(engine.engine_id),
            seconds=seconds,
            sidecar=now,
            files=state_files(state_dir, engine.engine_id, engine.about.fingerprint),
        )
        for engine in now.engines
        if engine.about.engine == VLLM and engine_id in ("", engine.engine_id)
    ]
    findings = [*_sidecar(first, now), *_engines(now, engine_id)]
    findings += [finding for look in looks for finding in engine_findings(look)]
    return _examination(findings, looks)


def _examination(findings: list[Finding], looks: list[Look]) -> Examination:
    return Examination(
        is_well=all(finding.status != "problem" for finding in findings),
        findings=findings,
        reports_per_s={look.engine.engine_id: look.reports_per_s for look in looks},
        engines=[look.engine for look in looks],
    )


def _sidecar(first: Status, now: Status) -> Iterator[Finding]:
    text = f"{now.version}, process {now.pid}, {now.mode}, policy {now.policy}, {now.telemetry}"
    yield Finding("", "sidecar", "ok", text)
    if now.refused_frames:
        grows = first.epoch == now.epoch and now.refused_frames != first.refused_frames
        level: Level = "problem" if grows or not now.engines else "note"
        advice = "an engine with another version of Steersman, or a stranger, talks to this sidecar"
        yield Finding("", "frames", level, f"refused: {listed(now.refused_frames)}", advice)


def _engines(sidecar: Status, engine_id: str) -> Iterator[Finding]:
    """Who is not there, and who is not looked at."""
    kinds = {engine.engine_id: engine.about.engine for engine in sidecar.engines}
    attached = [known for known, kind in kinds.items() if kind == VLLM]
    others = [f"{known} ({kind})" for known, kind in kinds.items() if kind != VLLM]
    if engine_id and engine_id not in attached:
        if engine_id in kinds:
            text = f"{engine_id} is no vLLM engine: it calls itself {kinds[engine_id]!r}"
        else:
            text = f"no {engine_id!r} has attached{did_you_mean(engine_id, attached)}"
        advice = f"attached: {', '.join(attached) or 'none'}; the id is the engine's STEERSMAN_ENGINE_ID"
        yield Finding("", "engine", "problem", text, advice)
    elif not attached:
        advice = (
            "start vLLM with --scheduler-cls steersman_engine.adapters.vllm.SteersmanScheduler and "
            f"STEERSMAN_SIDECAR={sidecar.telemetry}; if it runs, or STEERSMAN_STRICT kept it from "
            "starting, look for 'Steersman' in its log"
        )
        yield Finding("", "engine", "problem", "no vLLM engine has attached", advice)
    if others and not engine_id:
        yield Finding("", "engine", "note", f"not vLLM, not looked at: {', '.join(others)}")
