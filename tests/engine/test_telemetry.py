"""What the engine hands over is validated row by row, then aggregated exactly."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_engine import telemetry
from steersman_engine.rows import StepRows
from steersman_engine.telemetry import aggregate
from steersman_policies import codec
from steersman_policies.executor import Decision
from steersman_policies.messages import StepReport, context_bucket

COLUMNS = ("segments", "context_tokens", "commanded_k", "drafted", "accepted", "committed", "not_drafted")
DECISION = Decision({"chat": 4, "code": 2}, plan_id=7, reason="table", switched=False)
GOOD = ("chat", 100, 4, 4, 2, 3, "")


def rows_of(*rows: tuple[Any, ...], **change: Any) -> StepRows:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in COLUMNS]
    fields: dict[str, Any] = {
        "step": 5,
        "started_s": 10.0,
        "draft_s": 0.001,
        "verify_s": 0.005,
        "other_s": 0.001,
        "prefill_tokens": 0,
        "first_tokens": 0,
        "requests_drafting": len(rows),
        "waiting": 3,
        "kv_used_fraction": 0.5,
        "decision": DECISION,
    }
    return StepRows(**{**fields, **dict(zip(COLUMNS, columns, strict=True)), **change})


def reported(rows: StepRows) -> StepReport:
    report, refused = aggregate(rows)
    assert refused == {}
    assert report is not None
    return report


def test_rows_are_grouped_by_segment_context_and_commanded_k() -> None:
    """Equal keys share a group; outcomes are sparse counts; nothing is lost."""
    report = reported(
        rows_of(
            GOOD,
            ("chat", 256, 4, 4, 2, 3, ""),
            ("chat", 257, 4, 4, 0, 1, ""),
            ("chat", 100, 2, 2, 2, 3, ""),
            ("code", 100, 4, 0, 0, 1, "no_match"),
            ("code", 100, 4, 0, 0, 0, "grammar"),
            ("code", 100, 4, 0, 0, 1, ""),
            prefill_tokens=50,
            first_tokens=2,
        )
    )
    groups = {(g.segment, g.context_bucket, g.commanded_k): g for g in report.groups}
    assert set(groups) == {("chat", 0, 4), ("chat", 1, 4), ("chat", 0, 2), ("code", 0, 4)}
    assert groups["chat", 0, 4].outcomes == ((4, 2, 2),)
    code = groups["code", 0, 4]
    assert (code.requests, code.requests_drafted, code.requests_empty) == (3, 0, 1)
    assert code.not_drafted == {"no_match": 1, "grammar": 1}
    assert report.decode_requests == 7
    assert report.target_tokens == 7 + (4 + 4 + 4 + 2) + 50
    assert report.context_tokens == 100 * 5 + 256 + 257
    assert report.committed_tokens == 3 + 3 + 1 + 3 + 1 + 0 + 1 + 2


def test_the_report_says_which_depth_is_which() -> None:
    """Groups hold the K that was verified, the report what was commanded for the next step."""
    decision = Decision({"chat": 1, "code": 6}, 9, "explore", True, True, 0.25, {"chat": 3})
    report, _ = aggregate(rows_of(GOOD, decision=decision), first_after_switch=True)
    assert report is not None
    assert (report.drafting_depth, report.commanded, report.groups[0].commanded_k) == (
        6,
        {"chat": 1, "code": 6},
        4,
    )
    assert (report.explored, report.probability, report.reason, report.plan_id) == (True, 0.25, "explore", 9)
    assert (report.first_after_switch, report.would_be) == (True, {"chat": 3})
    idle, _ = aggregate(rows_of(GOOD, decision=decision, requests_drafting=0))
    assert idle is not None
    assert idle.drafting_depth == 0


def test_a_step_without_rows_is_a_report() -> None:
    """A step of prefill alone has no groups, and its tokens still count."""
    report = reported(rows_of(prefill_tokens=64, first_tokens=1))
    assert (report.decode_requests, report.target_tokens, report.committed_tokens) == (0, 64, 1)


BAD_ROWS = {
    "over_commanded": ("chat", 10, 2, 3, 1, 2, ""),
    "over_accepted": ("chat", 10, 4, 3, 4, 5, ""),
    "over_committed": ("chat", 10, 4, 4, 2, 4, ""),
    "negative": ("chat", 10, 4, 4, -1, 0, ""),
    "absurd": ("chat", 10, 65, 65, 0, 1, ""),
    "segment": ("what is this?", 10, 4, 4, 2, 3, ""),
    "not_drafted": ("chat", 10, 4, 0, 0, 1, "bored"),
}


@pytest.mark.parametrize("reason", BAD_ROWS)
def test_a_bad_row_is_counted_by_reason_and_leaves_no_trace(reason: str) -> None:
    """The report equals the report of the good rows alone."""
    good = (GOOD, ("code", 300, 2, 2, 1, 2, ""))
    bad = BAD_ROWS[reason]
    report, refused = aggregate(rows_of(good[0], bad, good[1], bad, requests_drafting=2))
    assert refused == {reason: 2}
    assert report == reported(rows_of(*good))


@pytest.mark.parametrize(
    "bad",
    [
        ("chat", -1, 4, 4, 2, 3, ""),
        ("chat", 1 << 40, 4, 4, 2, 3, ""),
        ("chat", 10, -4, 0, 0, 1, ""),
        ("chat", 10, 4, 4, 2, -3, ""),
        ("chat", 10, 4, 4, 2, 3, "no_match"),
        ("chat", 10, 0, 0, 0, 1, "no_match"),
        ("", 10, 4, 4, 2, 3, ""),
        ("a\n", 10, 4, 4, 2, 3, ""),
        ("x" * 65, 10, 4, 4, 2, 3, ""),
    ],
)
def test_other_bad_rows_are_refused(bad: tuple[Any, ...]) -> None:
    """One row is refused, the other is reported."""
    report, refused = aggregate(rows_of(GOOD, bad, requests_drafting=1))
    assert sum(refused.values()) == 1
    assert report == reported(rows_of(GOOD))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1e-9, 1e7])
@pytest.mark.parametrize("field", ["draft_s", "verify_s", "other_s"])
def test_a_step_with_an_impossible_time_is_refused(field: str, seconds: float) -> None:
    """A wrong time spoils the whole step."""
    assert aggregate(rows_of(GOOD, **{field: seconds})) == (None, {"step_time": 1})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"started_s": math.nan}, "step_time"),
        ({"kv_used_fraction": 1.5}, "step_kv_used"),
        ({"kv_used_fraction": math.nan}, "step_kv_used"),
        ({"waiting": -1}, "step_count"),
        ({"prefill_tokens": 1 << 40}, "step_count"),
        ({"prefill_tokens": 1.5}, "step_malformed"),
        ({"drafted": [4, 4]}, "step_malformed"),
        ({"accepted": [2.0]}, "step_malformed"),
        ({"committed": ["3"]}, "step_malformed"),
        ({"segments": [["chat"]]}, "step_malformed"),
        ({"segments": None}, "step_malformed"),
        ({"verify_s": "fast"}, "step_malformed"),
        ({"decision": Decision({"chat": 99}, 1, "table", False)}, "step_decision"),
        ({"decision": Decision({"a b": 1}, 1, "table", False)}, "step_decision"),
        ({"decision": Decision({f"s{i}": 1 for i in range(17)}, 1, "table", False)}, "step_decision"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(change: dict[str, Any], reason: str) -> None:
    """Counted once under a reason that says it was the whole step; nothing is raised."""
    assert aggregate(rows_of(GOOD, **change)) == (None, {reason: 1})


def test_a_17th_segment_is_refused() -> None:
    """A frame's size is bounded whatever the engine calls its segments."""
    report, refused = aggregate(rows_of(*((f"s{i}", 10, 4, 4, 2, 3, "") for i in range(20))))
    assert refused == {"segment": 4}
    assert report is not None
    assert len(report.groups) == 16


def test_the_size_of_a_report_does_not_follow_the_batch() -> None:
    """4,096 requests fit in a few kilobytes."""
    small = reported(rows_of(*[GOOD] * 64))
    large = reported(rows_of(*[GOOD] * 4096))
    assert len(msgspec.msgpack.encode(large)) <= len(msgspec.msgpack.encode(small)) + 16


row = st.tuples(
    st.sampled_from(["chat", "code", "no such", "x" * 70]),
    st.integers(-2, 20_000),
    st.integers(-1, 66),
    st.integers(-1, 66),
    st.integers(-1, 66),
    st.integers(-1, 67),
    st.sampled_from(["", "no_match", "grammar", "bored"]),
)


@given(st.lists(row, max_size=40))
def test_whatever_is_handed_over_makes_a_report_that_the_peer_understands(
    rows: list[tuple[Any, ...]],
) -> None:
    """Counts add up, the sums are those of the valid rows, and the frame decodes to the same report."""
    report, refused = aggregate(rows_of(*rows, requests_drafting=0))
    assert report is not None
    valid = [r for r in rows if is_valid(r)]
    assert report.decode_requests == len(valid) == sum(group.requests for group in report.groups)
    assert sum(refused.values()) == len(rows) - len(valid)
    assert report.context_tokens == sum(r[1] for r in valid)
    assert report.committed_tokens == sum(r[5] for r in valid)
    outcomes: Counter[tuple[str, int, int, int, int]] = Counter()
    for group in report.groups:
        for drafted, accepted, count in group.outcomes:
            outcomes[group.segment, group.context_bucket, group.commanded_k, drafted, accepted] += count
    assert outcomes == Counter((r[0], context_bucket(r[1]), *r[2:5]) for r in valid if r[3])
    envelope = codec.Envelope(codec.SCHEMA, 1, "engine", 0, report)
    assert codec.decode(codec.encode(b"step", 0, envelope)).envelope == envelope


def is_valid(r: tuple[Any, ...]) -> bool:
    """The rules once more, one by one."""
    segment, context, k, drafted, accepted, committed, why = r
    return (
        segment in {"chat", "code"}
        and min(context, k, drafted, accepted, committed) >= 0
        and k <= 64
        and drafted <= k
        and accepted <= drafted
        and committed <= accepted + 1
        and why != "bored"
        and not (why and (drafted > 0 or k == 0))
    )


def test_a_missing_validation_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the row check planted away, a bad row does reach the report."""
    monkeypatch.setattr(telemetry, "_row_fault", lambda row: None)
    report, refused = aggregate(rows_of(GOOD, BAD_ROWS["over_commanded"]))
    assert report is not None
    assert report.decode_requests == 2
    assert refused == {}
