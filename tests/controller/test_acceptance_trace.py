"""Acceptance traces of others as evidence for segments."""

import json
import random
from pathlib import Path

import pytest

from steersman_controller.cli import run
from steersman_controller.train.outcomes import Outcomes, read_acceptance_trace
from steersman_controller.train.segmentation import segments_of
from steersman_policies.segmenter import Segmenter


def trace(path: Path, count: int) -> Path:
    """An acceptance trace of two kinds of requests, told apart by the length of their prompts."""
    rng = random.Random(0)
    lines = []
    for number in range(count):
        share = 0.85 if number % 2 else 0.3
        accepted = [next((j for j in range(5) if rng.random() >= share), 5) for _ in range(50)]
        lines.append(
            {
                "request_id": f"r{number}",
                "segment": "unknown",
                "prompt_tokens": 700 if number % 2 else 30,
                "output_tokens": 50,
                "accepted_by_position": accepted,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_foreign_acceptance_trace_teaches_too(tmp_path: Path) -> None:
    """Replayed step by step; what it tells of the prompt is what a tree can ask."""
    outcomes = read_acceptance_trace(trace(tmp_path / "t.jsonl", 300))
    segmenter, card = segments_of(outcomes, Segmenter(), None)
    assert card.kept
    assert segmenter is not None
    assert "prompt_tokens" in card.leaves[0].when[0]
    assert [leaf.acceptance for leaf in card.leaves] == pytest.approx([0.3, 0.85], abs=0.05)


def test_a_trace_is_replayed_exactly(tmp_path: Path) -> None:
    """A step commits min(accepted, K) + 1 tokens, K being the most that was ever accepted."""
    path = tmp_path / "t.jsonl"
    numbers = {
        "request_id": 1,
        "prompt_tokens": 9,
        "output_tokens": 6,
        "accepted_by_position": [2, 9, 9, 0, 3, 0],
    }
    path.write_text(json.dumps({**numbers, "accepted_by_position": [2, 1, 1, 0, 3, 0]}) + "\n")
    found: Outcomes = read_acceptance_trace(path)
    # Steps at 0 (2 accepted, the third rejected), 3 (rejected), 4 (all three accepted).
    assert (found.steps[0], found.accepted[0], found.reached[0]) == (3, 5, 7)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"request_id": 1, "promt_tokens": 3}', ["line 1", "promt_tokens", "did you mean 'prompt_tokens'?"]),
        ('{"request_id": 1}', ["line 1", "missing required field"]),
        ("no json", ["line 1", "malformed"]),
        (
            '{"request_id":1,"prompt_tokens":3,"output_tokens":2,"accepted_by_position":[0,0]}',
            ["no draft token was accepted anywhere"],
        ),
        (
            '{"request_id":1,"prompt_tokens":3,"output_tokens":30,"accepted_by_position":[1,0,2]}',
            ["line 1", "accepted_by_position has 3 numbers for 30 output tokens"],
        ),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, line: str, words: list[str]) -> None:
    """File, line, key and what it may have meant."""
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is checked below
        read_acceptance_trace(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_inspect_knows_an_acceptance_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its first line, whatever its name: requests by segment, and what a few K would have brought."""
    path = trace(tmp_path / "t.data", 30)
    assert run(["trace", "inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["requests_by_segment"]) == (30, {"unknown": 30})
    by_k = [row["tokens_per_step"] for row in found["at_k"]]
    assert by_k == sorted(by_k)
    assert found["at_k_by_segment"]["unknown"] == found["at_k"]
    with path.open("a") as file:
        file.write('{"request_id": 1}\n')
    assert run(["trace", "inspect", str(path)]) == 2
    assert f"{path}: line 31: " in capsys.readouterr().err


def test_what_was_offered_tells_steps_without_a_draft(tmp_path: Path) -> None:
    """Where a trace tells what was offered, steps without a draft are not taken for drafts refused."""
    line = {"request_id": 1, "prompt_tokens": 9, "output_tokens": 4, "accepted_by_position": [0, 1, 0, 0]}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({**line, "offered_by_position": [0, 3, 3, 0]}) + "\n")
    found = read_acceptance_trace(path)
    # Steps at 0 and 3 without a draft, at 1 one accepted and K = 1 used up.
    assert (found.steps[0], found.steps_drafted[0], found.accepted[0], found.reached[0]) == (3, 1, 1, 1)
