"""From a recording to a simulated run: fit the truth, build the world, serve the arrivals."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from steersman_controller.belief.prior import Prior
from steersman_controller.events import ControllerConfig, Started
from steersman_controller.trace.recording import read_recording
from steersman_policies.codec import SCHEMA
from steersman_policies.messages import Hello
from steersman_policies.policy import load as load_policy
from steersman_simulator.acceptance.draft_table import Acceptance, DraftTable
from steersman_simulator.acceptance.fit import fit_acceptance
from steersman_simulator.report.run_report import write_run
from steersman_simulator.report.summary import k_over_time, summary
from steersman_simulator.truths.recorded import StepTruth, fit_steps, held_out_error, relative_error
from steersman_simulator.windows import EngineTrace, Window, engine_trace
from steersman_simulator.workload.arrival import Arrival, arrivals_of
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, Change, Outcome, World


class Settings(Struct, frozen=True):
    """What `steersman simulate` was asked for."""

    trace: Path
    policy: str
    params: dict[str, Any] = {}
    seed: int = 0
    fit_policies: tuple[str, ...] = ()
    arrivals_policies: tuple[str, ...] = ()
    load: float = 1.0
    max_batch: int = 0
    engine_id: str = ""
    priors: tuple[Prior, ...] = ()
    """What the controller believes before the first step; empty: what the recorded one did."""


class Fitted(Struct, frozen=True):
    """The truth of a world, and what it was fitted on."""

    steps: StepTruth
    acceptance: Acceptance
    windows: tuple[Window, ...]
    fitted_error: float | None
    """Mean relative error of step seconds on the very steps of the fit."""
    held_out_error: float | None
    """The same on stretches of these windows that were left out of the fit in turn."""
    other_windows_error: float | None
    """The same on the windows that took no part in the fit."""


class UndraftedAcceptance(Struct, frozen=True):
    """For a recording without drafts: nothing is known, and nothing may be asked."""

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable | None:
        """Nothing."""
        del arrival, ordinal, seed, at_s
        return None

    def changes(self) -> tuple[float, ...]:
        """It never changes."""
        return ()


def fit(trace: EngineTrace, policies: Sequence[str] = ()) -> Fitted:
    """The truth behind the windows of these policies (all by default).

    Raises ValueError where they hold too few steps.
    """
    return fit_windows(trace, trace.under(policies))


def fit_windows(trace: EngineTrace, windows: Sequence[Window]) -> Fitted:
    """The truth behind these windows of the trace. Raises ValueError where they hold too few steps."""
    used = {id(window) for window in windows}
    steps = [step for window in windows for step in window.steps]
    others = [step for window in trace.windows if id(window) not in used for step in window.steps]
    truth = fit_steps(steps)
    drafted = any(group.outcomes for step in steps for group in step.groups)
    requests = [request for window in windows for request in window.requests]
    return Fitted(
        steps=truth,
        acceptance=fit_acceptance(steps, requests) if drafted else UndraftedAcceptance(),
        windows=tuple(windows),
        fitted_error=relative_error(truth, steps),
        held_out_error=held_out_error(steps),
        other_windows_error=relative_error(truth, others),
    )


def shape_of(trace: EngineTrace, max_batch: int = 0) -> Shape:
    """The bounds of the recorded engine; the prefill budget is the largest one seen."""
    seen = max((step.prefill_tokens for step in trace.steps), default=0)
    longest = max((request.prompt_tokens for request in trace.requests), default=1)
    return Shape(max_batch or trace.hello.max_batch, seen or longest)


def started(
    config: ControllerConfig, policy: str, params: dict[str, Any], priors: tuple[Prior, ...] = ()
) -> Started:
    """The first event of a simulated sidecar that steers. Raises ValueError for an unknown policy."""
    load_policy(policy, params)
    steer = replace(config, mode="steer")
    return Started(0.0, SCHEMA, version("steersman"), 1, steer, policy, params, priors)


def arm_of(
    window: Window, *, policy: str = "", params: dict[str, Any] | None = None, load: float = 1.0
) -> Arm:
    """The requests of a window as an arm, under its own policy or another one."""
    change = Change(0.0, policy, params or {}) if policy else Change(0.0, window.policy, window.params)
    return Arm(window.label, arrivals_of(window.requests, load=load), (change,))


def build_world(
    trace: EngineTrace, fitted: Fitted, first: Started, *, seed: int = 0, max_batch: int = 0
) -> World:
    """The recorded engine and a fresh sidecar, on a fitted truth."""
    shape = shape_of(trace, max_batch)
    hello: Hello = replace(trace.hello, max_batch=shape.max_batch)
    return World(
        started=first,
        hello=hello,
        shape=shape,
        truth=fitted.steps,
        acceptance=fitted.acceptance,
        seed=seed,
    )


def rerun(trace: EngineTrace, fitted: Fitted, config: ControllerConfig, *, seed: int = 0) -> Outcome:
    """The recorded experiment again, arm by arm, in one world with one controller.

    One arm for every window of the trace, in order, under the window's own policy.
    """
    first = trace.windows[0]
    world = build_world(trace, fitted, started(config, first.policy, first.params), seed=seed)
    return world.run([arm_of(window) for window in trace.windows])


def arm_summary(outcome: Outcome, arm: int) -> dict[str, Any]:
    """Metrics of one arm of a simulated run."""
    served = [s for s in outcome.served if s.arm == arm]
    steps = [s.report for s in outcome.steps if s.arm == arm]
    start_s, end_s = outcome.spans[arm]
    metrics = summary(
        [s.report for s in served],
        steps,
        duration_s=end_s - start_s,
        deliveries=[s.deliveries for s in served],
    )
    return metrics | {"k_by_segment": k_over_time(steps, start_s=start_s, end_s=end_s)}


def window_summary(window: Window) -> dict[str, Any]:
    """The same metrics, measured; without inter-token latencies, which no recording holds."""
    start_s = min((r.arrived_s for r in window.requests), default=window.steps[0].started_s)
    end_s = max((r.arrived_s + r.e2e_s for r in window.requests), default=window.steps[-1].started_s)
    metrics = summary(window.requests, window.steps, duration_s=end_s - start_s)
    return metrics | {"k_by_segment": k_over_time(window.steps, start_s=start_s, end_s=end_s)}


def simulate(settings: Settings, out: Path | None = None) -> tuple[dict[str, Any], Outcome]:
    """The result of `steersman simulate --trace`, as a JSON tree, and all that happened.

    With `out`, also the files of `report/run_report.py` in that folder.

    Raises ValueError or FileNotFoundError with one line for what cannot be used.
    """
    recording = read_recording(settings.trace)
    priors = settings.priors or recording.started.priors
    first = started(recording.started.config, settings.policy, settings.params, priors)
    trace = engine_trace(recording.events, settings.engine_id)
    fitted = fit(trace, settings.fit_policies)
    windows = trace.under(settings.arrivals_policies)
    requests = [request for window in windows for request in window.requests]
    arrivals = arrivals_of(requests, load=settings.load)
    if not arrivals:
        raise ValueError(f"{settings.trace}: no finished request to serve again")
    world = build_world(trace, fitted, first, seed=settings.seed, max_batch=settings.max_batch)
    change = Change(0.0, settings.policy, settings.params)
    outcome = world.run([Arm(settings.policy, arrivals, (change,))])
    result = {
        "name": settings.trace.name,
        "version": first.version,
        "trace": settings.trace.name,
        "engine": trace.engine_id,
        "policy": settings.policy,
        "params": settings.params,
        "seed": settings.seed,
        "load": settings.load,
        "max_batch": world.engines[0].batch.shape.max_batch,
        "prior": priors[0].source if priors else "",
        "warning": recording.warning,
        "fitted": describe(fitted),
        "arrived": len(arrivals),
        "failed": len(outcome.rejected),
        "running": list(outcome.running),
        "unfinished": len(outcome.running),
        "left_out": {},
        "engines": 1,
        "arrivals_from": [window.label for window in windows],
    }
    result |= arm_summary(outcome, 0)
    if out is not None:
        write_run(out, result, outcome, arrivals)
    return result, outcome


def describe(fitted: Fitted) -> dict[str, Any]:
    """What a truth was fitted on and how well it fits, as a JSON tree."""
    segments = getattr(fitted.acceptance, "segments", {})
    return {
        "windows": [
            {
                "policy": window.label,
                "from_s": window.from_s,
                "to_s": window.to_s,
                "steps": len(window.steps),
                "requests": len(window.requests),
            }
            for window in fitted.windows
        ],
        "step_error_fraction": {
            "fitted": fitted.fitted_error,
            "held_out": fitted.held_out_error,
            "other_windows": fitted.other_windows_error,
        },
        "acceptance": {name: asdict(segment) for name, segment in segments.items()},
    }
