"""What is reported equals what vLLM counts and answers, to the token."""

from collections.abc import Callable

import pytest
from vllm_sidecar import Sidecar, assert_adds_up
from vllm_world import CODE, MAX_LEN, PROMPTS, STORY, Server

pytestmark = pytest.mark.vllm
Start = Callable[..., Sidecar]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
RECORDS = '{"name": "Ann", "age": 31}\n{"name": "Bob", "age": 42}\n{"name": "Cid", "age": 53}\n'


def test_reports_equal_vllms_own_counters(server: Server, sidecar: Start) -> None:
    """Drafted, accepted and committed tokens of a mixed load under exploration, and each request's."""
    steersman = sidecar("--steer").attached()
    before = server.counters()
    wanted = [
        {"prompt": prompt, "max_tokens": 20 + 7 * place, "temperature": temperature, "seed": 1}
        for place, prompt in enumerate(PROMPTS * 2)
        for temperature in (0.0, 0.9)
    ]
    answers = server.complete_all(wanted)
    requests = steersman.requests(len(wanted))
    drafted, accepted, _ = assert_adds_up(server, before, steersman)
    assert drafted > accepted > 0
    assert drafted == sum(sum(answer.drafted) for answer in answers)
    assert sorted((r.prompt_tokens, r.output_tokens, r.drafted, r.accepted) for r in requests) == sorted(
        (a.prompt_tokens, a.output_tokens, sum(a.drafted), sum(a.accepted)) for a in answers
    )
    for report in requests:
        assert 0.0 <= report.queue_s <= report.ttft_s <= report.e2e_s


def test_rows_that_a_grammar_cut_are_told_apart(server: Server, sidecar: Start) -> None:
    """Structured output holds under steering; drafts that it forbids are called so, and count nowhere."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=4)
    before = server.counters()
    for name in ("one", "two"):
        answer = server.complete(
            RECORDS, 60, structured_outputs={"json": SCHEMA}, vllm_xargs={"steersman_segment": name}
        )
        assert answer.finish_reason in ("stop", "length")
    steersman.requests(2)
    assert_adds_up(server, before, steersman)
    reasons = [group.not_drafted for report in steersman.steps() for group in report.groups]
    assert sum(found.get("grammar", 0) for found in reasons) > 0


def test_a_request_at_the_end_of_the_context(server: Server, sidecar: Start) -> None:
    """It ends there by itself, and the drafts that no longer fitted are not counted."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=8)
    before = server.counters()
    long = "one two three four five six seven eight nine ten " * 97
    answer = server.complete(long, MAX_LEN, ignore_eos=True)
    assert answer.prompt_tokens + answer.output_tokens == MAX_LEN
    (report,) = steersman.requests(1)
    assert report.output_tokens == answer.output_tokens
    assert_adds_up(server, before, steersman)


def test_a_client_that_hangs_up(server: Server, sidecar: Start) -> None:
    """Its request is reported as aborted, its neighbour goes on, and the sums still hold."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=4)
    before = server.counters()
    server.abandon(STORY, after_chunks=6)
    answer = server.complete(CODE)
    reports = steersman.requests(2)
    assert sorted(report.finish_reason for report in reports) == ["abort", answer.finish_reason]
    assert_adds_up(server, before, steersman)


def test_a_prompt_that_is_cached(server: Server, sidecar: Start) -> None:
    """The second time its blocks are not prefilled again, the answer is the same, the sums hold."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=4)
    before = server.counters()
    prompt = " ".join(f"Item {number} costs {number * 7} pounds." for number in range(40))
    first, second = server.complete(prompt), server.complete(prompt)
    steersman.requests(2)
    assert first == second
    prefilled = [report.prefill_tokens for report in steersman.steps() if report.prefill_tokens]
    assert prefilled[0] == first.prompt_tokens > prefilled[1] > 0
    assert_adds_up(server, before, steersman)
