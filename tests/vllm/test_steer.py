"""A real vLLM server follows a real sidecar."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_sidecar import Sidecar, verified
from vllm_world import CODE, K_MAX, PROSE, Completion, Server, assert_same_tokens, until

pytestmark = pytest.mark.vllm
Start = Callable[..., Sidecar]


def commanded(sidecar: Sidecar) -> set[int]:
    """Every K under which drafts that were verified had been made."""
    return {group.commanded_k for report in sidecar.steps() for group in report.groups if group.outcomes}


@pytest.mark.parametrize("k", [3, 0])
def test_a_fixed_k_is_the_k_of_every_draft(server: Server, sidecar: Start, k: int) -> None:
    """vLLM itself counts at most K drafts per step, and reports say so; none at K = 0."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=k)
    answers = server.complete_all([{"prompt": CODE, "max_tokens": 64}] * 2)
    steersman.requests(2)
    drafted = [length for answer in answers for length in answer.drafted]
    assert max(drafted, default=0) == k
    assert commanded(steersman) == ({k} if k else set())
    assert verified(steersman.steps())[0] == sum(drafted)
    assert {report.reason for report in steersman.steps()} == {"table"}


def test_goodput_is_followed(server: Server, sidecar: Start) -> None:
    """Steps follow its plans, and it learns from what they report."""
    steersman = sidecar("--steer").attached()
    for _ in range(3):
        server.complete_all([{"prompt": CODE}, {"prompt": PROSE}])
    steersman.requests(6)
    assert {report.reason for report in steersman.steps()} <= {"table", "dwell", "explore"}
    assert len({report.plan_id for report in steersman.steps()}) > 1
    engine = steersman.engine()
    assert engine is not None
    assert engine.reports > 0


def test_greedy_output_does_not_depend_on_k(server: Server, sidecar: Start) -> None:
    """Speculation off, one K, and a K that moves: the same tokens, apart from ties."""
    steersman = sidecar("--steer").attached()
    steersman.push("off")
    off = [server.complete(prompt, logprobs=2) for prompt in (CODE, PROSE)]
    assert not any(answer.drafted for answer in off)
    drafted = 0
    for policy in ({"policy": "fixed", "k": K_MAX}, {"policy": "goodput"}):
        steersman.push(**policy)
        steered = [server.complete(prompt) for prompt in (CODE, PROSE)]
        for reference, answer in zip(off, steered, strict=True):
            assert_same_tokens(reference, answer)
        drafted += sum(sum(answer.drafted) for answer in steered)
    assert drafted > 0


def test_segments_come_from_tags_request_ids_and_rules(
    server: Server, sidecar: Start, tmp_path: Path
) -> None:
    """A tag in the body, one in the request id, a rule on sampling; what fits none is unknown."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "controller:\n  segmenter:\n    version: 1\n    rules:\n"
        "      - {attribute: sampling, value: sampled, segment: creative}\n"
    )
    steersman = sidecar("--steer", "--config", str(rules)).attached()
    server.complete(PROSE, 8, vllm_xargs={"steersman_segment": "tagged"})
    server.complete(PROSE, 8, headers={"X-Request-Id": "segment:named:1"})
    server.complete(PROSE, 8, temperature=0.8)
    server.complete(PROSE, 8)
    wanted = ["tagged", "named", "creative", "unknown"]
    assert [report.segment for report in steersman.requests(4)] == wanted
    seen = {group.segment for report in steersman.steps() for group in report.groups}
    assert seen == set(wanted)


def test_each_request_is_held_to_the_k_of_its_segment(server: Server, sidecar: Start) -> None:
    """In one batch, by vLLM's own count: at most 1 draft for one segment, up to 6 for the other."""
    steersman = sidecar("--steer").attached()
    steersman.push("by_segment", k={"short": 1, "long": 6}, other=0)
    wanted = [
        {"prompt": CODE, "max_tokens": 64, "vllm_xargs": {"steersman_segment": segment}}
        for segment in ("short", "long", "short", "long")
    ]
    answers: list[Completion] = server.complete_all(wanted)
    steersman.requests(4)
    for answer, longest in zip(answers, (1, 6, 1, 6), strict=True):
        assert max(answer.drafted) == longest
    together = [report for report in steersman.steps() if len(report.commanded) == 2]
    assert together
    for report in together:
        assert report.commanded == {"short": 1, "long": 6}


def test_the_drafters_seconds_are_reported(server: Server, sidecar: Start) -> None:
    """With the timer on, a step that drafts says how long it took: above nothing, below the step."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=4)
    server.complete(CODE)
    steersman.requests(1)
    drafting = [report for report in steersman.steps() if report.drafting_depth]
    assert drafting
    for report in drafting:
        assert 0.0 < report.draft_s < report.draft_s + report.verify_s


def test_the_doctor_finds_it_in_order(server: Server, sidecar: Start) -> None:
    """Attached, steered, telemetry flowing, K and reason as pushed; nothing is called a problem."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=2)
    server.complete(PROSE)
    engine = until(
        lambda: (found := steersman.engine()) and found.reason == "table" and found, "a step is reported"
    )
    assert engine.proposal_length == {"unknown": 2}
    found = json.loads(steersman.verb("doctor", "vllm", "--state-dir", str(server.state_dir), "--json"))
    assert {finding["status"] for finding in found["findings"]} <= {"ok", "note"}
