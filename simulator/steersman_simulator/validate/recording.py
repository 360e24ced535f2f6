"""V11: a recorded engine, simulated again: fitted on some windows, held against the others.

Where a policy served several times, its first, third, ... window is fitted and the others are scored, pooled;
where none did, every second window is scored.
"""

from collections import Counter
from collections.abc import Sequence

from steersman_controller.trace.recording import read_recording
from steersman_simulator.fidelity.recorded import Scored, predict
from steersman_simulator.validate.check import Asked, Check, Figure, Skip
from steersman_simulator.windows import Window, engine_trace

FEWEST_REQUESTS = 20
"""A median of fewer says little."""

ITL, E2E = 0.08, 0.10


def figures(asked: Asked) -> list[Figure]:
    """Step seconds, and medians per output token and end to end, of policies with enough scored requests."""
    if asked.recording is None:
        raise Skip("no --recording: needs the journal or Parquet of an engine that served under two policies")
    recording = read_recording(asked.recording)
    trace = engine_trace(recording.events)
    fitted, others = split(trace.windows)
    requests = Counter[str]()
    for number in others:
        requests[trace.windows[number].label] += len(trace.windows[number].requests)
    scored = [number for number in others if requests[trace.windows[number].label] >= FEWEST_REQUESTS]
    if not scored:
        raise Skip(f"{asked.recording}: no second window with {FEWEST_REQUESTS} requests to hold against")
    found = predict(trace, recording.started.config, fitted, scored)
    return [figure for one in found.scored for figure in _figures(one)]


def split(windows: Sequence[Window]) -> tuple[list[int], list[int]]:
    """The numbers of those that are fitted, and of the others."""
    seen = Counter[str]()
    parts: tuple[list[int], list[int]] = ([], [])
    for number, window in enumerate(windows):
        parts[seen[window.label] % 2].append(number)
        seen[window.label] += 1
    numbers = list(range(len(windows)))
    return parts if parts[1] else (numbers[::2], numbers[1::2])


def _figures(one: Scored) -> list[Figure]:
    """Predicted against measured, relative to the measured."""
    itl, e2e = (1.0 + one.score(name).error_fraction for name in ("median_tpot_ms", "median_e2el_ms"))
    found = [
        Figure(f"{one.policy}, median ITL, simulated / measured", 1.0, itl, ITL),
        Figure(f"{one.policy}, median E2E, simulated / measured", 1.0, e2e, E2E),
    ]
    if one.pace is not None:
        name = f"{one.policy}, seconds of its steps, predicted / measured"
        found.insert(0, Figure(name, 1.0, 1.0 / one.pace, ITL))
    return found


CHECK = Check(
    "V11",
    "recorded engine",
    "step seconds, ITL and E2E of some windows of a recording, by a truth fitted on the others",
    "steps and ITL 8 %, E2E 10 %",
    figures,
)
