"""From what the engine's thread handed over to what goes on the wire: validate, then aggregate.

Rules of this file:

- Every row is validated before it is counted. A refused row is counted by reason and leaves no
  trace in the report: the report describes the valid rows only, so that its parts always agree.
- Equal rows are equally valid, so rows are first counted and each distinct one is looked at once.
  That is what keeps a batch of 256 cheap; the thread that runs this shares an interpreter lock with
  the engine's.
- Nothing here raises for anything an engine may hand over.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias, get_args

from msgspec import Struct

from steersman_engine.rows import StepRows
from steersman_engine.signals import GroupKey, Signals
from steersman_policies.messages import CONTEXT_EDGES_TOKENS, Group, NotDrafted, SignalCounts, StepReport
from steersman_policies.units import K_LIMIT, MAX_SEGMENTS

MAX_ROWS = 65_536
"""No batch has more requests."""

MAX_STEP_S = 3_600.0
"""No part of a step takes longer."""

MAX_CLOCK_S = 1e9
"""No monotonic clock is further."""

MAX_TOKENS = 1 << 31
"""No request or step holds more tokens."""

SEGMENT_PATTERN = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
"""`units.Segment`, ready to match."""

# Negative contexts fall below the first edge, absurd ones above the last.
_CONTEXT_EDGES = (-1, *CONTEXT_EDGES_TOKENS, MAX_TOKENS)
_TOO_LONG = len(_CONTEXT_EDGES)
_NOT_DRAFTED: frozenset[str] = frozenset(("", *get_args(NotDrafted)))

_Row: TypeAlias = tuple[str, int, int, int, int, int, Any]
"""Segment, place in `_CONTEXT_EDGES`, commanded K, drafted, accepted, committed, why not drafted."""


def aggregate(
    rows: StepRows, *, first_after_switch: bool = False, signals: Signals | None = None
) -> tuple[StepReport | None, dict[str, int]]:
    """The report of a step, and the number of rows refused by reason.

    None for a step that is refused as a whole: its reason then starts with `step_` and counts 1.
    `first_after_switch`: the decision of the step before changed some segment's K. `signals`: what was
    known of the requests so far; it learns from the step, and is left out where a row is refused.
    """
    try:
        reason = _step_fault(rows)
        if reason is not None:
            return None, {reason: 1}
        return _aggregated(rows, first_after_switch, signals)
    except (TypeError, ValueError, OverflowError, AttributeError):
        # A column of the wrong type or length: which rows belong together is anybody's guess.
        return None, {"step_malformed": 1}


def is_segment(name: str) -> bool:
    """Whether a name is fit to be a segment.

    >>> is_segment("chat"), is_segment("what is this?"), is_segment("")
    (True, False, False)
    """
    return _is_segment(name)


@lru_cache(maxsize=4096)
def _is_segment(name: str) -> bool:
    return SEGMENT_PATTERN.fullmatch(name) is not None


def _step_fault(rows: StepRows) -> str | None:
    """Why the whole step is worthless; None when it is not."""
    times_s = (rows.draft_s, rows.verify_s, rows.other_s)
    # Written so that NaN fails, too.
    if not all(0.0 <= time_s <= MAX_STEP_S for time_s in times_s) or not 0.0 <= rows.started_s <= MAX_CLOCK_S:
        return "step_time"
    if not 0.0 <= rows.kv_used_fraction <= 1.0:
        return "step_kv_used"
    counts = (rows.step, rows.prefill_tokens, rows.first_tokens, rows.requests_drafting, rows.waiting)
    if not all(0 <= count < MAX_TOKENS for count in counts) or len(rows.segments) > MAX_ROWS:
        return "step_count"
    for told in (rows.requests, rows.confidence):
        if told and len(told) != len(rows.segments):
            return "step_malformed"
    columns = (rows.context_tokens, rows.commanded_k, rows.drafted, rows.accepted, rows.committed, counts)
    if any(type(sum(column)) is not int for column in columns):  # one float makes a float of the sum
        return "step_malformed"
    return _decision_fault(rows)


def _decision_fault(rows: StepRows) -> str | None:
    decision = rows.decision
    for commanded in (decision.proposal_length, decision.would_be):
        if len(commanded) > MAX_SEGMENTS:
            return "step_decision"
        for segment, k in commanded.items():
            if not (0 <= k <= K_LIMIT and _is_segment(segment)):
                return "step_decision"
    return None if 0.0 <= decision.probability <= 1.0 else "step_decision"


def _contexts(rows: StepRows) -> list[int]:
    return list(map(bisect_left, repeat(_CONTEXT_EDGES, len(rows.context_tokens)), rows.context_tokens))


def _distinct(rows: StepRows, contexts: Sequence[int]) -> Iterator[_Row]:
    return zip(
        rows.segments,
        contexts,
        rows.commanded_k,
        rows.drafted,
        rows.accepted,
        rows.committed,
        rows.not_drafted,
        strict=True,
    )


def _row_fault(row: _Row) -> str | None:
    """Why a row is refused; None when it is valid."""
    segment, context, k, drafted, accepted, committed, why = row
    if (
        0 <= accepted <= drafted <= k <= K_LIMIT
        and 0 <= committed <= accepted + 1
        and 0 < context < _TOO_LONG
        and (not why or (why in _NOT_DRAFTED and k and not drafted))
        and _is_segment(segment)
    ):
        return None
    faults = (
        ("negative", min(k, drafted, accepted, committed) < 0 or context == 0),
        ("absurd", k > K_LIMIT or context == _TOO_LONG),
        ("over_commanded", drafted > k),
        ("over_accepted", accepted > drafted),
        ("over_committed", committed > accepted + 1),
        ("not_drafted", why not in _NOT_DRAFTED or (why and (drafted or not k))),
        ("segment", True),
    )
    return next(reason for reason, found in faults if found)


class _GroupCounts(Struct, gc=False):
    """A `Group` that still grows."""

    requests: int
    requests_drafted: int
    requests_empty: int
    outcomes: dict[tuple[int, int], int]
    not_drafted: dict[NotDrafted, int]


def _aggregated(
    rows: StepRows, first_after_switch: bool, signals: Signals | None
) -> tuple[StepReport, dict[str, int]]:
    contexts = _contexts(rows)
    counted = Counter(_distinct(rows, contexts))
    faults = {row: reason for row in counted if (reason := _row_fault(row)) is not None}
    if len(set(rows.segments)) > MAX_SEGMENTS:
        faults |= _crowd_faults(counted, faults)
    refused: Counter[str] = Counter()
    for row, reason in faults.items():
        refused[reason] += counted.pop(row)
    context_tokens = sum(rows.context_tokens)
    if faults:
        valid = zip(_distinct(rows, contexts), rows.context_tokens, strict=True)
        context_tokens = sum(tokens for row, tokens in valid if row not in faults)
    known = signals.count(rows, contexts) if signals is not None and not faults else {}
    return _report(rows, counted, context_tokens, known, first_after_switch), dict(refused)


def _crowd_faults(counted: Mapping[_Row, int], faults: Mapping[_Row, str]) -> dict[_Row, str]:
    """Rows of segments past the 16th: they would make a frame of any size."""
    seen = dict.fromkeys(row[0] for row in counted if row not in faults)
    crowd = frozenset(list(seen)[MAX_SEGMENTS:])
    return {row: "segment" for row in counted if row[0] in crowd and row not in faults}


def _report(
    rows: StepRows,
    counted: Mapping[_Row, int],
    context_tokens: int,
    signals: Mapping[GroupKey, tuple[SignalCounts, ...]],
    first_after_switch: bool,
) -> StepReport:
    requests = drafted_tokens = committed_tokens = 0
    groups: dict[GroupKey, _GroupCounts] = {}
    for row, count in counted.items():
        requests += count
        drafted_tokens += count * row[3]
        committed_tokens += count * row[5]
        _add(groups, row, count)
    decision = rows.decision
    asked = decision.proposal_length.values() if rows.requests_drafting else ()
    return StepReport(
        step=rows.step,
        started_s=float(rows.started_s),
        draft_s=float(rows.draft_s),
        verify_s=float(rows.verify_s),
        other_s=float(rows.other_s),
        decode_requests=requests,
        prefill_tokens=rows.prefill_tokens,
        target_tokens=requests + drafted_tokens + rows.prefill_tokens,
        context_tokens=context_tokens,
        drafting_depth=max(asked, default=0),
        requests_drafting=rows.requests_drafting,
        waiting=rows.waiting,
        kv_used_fraction=float(rows.kv_used_fraction),
        committed_tokens=committed_tokens + rows.first_tokens,
        plan_id=decision.plan_id,
        groups=tuple(_group(key, group, signals.get(key, ())) for key, group in groups.items()),
        warm_up=rows.warm_up,
        graph_capture=rows.graph_capture,
        preemption=rows.preemption,
        first_after_switch=first_after_switch,
        explored=decision.explored,
        probability=float(decision.probability),
        reason=decision.reason,
        commanded=decision.proposal_length,
        would_be=decision.would_be,
    )


def _add(groups: dict[GroupKey, _GroupCounts], row: _Row, count: int) -> None:
    """Count `count` equal rows into their group."""
    segment, context, k, drafted, accepted, committed, why = row
    group = groups.get((segment, context, k))
    if group is None:
        group = groups[segment, context, k] = _GroupCounts(0, 0, 0, {}, {})
    group.requests += count
    if drafted:
        group.requests_drafted += count
        outcome = (drafted, accepted)
        group.outcomes[outcome] = group.outcomes.get(outcome, 0) + count
    elif why:
        group.not_drafted[why] = group.not_drafted.get(why, 0) + count
    if not committed:
        group.requests_empty += count


def _group(key: GroupKey, group: _GroupCounts, signals: tuple[SignalCounts, ...]) -> Group:
    segment, context, k = key
    return Group(
        segment=segment,
        context_bucket=context - 1,  # the first edge only caught what is negative
        requests=group.requests,
        commanded_k=k,
        requests_drafted=group.requests_drafted,
        outcomes=tuple((drafted, accepted, count) for (drafted, accepted), count in group.outcomes.items()),
        requests_empty=group.requests_empty,
        not_drafted=group.not_drafted,
        signals=signals,
    )
