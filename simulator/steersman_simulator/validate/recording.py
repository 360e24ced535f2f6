"""V11: a recorded engine, simulated again: fitted on some windows, held against the others.

Where a policy served several times, its first, third, ... window is fitted and the others are scored; where
none did, every second window is scored.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from steersman_controller.events import ControllerConfig
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import RequestReport
from steersman_simulator.simulate import fit, rerun
from steersman_simulator.validate.check import Asked, Check, Figure, Skip
from steersman_simulator.windows import EngineTrace, Window, engine_trace

FEWEST_REQUESTS = 20
"""A median of fewer says little."""

REPEATS = 5
"""Seeds of the simulation: which requests are easy to draft for is drawn, and a window holds few."""

ITL, E2E = 0.08, 0.10


def figures(asked: Asked) -> list[Figure]:
    """Step seconds, and medians per output token and end to end, of scored windows with enough requests."""
    if asked.recording is None:
        raise Skip("no --recording: needs the journal or Parquet of an engine that served under two policies")
    recording = read_recording(asked.recording)
    trace = engine_trace(recording.events)
    fitted, others = split(trace.windows)
    scored = [window for window in others if _requests(window)]
    if not scored:
        raise Skip(f"{asked.recording}: no second window with {FEWEST_REQUESTS} requests to hold against")
    return compared(trace, fitted, scored, recording.started.config, asked.seed)


def split(windows: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    """What is fitted, and what is not."""
    seen: Counter[str] = Counter()
    parts: tuple[list[Window], list[Window]] = ([], [])
    for window in windows:
        parts[seen[window.label] % 2].append(window)
        seen[window.label] += 1
    return parts if parts[1] else (list(windows[::2]), list(windows[1::2]))


def compared(
    trace: EngineTrace,
    fitted: Sequence[Window],
    scored: Sequence[Window],
    config: ControllerConfig,
    seed: int,
) -> list[Figure]:
    """Simulated against measured, by window; figures are relative to the measured ones."""
    truth = fit(replace(trace, windows=tuple(fitted)))
    again = replace(trace, windows=tuple(scored))
    outcomes = [rerun(again, truth, config, seed=seed + repeat) for repeat in range(REPEATS)]
    found = []
    for arm, window in enumerate(scored):
        simulated = [s.report for outcome in outcomes for s in outcome.served if s.arm == arm]
        measured = _requests(window)
        steps = [step for step in window.steps if step.trains]
        busy = float(sum(truth.steps.predicted_s(steps))) / sum(step.busy_s for step in steps)
        found.append(Figure(f"{window.label}, seconds of its steps, predicted / measured", 1.0, busy, ITL))
        for name, seconds, tolerance in (("ITL", _tpot_s, ITL), ("E2E", _e2e_s, E2E)):
            ratio = median(map(seconds, simulated)) / median(map(seconds, measured))
            found.append(
                Figure(f"{window.label}, median {name}, simulated / measured", 1.0, ratio, tolerance)
            )
    return found


def _requests(window: Window) -> list[RequestReport]:
    """Those that say something about speed; none where there are too few."""
    found = [r for r in window.requests if r.output_tokens > 1]
    return found if len(found) >= FEWEST_REQUESTS else []


def _tpot_s(report: RequestReport) -> float:
    return report.tpot_s


def _e2e_s(report: RequestReport) -> float:
    return report.e2e_s


CHECK = Check(
    "V11",
    "recorded engine",
    "step seconds, ITL and E2E of some windows of a recording, by a truth fitted on the others",
    "steps and ITL 8 %, E2E 10 %",
    figures,
)
