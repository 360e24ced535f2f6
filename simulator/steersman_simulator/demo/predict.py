"""What was predicted, beside what happened: the controller's step times, the simulator's arms.

Nothing is scored on what it was fitted on. The controller predicts each step before it learns from
it (prequential). The simulated world is fitted on the off and fixed arms alone and predicts the
steered one; its controller starts knowing nothing and runs through all arms in the live order.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig, Event, Received, Started
from steersman_controller.fleet import Fleet
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_simulator.acceptance.fit import fit_acceptance
from steersman_simulator.demo.arms import ARMS, STEERED, ArmRun, TimedStep
from steersman_simulator.demo.client import Outcome
from steersman_simulator.demo.measure import FIDELITY, Figures, arm_figures
from steersman_simulator.demo.schedule import Schedule
from steersman_simulator.simulate import started
from steersman_simulator.truths.recorded import fit_steps, held_out_error, relative_error
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world import world
from steersman_simulator.world.shape import Shape

EARLY_STEPS = 50
"""Steps at the start of which the first ones are reported apart: nothing was known then."""


class Predicted(Struct, frozen=True):
    """One step: what the controller expected just before, and what came."""

    predicted_s: float
    actual_s: float


class SimulatedArms(Struct, frozen=True):
    """All runs of the experiment as the world predicts them, and what the world was fitted on."""

    runs: tuple[ArmRun, ...]
    fitted: Figures


def replay_predictions(events: Iterable[Event], engine_id: str) -> list[Predicted]:
    """The predictions of a fresh controller that meets the recorded events in their order."""
    stream = iter(events)
    first = next(stream)
    assert isinstance(first, Started)
    fleet = Fleet(first)
    out = []
    for event in stream:
        report = event.record if isinstance(event, Received) and event.engine_id == engine_id else None
        if isinstance(report, StepReport) and report.trains and not report.first_after_switch:
            predicted_s = _predicted_s(fleet.controllers.get(engine_id), report)
            if predicted_s is not None:
                out.append(Predicted(predicted_s, report.busy_s))
        fleet.apply(event)
    return out


def _predicted_s(controller: Controller | None, report: StepReport) -> float | None:
    """Seconds that a controller expects of a step, from those before it; None where there were none."""
    if controller is None or not controller.belief.cost.steps or not report.target_tokens:
        return None
    return controller.belief.cost.predict(
        target_tokens=report.target_tokens,
        context_tokens=report.context_tokens,
        prefill_tokens=report.prefill_tokens,
        depth=report.drafting_depth,
        requests_drafting=report.requests_drafting,
        decode_requests=report.decode_requests,
    ).step_s


def prediction_figures(predictions: Sequence[Predicted]) -> Figures:
    """Errors of the controller's step times over the whole run."""
    kept = predictions[EARLY_STEPS:]
    figures: Figures = {
        "method": "prequential: each step is predicted before it is learned from",
        "steps": len(predictions),
        "early_steps_left_out": min(EARLY_STEPS, len(predictions)),
    }
    if not kept:
        return figures | {"reason": f"{len(predictions)} steps, more than {EARLY_STEPS} are needed"}
    predicted = np.array([p.predicted_s for p in kept])
    actual = np.array([p.actual_s for p in kept])
    relative = np.abs(predicted - actual) / actual
    return figures | {
        "mean_relative_error_fraction": float(relative.mean()),
        "median_relative_error_fraction": float(np.median(relative)),
        "p90_relative_error_fraction": float(np.quantile(relative, 0.9)),
        "predicted_over_actual_total": float(predicted.sum() / actual.sum()),
    }


def simulate_arms(
    live: Sequence[ArmRun],
    *,
    hello: Hello,
    config: ControllerConfig,
    requests: Sequence[RequestReport],
    settle_s: float,
    seed: int = 0,
) -> SimulatedArms:
    """Fit a world on every live arm but the steered one, then run the whole experiment in it.

    `live` is in time order; `requests` are the engine's reports of the fitted arms. Raises
    ValueError where these arms hold too little to fit on.
    """
    fitted_on = [run for run in live if run.arm != STEERED.name]
    steps = [step for run in fitted_on for step in run.reports()]
    truth = fit_steps(steps)
    held = [step for run in live if run.arm == STEERED.name for step in run.reports()]
    simulated = world.World(
        started=started(config, ARMS[0].policy, ARMS[0].params),
        hello=hello,
        shape=Shape(hello.max_batch, max(step.prefill_tokens for step in steps)),
        truth=truth,
        acceptance=fit_acceptance(steps, requests),
        seed=seed,
        settle_s=settle_s,
    )
    policies = {arm.name: world.Change(0.0, arm.policy, arm.params) for arm in ARMS}
    arrivals = _arrivals(fitted_on)
    outcome = simulated.run([world.Arm(run.arm, arrivals, (policies[run.arm],)) for run in live])
    fitted = {
        "fitted_on": sorted({run.arm for run in fitted_on}),
        "predicts": STEERED.name,
        "fitted_steps": len(steps),
        "step_error_fraction_fitted": relative_error(truth, steps),
        "step_error_fraction_held_out": held_out_error(steps),
        "step_error_fraction_steered": relative_error(truth, held),
        "output_tokens_from": fitted_on[0].arm,
    }
    labels = [(run.arm, run.round) for run in live]
    return SimulatedArms(tuple(runs_of(outcome, labels, live[0].schedule)), fitted)


def fidelity(live: Sequence[ArmRun], simulated: Sequence[ArmRun], arm: str = STEERED.name) -> Figures:
    """Simulated over measured figures of one arm; None where either is missing."""
    measured = arm_figures([run for run in live if run.arm == arm])
    predicted = arm_figures([run for run in simulated if run.arm == arm])
    return {
        "arm": arm,
        "simulated_over_measured": {key: _ratio(predicted[key], measured[key]) for key in FIDELITY},
        "simulated": {key: predicted[key] for key in FIDELITY},
        "measured": {key: measured[key] for key in FIDELITY},
    }


def _arrivals(fitted_on: Sequence[ArmRun]) -> tuple[Arrival, ...]:
    """The schedule with the lengths that the first fitted run had; a failed request is left out."""
    lengths = {outcome.number: outcome for outcome in reversed(fitted_on[0].served)}
    found = []
    for request in fitted_on[0].schedule.requests:
        outcome = lengths.get(request.number)
        if outcome is not None and outcome.prompt_tokens:
            found.append(
                Arrival(request.scheduled_s, outcome.segment, outcome.prompt_tokens, max(1, outcome.tokens))
            )
    if not found:
        raise ValueError("no request was served with a known prompt length, so nothing can be simulated")
    return tuple(found)


def runs_of(outcome: world.Outcome, labels: Sequence[tuple[str, int]], schedule: Schedule) -> list[ArmRun]:
    """The arms of a simulated experiment as runs; `labels` are (arm, round) in time order.

    Every arm served the requests of `schedule` in their order.
    """
    runs = []
    for index, ((arm, number), (from_s, _)) in enumerate(zip(labels, outcome.spans, strict=True)):
        steps = tuple(
            TimedStep(step.report.started_s + step.report.busy_s - from_s, step.report)
            for step in outcome.steps
            if step.arm == index
        )
        served = sorted((s for s in outcome.served if s.arm == index), key=lambda s: s.report.request)
        outcomes = tuple(_outcome(one.report, schedule, place, from_s) for place, one in enumerate(served))
        runs.append(ArmRun(arm, number, schedule, outcomes, steps))
    return runs


def _outcome(report: RequestReport, schedule: Schedule, number: int, from_s: float) -> Outcome:
    arrived_s = report.arrived_s - from_s
    return Outcome(
        number=number,
        segment=report.segment,
        # The clock of the world adds up; a request at the very start of a phase belongs to it.
        phase=schedule.phase_at(arrived_s + 1e-6),
        scheduled_s=arrived_s,
        sent_s=arrived_s,
        first_token_s=arrived_s + report.ttft_s,
        last_token_s=arrived_s + report.e2e_s,
        tokens=report.output_tokens,
        prompt_tokens=report.prompt_tokens,
        text="",
        drafted=report.drafted,
        accepted=report.accepted,
        finish_reason=report.finish_reason,
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
