"""`steersman replay`: a recording and some policies in, estimated step goodput out."""

from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from msgspec import Struct

from steersman_controller.progress import Progress
from steersman_controller.trace.recording import Recording, read_recording
from steersman_policies.messages import RequestReport
from steersman_policies.policy import did_you_mean
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.acceptance.fit import fit_acceptance
from steersman_simulator.replay.estimate import estimate
from steersman_simulator.replay.evidence import evidence
from steersman_simulator.replay.logged import Logged, Targets, never, policy_label, read_logged
from steersman_simulator.replay.result import Choice, Settings, result_of
from steersman_simulator.replay.shadow import Shadow

OFF: Choice = ("off", {})


class _Requests(Struct):
    """What the finished requests of an engine tell."""

    reports: list[RequestReport]
    lengths: dict[str, list[int]]
    """Output tokens by segment."""
    steps_each: float
    """Mean number of steps of one."""


def replay_policies(settings: Settings, progress: Progress) -> dict[str, Any]:
    """The result as a JSON tree. Raises ValueError or FileNotFoundError with one line for what cannot be
    used; a policy that cannot be estimated is in the result, with the reason."""
    recording = read_recording(settings.trace)
    engine_id = _engine(recording, settings.engine_id)
    choices = (*settings.policies, OFF)
    # Nobody has to learn anything to stay off.
    shadows = [Shadow(recording.started, engine_id, *choice) for choice in settings.policies]
    progress("reading the recording", None)
    logged, targets = read_logged(
        recording.events, engine_id, shadows, lambda seen: progress(f"replaying, {seen:,} events", None)
    )
    logged, targets = _scored(logged, [*targets, never(logged)], settings.under)
    requests = _requests(recording, engine_id)
    progress("fitting step seconds and acceptance", None)
    found = evidence(
        logged,
        targets,
        _acceptance(recording, engine_id, requests),
        [requests.lengths.get(segment, []) for segment in logged.segments],
        requests.steps_each,
    )
    estimates = []
    for number, (choice, target) in enumerate(zip(choices, targets, strict=True)):
        progress(f"estimating {policy_label(*choice)}", number / len(choices))
        estimates.append(estimate(found, target, draws=settings.draws, seed=settings.seed))
    progress("estimated", 1.0)
    head = {
        "version": version("steersman"),
        "trace": settings.trace.name,
        "engine": engine_id,
        "warning": recording.warning,
    }
    return head | result_of(found, choices, targets, estimates, settings)


def _engine(recording: Recording, wanted: str) -> str:
    engines = recording.engines
    if wanted and wanted not in engines:
        hint = did_you_mean(wanted, engines)
        raise ValueError(f"--engine: no {wanted!r}{hint}; recorded: {', '.join(engines) or 'none'}")
    for engine_id in [wanted] if wanted else engines:
        if next(recording.steps(engine_id), None) is not None:
            return engine_id
    raise ValueError(f"{recording.path}: no step of {f'engine {wanted!r}' if wanted else 'any engine'}")


def _requests(recording: Recording, engine_id: str) -> _Requests:
    reports = list(recording.requests(engine_id))
    lengths: dict[str, list[int]] = defaultdict(list)
    for report in reports:
        if report.output_tokens:
            lengths[report.segment].append(report.output_tokens)
    return _Requests(reports, lengths, float(np.mean([r.steps for r in reports])) if reports else 0.0)


def _acceptance(recording: Recording, engine_id: str, requests: _Requests) -> Acceptance | None:
    """For the places that another K visits; None where nothing was drafted."""
    if not any(r.drafted for r in requests.reports):
        return None
    return fit_acceptance(recording.steps(engine_id), requests.reports)


def _scored(logged: Logged, targets: Sequence[Targets], under: Sequence[str]) -> tuple[Logged, list[Targets]]:
    """Steps that teach, under these policies. Raises ValueError for one that was not recorded."""
    held = sorted({label.partition(":")[0] for label in logged.policies} | set(logged.policies))
    for policy in under:
        if policy not in held:
            hint = did_you_mean(policy, held)
            raise ValueError(f"--under: no steps under {policy!r}{hint}; recorded: {', '.join(held)}")
    wanted = np.array(
        [not under or bool({label, label.partition(":")[0]} & set(under)) for label in logged.policies]
    )
    pairs = (logged.pair["trains"] > 0.0) & wanted[logged.under]
    rows = pairs[logged.at]
    if not rows.any():
        raise ValueError("trace: no step with live requests that an estimate could stand on")
    return logged.only(pairs), [target.only(pairs, rows) for target in targets]
