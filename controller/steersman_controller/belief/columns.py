"""Steps, their groups and the outcomes of those as columns: what everything that learns works on."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from steersman_controller.belief import encoded_reports as rows
from steersman_controller.belief.arrays import Array, Bytes, Counts, Mask
from steersman_controller.belief.signal_rows import NO_SIGNALS, SignalRows, liars, signal_rows
from steersman_policies.messages import CONTEXT_EDGES_TOKENS, Group, NotDrafted, StepReport

CONTEXTS = len(CONTEXT_EDGES_TOKENS) + 1

NOT_ASKED: tuple[NotDrafted, ...] = ("invalid_state", "grammar", "length_limit")
"""Reasons that say nothing about the drafter: the request could not be drafted for."""


class Columns(Struct, frozen=True, gc=False):
    """Those of steps, of groups and of outcomes, each in the order of the reports."""

    draft_s: Array
    verify_s: Array
    other_s: Array
    started_s: Array
    decode_requests: Array
    prefill_tokens: Array
    target_tokens: Array
    context_tokens: Array
    depth: Array
    requests_drafting: Array
    committed_tokens: Array
    busy_s: Array
    trains: Mask
    after_switch: Mask
    step: Counts
    """By group, as all that follows."""
    bucket: Counts
    k: Counts
    requests: Array
    asked: Array
    """Requests that the drafter could have served; 0 where the group says nothing about it."""
    with_draft: Array
    """Of those, likewise."""
    invalid: Array
    """Requests without a valid drafter state, likewise."""
    teaches: Array
    """1 where the group says something about the drafter, else 0."""
    offered: Counts
    """Up to which position, by outcome, as all that follows."""
    reached: Counts
    accepted: Counts
    verified: Array
    """Requests with this outcome."""
    groups_before: Counts
    """By step, and the number of all at the end."""
    outcomes_before: Counts
    """By group, and the number of all at the end."""
    names: Sequence[str]
    """Segment by group."""
    signals: SignalRows

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.started_s)

    def cut(self, start: int, end: int) -> "Columns":
        """Steps `start` to `end`, the latter not included, counted from 0 again."""
        if start == 0 and end == self.steps:
            return self
        first, last = int(self.groups_before[start]), int(self.groups_before[end])
        begin, stop = int(self.outcomes_before[first]), int(self.outcomes_before[last])
        found: list[Any] = [
            *[column[start:end] for column in _by_step(self)],
            self.step[first:last] - start,
            *[column[first:last] for column in _by_group(self)],
            *[column[begin:stop] for column in _by_outcome(self)],
            self.groups_before[start : end + 1] - first,
            self.outcomes_before[first : last + 1] - begin,
            self.names[first:last],
            self.signals.cut(first, last),
        ]
        return Columns(*found)


_FIELDS = Columns.__struct_fields__
_STEP, _OFFERED, _ENDS = (_FIELDS.index(name) for name in ("step", "offered", "groups_before"))
_by_step = attrgetter(*_FIELDS[:_STEP])
_by_group = attrgetter(*_FIELDS[_STEP + 1 : _OFFERED])
_by_outcome = attrgetter(*_FIELDS[_OFFERED:_ENDS])

_STEP_FIELDS = {
    "draft_s": rows.DRAFT_S,
    "verify_s": rows.VERIFY_S,
    "other_s": rows.OTHER_S,
    "started_s": rows.STARTED_S,
    "decode_requests": rows.DECODE_REQUESTS,
    "prefill_tokens": rows.PREFILL_TOKENS,
    "target_tokens": rows.TARGET_TOKENS,
    "context_tokens": rows.CONTEXT_TOKENS,
    "drafting_depth": rows.DRAFTING_DEPTH,
    "requests_drafting": rows.REQUESTS_DRAFTING,
    "committed_tokens": rows.COMMITTED_TOKENS,
    "warm_up": rows.WARM_UP,
    "graph_capture": rows.GRAPH_CAPTURE,
    "preemption": rows.PREEMPTION,
    "first_after_switch": rows.FIRST_AFTER_SWITCH,
    "groups": rows.GROUPS,
}
_GROUP_FIELDS = {
    "context_bucket": rows.CONTEXT_BUCKET,
    "requests": rows.REQUESTS,
    "commanded_k": rows.COMMANDED_K,
    "requests_drafted": rows.REQUESTS_DRAFTED,
    "requests_empty": rows.REQUESTS_EMPTY,
    "outcomes": rows.OUTCOMES,
    "not_drafted": rows.NOT_DRAFTED,
    "signals": rows.SIGNALS,
}
_LAYOUTS = np.full((2, 1 + len(StepReport.__struct_fields__)), rows.IGNORED)
for name, what in _STEP_FIELDS.items():
    _LAYOUTS[0, 1 + StepReport.__struct_fields__.index(name)] = what  # behind the tag
for name, what in _GROUP_FIELDS.items():
    _LAYOUTS[1, Group.__struct_fields__.index(name)] = what
_WORDS = np.array(NOT_ASKED, "S32").view(np.uint8).reshape(len(NOT_ASKED), 32)

_encoder = msgspec.msgpack.Encoder(enc_hook=float)
"""What is a number of another kind counts as one."""


def columns(reports: Sequence[StepReport], k_max: int) -> tuple[Columns, Sequence[StepReport]]:
    """The sane reports as columns, and themselves."""
    reports, data = _encoded(reports)
    limits = np.array((k_max, CONTEXTS))
    # An outcome takes four bytes at least, a group nine.
    most, groups_most, outcomes_most = len(reports), len(data) // 9 + 1, len(data) // 4 + 1
    steps, groups = np.empty((rows.STEP_ROWS, most)), np.empty((rows.GROUP_ROWS, groups_most))
    places = np.empty((rows.PLACE_ROWS, groups_most), np.int64)
    outcomes = np.empty((rows.OUTCOME_ROWS, outcomes_most), np.int64)
    verified, sane = np.empty(outcomes_most), np.empty(most, np.bool_)
    groups_before, outcomes_before = np.empty(most + 1, np.int64), np.empty(groups_most + 1, np.int64)
    values = np.empty(len(data) + 4)  # a value takes a byte at least
    members, starts = np.empty((2, len(data) + 4), np.int64)
    signals = rows.read(
        data,
        values,
        members,
        starts,
        _LAYOUTS,
        _WORDS,
        limits,
        steps,
        groups_before,
        groups,
        places,
        outcomes_before,
        outcomes,
        verified,
        sane,
    )
    if not sane.all():
        reports = [report for report, good in zip(reports, sane.tolist(), strict=True) if good]
    number = len(reports)
    last = int(groups_before[number])
    found: list[Any] = [
        *steps[: rows.WARM_UP, :number],
        steps[rows.TRAINS, :number] > 0.0,
        steps[rows.FIRST_AFTER_SWITCH, :number] > 0.0,
        *places[:, :last],
        *groups[rows.REQUESTS :, :last],
        *outcomes[:, : outcomes_before[last]],
        verified[: outcomes_before[last]],
        groups_before[: number + 1],
        outcomes_before[: last + 1],
        [group.segment for report in reports for group in report.groups],
        NO_SIGNALS,
    ]
    if signals:
        return _with_signals(Columns(*found), reports, k_max)
    return Columns(*found), reports


def _encoded(reports: Sequence[StepReport]) -> tuple[Sequence[StepReport], Bytes]:
    """The reports that are of numbers at all, and themselves in msgpack."""
    try:
        return reports, np.frombuffer(_encoder.encode(reports), np.uint8)
    except (OverflowError, TypeError, ValueError):
        return _encoded([report for report in reports if _is_of_numbers(report)])


def _is_of_numbers(report: StepReport) -> bool:
    try:
        _encoder.encode(report)
    except (OverflowError, TypeError, ValueError):
        return False
    return True


def _with_signals(
    found: Columns, reports: Sequence[StepReport], k_max: int
) -> tuple[Columns, Sequence[StepReport]]:
    """The same with the signals of the groups, those reports left out whose signals contradict the rest."""
    signals = signal_rows([group for report in reports for group in report.groups])
    group = np.arange(len(found.step)).repeat(np.diff(found.outcomes_before))
    lie = liars(signals, (group, found.offered, found.accepted, found.verified), found.requests, k_max)
    if not lie.any():
        return msgspec.structs.replace(found, signals=signals), reports
    lying = set(found.step[lie].tolist())
    return columns([report for step, report in enumerate(reports) if step not in lying], k_max)
