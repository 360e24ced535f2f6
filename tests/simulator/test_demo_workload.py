"""The demo's prompts: what may stand in a workload file, and when each request is sent."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import astuple

from steersman_simulator.demo.schedule import QUIET, QUIET_AGAIN, SATURATED, Pace, make_schedule
from steersman_simulator.demo.serving import MAX_BATCH
from steersman_simulator.demo.workload import WorkItem, bundled_workload, parse_workload, read_workload

PACE = Pace(first_token_s=0.3, lone_token_s=0.06, crowded_first_s=0.2, crowded_token_s=0.008)


def test_bundled_workload_has_forty_prompts_of_four_kinds() -> None:
    """The shipped workload holds at least 40 different prompts of at least four kinds, all with a limit."""
    items = bundled_workload()
    kinds = Counter(item.segment for item in items)
    texts = {item.messages[0].content for item in items if item.messages}
    assert len(items) >= 40
    assert len(texts) == len(items)
    assert set(kinds) == {"code_edit", "summarise", "extract", "chat"}
    assert min(kinds.values()) >= 7


def test_segment_and_arrival_may_be_missing_and_order_is_kept(tmp_path: Path) -> None:
    """A line needs a prompt only; blank lines are skipped; a null segment is none."""
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "one", "segment": null}\n\n{"prompt": "two\u2028", "max_tokens": 3}\n')
    items = read_workload(path)
    assert [(item.prompt, item.segment, item.arrival_s) for item in items] == [
        ("one", None, None),
        ("two\u2028", None, None),
    ]
    assert items[1].max_tokens == 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"promt": "x"}', "unknown key 'promt', did you mean 'prompt'?; allowed: prompt, messages"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens: Expected `int` >= 1"),
        ('{"prompt": "x", "segment": "a b"}', "segment: Expected `str` matching regex"),
        ('{"prompt": "x", "arrival_s": -1}', "arrival_s: Expected `float` >= 0"),
        ('{"prompt": ""}', "prompt: Expected `str` of length >= 1"),
        ('{"messages": []}', "messages: Expected `array` of length >= 1"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "messages[0].role: Expected `str` matching"),
        ('{"segment": "chat"}', "needs exactly one of prompt and messages"),
        ('{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}', "needs exactly one of"),
        ('["prompt"]', "expected an object, found list"),
        ("{prompt", "not JSON"),
    ],
)
def test_bad_line_is_refused_with_its_place(line: str, expected: str) -> None:
    """A bad line is one error that names file, line, key and what is allowed."""
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        parse_workload('{"prompt": "fine"}\n' + line, "mine.jsonl")
    assert str(error.value).startswith("mine.jsonl:2: ")
    assert "\n" not in str(error.value)


def test_half_given_arrivals_are_refused() -> None:
    """Arrival times are given on every line or on none."""
    text = '{"prompt": "a", "arrival_s": 0}\n{"prompt": "b"}'
    with pytest.raises(ValueError, match="arrival_s is on 1 of 2 lines; give it on all or on none"):
        parse_workload(text, "w")


def test_empty_files_and_too_many_segments_are_refused() -> None:
    """No request at all, or more segments than a plan can hold, is an error."""
    with pytest.raises(ValueError, match="w: 0 requests, allowed are 1 to"):
        parse_workload("\n\n", "w")
    many = "\n".join(json.dumps({"prompt": "x", "segment": f"s{i}"}) for i in range(16))
    with pytest.raises(ValueError, match="16 segments, at most 15"):
        parse_workload(many, "w")


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are one clear line."""
    path = tmp_path / "w.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_workload(path)


def test_schedule_has_three_phases_and_every_request_once() -> None:
    """Every line is sent once, in file order, in the phases quiet, saturated, quiet again."""
    items = bundled_workload()
    schedule = make_schedule(items, PACE)
    assert [phase.name for phase in schedule.phases] == [QUIET, SATURATED, QUIET_AGAIN]
    assert [request.item for request in schedule.requests] == list(items)
    assert [request.number for request in schedule.requests] == list(range(len(items)))
    for request in schedule.requests:
        assert schedule.phase_at(request.scheduled_s) == request.phase


def test_quiet_requests_do_not_overlap_and_the_burst_outruns_the_engine() -> None:
    """In a quiet phase one request ends before the next comes; the burst brings far more than fits."""
    schedule = make_schedule(bundled_workload(), PACE)
    quiet = [r for r in schedule.requests if r.phase == QUIET]
    for earlier, later in pairwise(quiet):
        service_s = PACE.first_token_s + earlier.item.max_tokens * PACE.lone_token_s
        assert later.scheduled_s - earlier.scheduled_s >= service_s - 1e-9
    burst = [r for r in schedule.requests if r.phase == SATURATED]
    span_s = burst[-1].scheduled_s - burst[0].scheduled_s
    tokens = sum(r.item.max_tokens for r in burst)
    assert len(burst) >= 1.4 * MAX_BATCH
    assert span_s < 0.2 * tokens * PACE.crowded_token_s + 0.2 * len(burst) * PACE.first_token_s


def test_schedule_stretches_with_the_machine() -> None:
    """A machine twice as slow gets the same schedule at half the speed."""
    slow = Pace(*(2 * seconds for seconds in astuple(PACE)))
    fast, stretched = (make_schedule(bundled_workload(), pace) for pace in (PACE, slow))
    for one, two in zip(fast.requests, stretched.requests, strict=True):
        assert two.scheduled_s == pytest.approx(2 * one.scheduled_s)


def test_given_arrivals_are_left_as_they_are() -> None:
    """A workload with arrivals is one phase, sorted by arrival, at exactly these moments."""
    items = [WorkItem(prompt="late", arrival_s=7.0), WorkItem(prompt="early", arrival_s=0.5)]
    schedule = make_schedule(items, PACE)
    assert [(r.number, r.scheduled_s, r.phase) for r in schedule.requests] == [
        (1, 0.5, "given"),
        (0, 7.0, "given"),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 200])
def test_any_number_of_requests_can_be_scheduled(count: int) -> None:
    """From one request up, each is sent once and the phases that exist are in order."""
    schedule = make_schedule([WorkItem(prompt="x")] * count, PACE)
    assert len(schedule.requests) == count
    starts = [phase.start_s for phase in schedule.phases]
    assert starts == sorted(starts)
    assert starts[0] == 0.0
