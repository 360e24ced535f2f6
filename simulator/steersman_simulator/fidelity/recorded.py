"""A recording held against its own simulation: fitted on some windows, scored on the others.

All windows are simulated in their order, in one world with one controller, so that an adaptive policy
has learned what the recorded one had. How fast the machine was in a scored window is not used, only told:
where its pace is another one than in the fitted windows, something else was on the machine. (To take the
pace of the neighbouring windows instead was tried, and made predictions on a quiet machine worse.)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from steersman_controller.events import ControllerConfig
from steersman_controller.progress import Progress
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import RequestReport, StepReport
from steersman_policies.policy import did_you_mean
from steersman_simulator.report.summary import summary
from steersman_simulator.simulate import fit_windows, rerun
from steersman_simulator.truths.recorded import StepTruth, pace
from steersman_simulator.windows import EngineTrace, engine_trace
from steersman_simulator.world.world import Outcome

ALLOWED = {
    "median_e2el_ms": 0.06,
    "median_tpot_ms": 0.06,
    "p99_e2el_ms": 0.15,
    "p99_tpot_ms": 0.15,
    "goodput_tokens_per_busy_s": 0.04,
}
"""Relative error by figure."""

STILL = ("off", "fixed")
"""Policies whose K does not depend on what was learned: what one would record to predict the others."""


class Score(Struct, frozen=True):
    """One figure of one policy."""

    figure: str
    measured: float
    simulated: float
    """Mean over seeds."""
    low: float
    high: float
    """Over seeds."""
    error_fraction: float
    """simulated / measured - 1"""
    allowed_fraction: float
    passed: bool


class Scored(Struct, frozen=True):
    """All scored windows of one policy with its parameters, pooled."""

    policy: str
    windows: tuple[int, ...]
    requests: int
    pace: float | None
    """Measured over fitted seconds of their steps; None where no step tells."""
    scores: tuple[Score, ...]

    def score(self, figure: str) -> Score:
        """Of one figure."""
        return next(score for score in self.scores if score.figure == figure)


class WindowPace(Struct, frozen=True):
    """How slow the machine was in a window."""

    window: int
    policy: str
    fitted: bool
    pace: float | None
    """Measured over fitted seconds of its steps; None where no step tells."""


class Fidelity(Struct, frozen=True):
    """A recording against its simulation."""

    passed: bool
    scored: tuple[Scored, ...]
    paces: tuple[WindowPace, ...]
    seeds: int


class _Run(Struct, frozen=True):
    steps: tuple[StepReport, ...]
    requests: tuple[RequestReport, ...]


def fidelity_of(
    path: Path,
    *,
    fit_policies: Sequence[str] = (),
    fit_numbers: Sequence[int] = (),
    engine_id: str = "",
    seeds: int = 5,
    progress: Progress | None = None,
) -> Fidelity:
    """A recording file or folder against its simulation; see `split` for what is fitted.

    Raises FileNotFoundError, or ValueError in one line for what cannot be used.
    """
    recording = read_recording(path)
    trace = engine_trace(recording.events, engine_id)
    fitted, scored = split(trace, fit_policies, fit_numbers)
    return predict(trace, recording.started.config, fitted, scored, seeds=seeds, progress=progress)


def split(
    trace: EngineTrace, fit_policies: Sequence[str] = (), fit_numbers: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of the windows to fit and of those to score, counted from 0.

    Fitted are the windows with these numbers and those of these policies; with neither, those under
    policies that hold K still. Raises ValueError where nothing is left on either side.
    """
    windows = trace.windows
    held = list(dict.fromkeys(window.policy for window in windows))
    for policy in fit_policies:
        if policy not in held:
            hint = did_you_mean(policy, held)
            raise ValueError(f"recording: no window under {policy!r}{hint}; held: {', '.join(held)}")
    for number in fit_numbers:
        if not 0 <= number < len(windows):
            raise ValueError(f"recording: no window {number}; there are 0 to {len(windows) - 1}")
    policies = fit_policies or (() if fit_numbers else STILL)
    fitted = [i for i, w in enumerate(windows) if i in fit_numbers or w.policy in policies]
    scored = [i for i in range(len(windows)) if i not in fitted and windows[i].requests]
    if not (fitted and scored):
        listed = ", ".join(f"{number} {window.label}" for number, window in enumerate(windows))
        side = "score" if fitted else "fit"
        raise ValueError(f"recording: no window is left to {side}; its windows: {listed}")
    return tuple(fitted), tuple(scored)


def predict(
    trace: EngineTrace,
    config: ControllerConfig,
    fitted: Sequence[int],
    scored: Sequence[int],
    *,
    seeds: int = 5,
    progress: Progress | None = None,
) -> Fidelity:
    """Fit on some windows, simulate the others, compare. Raises ValueError for too little to fit on."""
    truth = fit_windows(trace, [trace.windows[number] for number in fitted])
    runs: dict[int, list[_Run]] = {number: [] for number in scored}
    for seed in range(seeds):
        if progress is not None:
            progress(f"simulating seed {seed}", seed / seeds)
        outcome = rerun(trace, truth, config, seed=seed)
        for number in scored:
            runs[number].append(_run_of(outcome, number))
    labels = dict.fromkeys(trace.windows[number].label for number in scored)
    found = tuple(
        _scored(label, [n for n in scored if trace.windows[n].label == label], trace, truth.steps, runs)
        for label in labels
    )
    passed = all(score.passed for one in found for score in one.scores)
    paces = tuple(
        WindowPace(number, window.label, number in fitted, pace(truth.steps, window.steps))
        for number, window in enumerate(trace.windows)
    )
    return Fidelity(passed, found, paces, seeds)


def _run_of(outcome: Outcome, arm: int) -> _Run:
    return _Run(
        tuple(step.report for step in outcome.steps if step.arm == arm),
        tuple(served.report for served in outcome.served if served.arm == arm),
    )


def _scored(
    label: str, numbers: Sequence[int], trace: EngineTrace, truth: StepTruth, runs: dict[int, list[_Run]]
) -> Scored:
    live = [_Run(trace.windows[n].steps, trace.windows[n].requests) for n in numbers]
    measured = _figures(live)
    simulated = [_figures(list(by_window)) for by_window in zip(*(runs[n] for n in numbers), strict=True)]
    scores = tuple(
        _score(figure, measured[figure], [figures[figure] for figures in simulated]) for figure in ALLOWED
    )
    its_pace = pace(truth, [step for run in live for step in run.steps])
    return Scored(label, tuple(numbers), sum(len(run.requests) for run in live), its_pace, scores)


def _score(figure: str, measured: float, simulated: Sequence[float]) -> Score:
    mean, allowed = float(np.mean(simulated)), ALLOWED[figure]
    error = mean / measured - 1.0
    return Score(
        figure, measured, mean, min(simulated), max(simulated), error, allowed, abs(error) <= allowed
    )


def _figures(runs: Sequence[_Run]) -> dict[str, Any]:
    steps = [step for run in runs for step in run.steps]
    requests = [request for run in runs for request in run.requests]
    return summary(requests, steps, duration_s=sum(step.busy_s for step in steps))
