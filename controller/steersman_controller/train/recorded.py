"""Step times and acceptance out of a recording of a live engine."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

from steersman_controller.belief.columns import NOT_ASKED
from steersman_controller.trace.recording import read_recording
from steersman_controller.trace.segment_facts import SegmentFacts, SegmentTally
from steersman_controller.train.cells import Cells
from steersman_controller.train.outcomes import Outcomes, outcomes_of
from steersman_controller.train.reduction import Group, reduced, sampled
from steersman_controller.train.table_file import database
from steersman_policies.messages import Fingerprint, RequestReport, StepReport
from steersman_policies.segmenter import Segmenter

COLUMNS: dict[str, Callable[[StepReport], float]] = {
    "batch_size": lambda step: step.decode_requests,
    "num_draft_tokens": lambda step: step.drafting_depth,
    "context_tokens": lambda step: step.context_tokens,
    "prefill_tokens": lambda step: step.prefill_tokens,
    "target_tokens": lambda step: step.target_tokens,
    "step_ms": lambda step: 1e3 * step.busy_s,
    "draft_ms": lambda step: 1e3 * step.draft_s,
    "verify_ms": lambda step: 1e3 * step.verify_s,
}
"""Our columns of step times, as a step report says them."""

Counts: TypeAlias = dict[str, dict[int, int]]
"""By segment and position."""

LEAST_REACHED = 30
"""A position that was reached less often has no acceptance of its own."""


class Recorded(Struct, frozen=True):
    """What a recording teaches."""

    path: Path
    """The file that was read."""
    groups: dict[Group, Cells]
    """One per engine."""
    sample: dict[Group, Cells]
    """Single steps of each."""
    steps: int
    acceptance: dict[str, tuple[float, ...]]
    """Accepted / reached by segment and position."""
    coverage: dict[str, float]
    """Drafted / asked by segment."""
    fingerprint: Fingerprint | None
    """Of the engine, where there is just one kind."""
    fingerprints: dict[Group, Fingerprint]
    """Of each engine."""
    warning: str | None
    outcomes: Outcomes
    """Finished requests."""
    segmenter: Segmenter
    """That sorted them."""
    facts: dict[str, SegmentFacts]


def read_recorded(path: Path) -> Recorded:
    """Cells by engine. Raises ValueError where the recording has no step to learn from."""
    recording = read_recording(path)
    engines = recording.engines
    columns: dict[str, array[float]] = {name: array("d") for name in (*COLUMNS, "engine")}
    reached: Counts = defaultdict(lambda: defaultdict(int))
    accepted: Counts = defaultdict(lambda: defaultdict(int))
    requests: list[RequestReport] = []
    drafted: Counts = defaultdict(lambda: defaultdict(int))
    tally = SegmentTally()
    numbers = {engine: float(index) for index, engine in enumerate(engines)}
    for event in recording.records():
        tally.add(event)
        step = event.record
        if isinstance(step, RequestReport):
            requests.append(step)
        elif isinstance(step, StepReport) and _teaches(step):
            for name, value in COLUMNS.items():
                columns[name].append(value(step))
            columns["engine"].append(numbers[event.engine_id])
            _count(step, reached, accepted)
            _count_drafted(step, drafted)
    steps = len(columns["engine"])
    if not steps:
        raise ValueError(f"{path}: no step in it that a model could learn from")
    groups, sample = _groups(columns, engines)
    hellos = {(engine,): recording.hello(engine) for engine in engines}
    fingerprints: dict[Group, Fingerprint] = {
        group: hello.fingerprint for group, hello in hellos.items() if hello is not None
    }
    return Recorded(
        path=recording.path,
        groups=groups,
        sample=sample,
        steps=steps,
        acceptance=_acceptance(reached, accepted),
        coverage={name: by[1] / sum(by.values()) for name, by in sorted(drafted.items()) if sum(by.values())},
        fingerprint=kinds.pop() if len(kinds := set(fingerprints.values())) == 1 else None,
        fingerprints=fingerprints,
        warning=recording.warning,
        outcomes=outcomes_of(requests),
        segmenter=recording.started.config.segmenter,
        facts=tally.facts(),
    )


def _teaches(step: StepReport) -> bool:
    return step.trains and not step.first_after_switch and step.decode_requests > 0 and step.busy_s > 0.0


def _groups(
    columns: Mapping[str, Sequence[float]], engines: list[str]
) -> tuple[dict[Group, Cells], dict[Group, Cells]]:
    """Cells, and single steps, by engine."""
    table = pa.table({name: np.asarray(column) for name, column in columns.items()})
    with database() as connection:
        connection.register("recorded", table)
        connection.execute(
            "create temp table steps as select *, row_number() over () as row, "
            "cast(cast(engine as int) as varchar) as by0 from recorded"
        )
        cells, sample = reduced(connection, 1, COLUMNS), sampled(connection, 1, COLUMNS)
    return _named(cells, engines), _named(sample, engines)


def _named(groups: Mapping[Group, Cells], engines: list[str]) -> dict[Group, Cells]:
    return {(engines[int(group[0])],): cells for group, cells in groups.items()}


def _count(step: StepReport, reached: Counts, accepted: Counts) -> None:
    """Positions that were not verified are missing, not zero."""
    for group in step.groups:
        for drafted, kept, count in group.outcomes:
            for position in range(1, min(kept + 1, drafted) + 1):
                reached[group.segment][position] += count
                accepted[group.segment][position] += count if position <= kept else 0


def _count_drafted(step: StepReport, drafted: Counts) -> None:
    """Requests asked for a draft, by whether the drafter had one."""
    for group in step.groups:
        if group.commanded_k:
            asked = group.requests - sum(group.not_drafted.get(reason, 0) for reason in NOT_ASKED)
            drafted[group.segment][1] += group.requests_drafted
            drafted[group.segment][0] += max(asked - group.requests_drafted, 0)


def _acceptance(reached: Counts, accepted: Counts) -> dict[str, tuple[float, ...]]:
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
