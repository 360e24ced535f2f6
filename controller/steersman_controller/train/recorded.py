"""Step times and acceptance out of a recording of a live engine."""

from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct

from steersman_controller.trace.recording import Recording, read_recording
from steersman_controller.train.cells import QUANTILES, Cells
from steersman_controller.train.step_times import BINS_PER_OCTAVE, Group
from steersman_policies.messages import Fingerprint, StepReport

LEAST_REACHED = 30
"""A position that was reached less often has no acceptance of its own."""


class Recorded(Struct, frozen=True):
    """What a recording teaches."""

    path: Path
    """The file that was read."""
    groups: dict[Group, Cells]
    """One per engine."""
    steps: int
    acceptance: dict[str, tuple[float, ...]]
    """Accepted / reached by segment and position."""
    fingerprint: Fingerprint | None
    """Of the engine, where there is just one kind."""
    warning: str | None


def read_recorded(path: Path) -> Recorded:
    """Cells by engine. Raises ValueError where the recording has no step to learn from."""
    recording = read_recording(path)
    groups: dict[Group, Cells] = {}
    steps = 0
    reached: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    accepted: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for engine in recording.engines:
        usable = [
            s for s in recording.steps(engine) if s.trains and not s.first_after_switch and s.decode_requests
        ]
        usable = [s for s in usable if s.busy_s > 0.0]
        steps += len(usable)
        if usable:
            groups[engine,] = _cells(usable)
        for step in usable:
            _count(step, reached, accepted)
    if not groups:
        raise ValueError(f"{path}: no step in it that a model could learn from")
    return Recorded(
        recording.path,
        groups,
        steps,
        _acceptance(reached, accepted),
        _fingerprint(recording),
        recording.warning,
    )


def _cells(steps: list[StepReport]) -> Cells:
    together: dict[tuple[int, ...], list[StepReport]] = defaultdict(list)
    for step in steps:
        tokens, context, prefill = (
            _bin(value, BINS_PER_OCTAVE[name])
            for value, name in (
                (step.target_tokens, "target_tokens"),
                (step.context_tokens, "context_tokens"),
                (step.prefill_tokens, "prefill_tokens"),
            )
        )
        together[step.decode_requests, step.drafting_depth, tokens, context, prefill].append(step)
    cells = [together[key] for key in sorted(together)]

    def means(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([sum(getattr(s, name) for s in cell) / len(cell) for cell in cells], dtype=np.float64)

    def medians(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([median(getattr(s, name) for s in cell) for cell in cells], dtype=np.float64)

    return Cells(
        batch=means("decode_requests"),
        k=means("drafting_depth"),
        tokens=means("target_tokens"),
        context=means("context_tokens"),
        prefill=means("prefill_tokens"),
        loaded=np.ones(len(cells), dtype=np.bool_),
        steps=np.array([len(cell) for cell in cells], dtype=np.float64),
        quantiles_s=np.array([np.quantile([s.busy_s for s in cell], QUANTILES) for cell in cells]),
        draft_s=medians("draft_s"),
        verify_s=medians("verify_s"),
    )


def _bin(value: int, per_octave: int) -> int:
    return int(per_octave * np.log2(value)) if value > 0 else -1


def _count(step: StepReport, reached: dict[str, dict[int, int]], accepted: dict[str, dict[int, int]]) -> None:
    """Positions that were not verified are missing, not zero."""
    for group in step.groups:
        for drafted, kept, count in group.outcomes:
            for position in range(1, min(kept + 1, drafted) + 1):
                reached[group.segment][position] += count
                accepted[group.segment][position] += count if position <= kept else 0


def _acceptance(
    reached: dict[str, dict[int, int]], accepted: dict[str, dict[int, int]]
) -> dict[str, tuple[float, ...]]:
    found = {}
    for segment, positions in sorted(reached.items()):
        shares = []
        for position in sorted(positions):
            if positions[position] < LEAST_REACHED:
                break
            shares.append(accepted[segment][position] / positions[position])
        if shares:
            found[segment] = tuple(shares)
    return found


def _fingerprint(recording: Recording) -> Fingerprint | None:
    hellos = [recording.hello(engine) for engine in recording.engines]
    kinds = {hello.fingerprint for hello in hellos if hello is not None}
    return kinds.pop() if len(kinds) == 1 else None
