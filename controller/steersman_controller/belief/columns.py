"""Reports as arrays, those left out that contradict themselves.

Rules of this file:

- A report is believed as a whole or not at all: one that claims the impossible in one group is no witness
  for the seconds it took either.
- Everything is checked here although the wire checks ranges: a record may come from this process.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask, added_up
from steersman_controller.belief.signal_rows import SignalRows, liars, signal_rows
from steersman_policies.messages import CONTEXT_EDGES_TOKENS, NotDrafted, StepReport

CONTEXTS = len(CONTEXT_EDGES_TOKENS) + 1

NOT_ASKED: tuple[NotDrafted, ...] = ("grammar", "length_limit", "invalid_state")
"""Reasons that say nothing about the drafter: the request could not be drafted for."""

LARGEST = 1e15

MOST_TOKENS = float(1 << 24)
"""No forward reads more of prompts, and no request has a longer context."""

LEAST_S = 1e-9
"""No forward is faster."""

PADDING_TOKENS = 1024.0
"""A captured graph fills a forward up to twice its tokens and so many more, at most."""

TRIPLE, LARGEST_IN_A_BYTE = 0x93, 0x7F
"""Msgpack: what an array of three begins with, and up to which number one byte is the number itself."""

_encoder = msgspec.msgpack.Encoder()


class Columns(Struct, frozen=True, gc=False):
    """Steps, their groups, and the outcomes of those, each in the order of the reports."""

    seconds: Array
    """[draft, verify, other] by step."""
    started_s: Array
    busy_s: Array
    decode_requests: Array
    prefill_tokens: Array
    target_tokens: Array
    context_tokens: Array
    depth: Array
    requests_drafting: Array
    committed_tokens: Array
    trains: Mask
    after_switch: Mask
    groups_before: Counts
    """By step, and the number of all at the end."""
    names: Sequence[str]
    """Segment by group."""
    step: Counts
    bucket: Counts
    k: Counts
    requests: Array
    teaches: Array
    """1 where the group says something about the drafter, else 0."""
    drafts: Array
    """[asked, drafted, without valid drafter state]: requests of the groups that teach. Asked are those
    that the drafter could have served."""
    outcomes_before: Counts
    """By group, and the number of all at the end."""
    group: Counts
    """By outcome."""
    marks: Counts
    """[offered, reached, accepted]: up to which position."""
    verified: Array
    """Requests with this outcome."""
    count: Array
    """The same, 0 in groups that do not teach."""
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
        return Columns(
            seconds=self.seconds[:, start:end],
            started_s=self.started_s[start:end],
            busy_s=self.busy_s[start:end],
            decode_requests=self.decode_requests[start:end],
            prefill_tokens=self.prefill_tokens[start:end],
            target_tokens=self.target_tokens[start:end],
            context_tokens=self.context_tokens[start:end],
            depth=self.depth[start:end],
            requests_drafting=self.requests_drafting[start:end],
            committed_tokens=self.committed_tokens[start:end],
            trains=self.trains[start:end],
            after_switch=self.after_switch[start:end],
            groups_before=self.groups_before[start : end + 1] - first,
            names=self.names[first:last],
            step=self.step[first:last] - start,
            bucket=self.bucket[first:last],
            k=self.k[first:last],
            requests=self.requests[first:last],
            teaches=self.teaches[first:last],
            drafts=self.drafts[:, first:last],
            outcomes_before=self.outcomes_before[first : last + 1] - begin,
            group=self.group[begin:stop] - first,
            marks=self.marks[:, begin:stop],
            verified=self.verified[begin:stop],
            count=self.count[begin:stop],
            signals=self.signals.cut(first, last),
        )


def columns(reports: Sequence[StepReport], k_max: int) -> tuple[Columns, Sequence[StepReport]]:
    """The sane reports as arrays, and themselves."""
    with np.errstate(invalid="ignore"):
        found, sane = _arrays(reports, k_max)
    if sane.all():
        return found, reports
    kept = [report for report, good in zip(reports, sane.tolist(), strict=True) if good]
    return _arrays(kept, k_max)[0], kept


def _arrays(reports: Sequence[StepReport], k_max: int) -> tuple[Columns, Mask]:
    """All reports as arrays, and which of them are sane."""
    numbers = _floats(
        [report.draft_s for report in reports],
        [report.verify_s for report in reports],
        [report.other_s for report in reports],
        [report.started_s for report in reports],
        [report.decode_requests for report in reports],
        [report.prefill_tokens for report in reports],
        [report.target_tokens for report in reports],
        [report.context_tokens for report in reports],
        [report.drafting_depth for report in reports],
        [report.requests_drafting for report in reports],
        [report.committed_tokens for report in reports],
    )
    by_step = [report.groups for report in reports]
    step, groups_before = _members(by_step)
    groups = list(chain.from_iterable(by_step))
    of_group = _small(
        [group.context_bucket for group in groups],
        [group.commanded_k for group in groups],
        [group.requests for group in groups],
        [group.requests_drafted for group in groups],
        [group.requests_empty for group in groups],
    )
    bucket, k, requests, requests_drafted, _ = of_group
    invalid, not_asked = _left_out([group.not_drafted for group in groups])
    by_group = [group.outcomes for group in groups]
    group, outcomes_before = _members(by_group)
    drafted, accepted, count = _triples(list(chain.from_iterable(by_group)))

    possible = _possible(of_group)
    possible &= (k <= k_max) & (bucket < CONTEXTS) & (not_asked >= 0.0)
    possible &= requests_drafted + not_asked <= requests
    fits = (accepted >= 0.0) & (accepted <= drafted) & (drafted <= k[group]) & (count >= 0.0)
    with_draft = added_up(group, count * (drafted > 0.0), len(k))
    possible &= with_draft == requests_drafted
    if not fits.all():
        possible[group[~fits]] = False
    marks = np.empty((3, len(group)), np.int64)
    marks[0], marks[1], marks[2] = drafted, np.minimum(drafted, accepted + 1.0), accepted
    signals = signal_rows(groups)
    possible &= ~liars(signals, (group, marks, count), requests, k_max)
    sane = _possible(numbers)
    if not possible.all():
        sane[step[~possible]] = False
    sane &= numbers[8] <= k_max
    sane &= (numbers[:3].max(axis=0) >= LEAST_S) | (numbers[6] == 0.0)  # no forward takes no time
    sane &= (numbers[5] <= MOST_TOKENS) & (numbers[7] <= MOST_TOKENS * numbers[4])
    most = 2.0 * ((k_max + 1.0) * numbers[4] + numbers[5]) + PADDING_TOKENS
    sane &= (numbers[6] <= most) & (numbers[10] <= most)
    sane &= added_up(step, requests, len(reports)) <= numbers[4]
    sane &= numbers[4] + added_up(step[group], drafted * count, len(reports)) <= numbers[6]

    seconds = numbers[:3]
    special = [report.warm_up or report.graph_capture or report.preemption for report in reports]
    trains = ((numbers[10] > 0.0) | (numbers[5] > 0.0)) & ~_flags(special)
    teaches = (trains[step] & (k > 0.0)).astype(np.float64)
    drafts = np.empty((3, len(k)))
    drafts[0], drafts[1], drafts[2] = requests - not_asked, requests_drafted, invalid
    return (
        Columns(
            seconds=seconds,
            started_s=numbers[3],
            busy_s=seconds[0] + seconds[1] + seconds[2],
            decode_requests=numbers[4],
            prefill_tokens=numbers[5],
            target_tokens=numbers[6],
            context_tokens=numbers[7],
            depth=numbers[8],
            requests_drafting=numbers[9],
            committed_tokens=numbers[10],
            trains=trains,
            after_switch=_flags([report.first_after_switch for report in reports]),
            groups_before=groups_before,
            names=[group.segment for group in groups],
            step=step,
            bucket=bucket.astype(np.int64),
            k=k.astype(np.int64),
            requests=requests,
            teaches=teaches,
            drafts=drafts * teaches,
            outcomes_before=outcomes_before,
            group=group,
            marks=marks,
            verified=count,
            count=count * teaches[group],
            signals=signals,
        ),
        sane,
    )


def _floats(*columns: Sequence[float]) -> Array:
    """Columns of equal length."""
    flat = list(chain.from_iterable(columns))
    return np.fromiter(flat, np.float64, len(flat)).reshape(len(columns), -1)


def _small(*columns: Sequence[float]) -> Array:
    """The same, for what nearly always fits into a byte: that is several times faster."""
    flat = list(chain.from_iterable(columns))
    try:
        found = np.frombuffer(bytearray(flat), np.uint8).astype(np.float64)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return _floats(*columns)
    return found.reshape(len(columns), -1)


def _triples(triples: Sequence[tuple[float, float, float]]) -> Array:
    """First, second and third numbers.

    Msgpack has one byte for each small number, behind one for each triple: an encoder in C lays them out
    much faster than Python can walk through thousands of tuples.
    """
    number = len(triples)
    encoded = np.frombuffer(_encoder.encode(triples), np.uint8)
    if len(encoded) < 4 * number + 16:
        packed = encoded[len(encoded) - 4 * number :].reshape(number, 4).T
        if (packed[0] == TRIPLE).all() and (packed[1:] <= LARGEST_IN_A_BYTE).all():
            return np.asarray(packed[1:].astype(np.float64, order="C"))
    flat = list(chain.from_iterable(triples))
    return np.fromiter(flat, np.float64, len(flat)).reshape(number, 3).T


def _possible(rows: Array) -> Mask:
    """By column, whether all numbers are in the range that anything can have."""
    return np.asarray((rows.min(axis=0) >= 0.0) & (rows.max(axis=0) <= LARGEST))


def _flags(values: Sequence[bool]) -> Mask:
    return np.fromiter(values, np.bool_, len(values))


def _members(containers: Sequence[Sequence[object]]) -> tuple[Counts, Counts]:
    """For each member the index of its container; and how many come before each container."""
    number = len(containers)
    members = np.fromiter(map(len, containers), np.int64, number)
    before = np.zeros(number + 1, np.int64)
    members.cumsum(out=before[1:])
    return np.arange(number).repeat(members), before


def _left_out(by_group: Sequence[Mapping[NotDrafted, int]]) -> tuple[Array, Array]:
    """Requests with an invalid drafter state, and all that could not be drafted for, by group."""
    invalid, not_asked = np.zeros((2, len(by_group)))
    if set().union(*by_group) <= {"no_match"}:
        return invalid, not_asked
    for index, reasons in enumerate(by_group):
        if reasons:
            invalid[index] = reasons.get("invalid_state", 0)
            not_asked[index] = sum(reasons.get(reason, 0) for reason in NOT_ASKED)
    return invalid, not_asked
