"""The contract of exact acceptance traces."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from steersman_policies.acceptance_trace import AcceptanceRecord, is_acceptance_trace, read_trace, write_trace
from steersman_policies.acceptance_walk import WalkTally, walk

RECORDS = [
    AcceptanceRecord("a", 7, 4, (0, 2, 1, 0), (0, 5, 5, 5), "chat", "ngram", "prompt_lookup", "1:2", "m"),
    AcceptanceRecord("b", 0, 1, (0,), stops=True, temperature=0.75),
    AcceptanceRecord("c", 3, 0, ()),
]  # fmt: skip


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    """Every field comes back, and equal records make equal bytes."""
    for again in ("", "again-"):
        assert write_trace(tmp_path / (again + name), iter(RECORDS)) == 3
    assert list(read_trace(tmp_path / name)) == RECORDS
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()
    assert is_acceptance_trace(tmp_path / name)


def test_a_failure_leaves_no_half_file(tmp_path: Path) -> None:
    """A record that contradicts itself ends the writing, and the file does not appear."""
    bad = AcceptanceRecord("x", 1, 3, (0, 1))
    for name in ("t.jsonl", "t.parquet"):
        with pytest.raises(ValueError, match="accepted_by_position has 2 numbers for 3 output tokens"):
            write_trace(tmp_path / name, [*RECORDS, bad])
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_read_one_request_at_a_time(tmp_path: Path) -> None:
    """What is before a bad line is there before the line is looked at."""
    path = tmp_path / "t.jsonl.gz"
    good = '{"request_id": 1, "prompt_tokens": 3, "output_tokens": 1, "accepted_by_position": [0]}\n'
    path.write_bytes(gzip.compress((good + "\n" + good + "{").encode()))
    found = read_trace(path)
    assert [next(found).request_id, next(found).request_id] == [1, 1]
    with pytest.raises(ValueError, match=r"t.jsonl.gz: line 4: .*truncated"):
        next(found)


def test_a_torn_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    """Half a .gz and half a Parquet file name themselves."""
    for name, words in (("t.jsonl.gz", "truncated or corrupt"), ("t.parquet", "unreadable Parquet")):
        path = tmp_path / name
        write_trace(path, RECORDS * 50)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(ValueError, match=words) as error:
            list(read_trace(path))
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accepted_by_position": [0, 3]}, "3 draft tokens accepted at output position 1, where 2"),
        ({"accepted_by_position": [0, 65]}, "<= 64"),
        ({"accepted_by_position": [0, -1]}, ">= 0"),
        ({"offered_by_position": [1]}, "offered_by_position has 1 numbers for 2 output tokens"),
        ({"acepted": 1}, "acepted"),
        ({"version": 2}, "version"),
        ({"segment": "tell me a joke"}, "segment"),
        ({"prompt_tokens": 1.5}, "prompt_tokens"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """File, line, and what contradicts the contract; in JSONL."""
    line = {"request_id": 1, "prompt_tokens": 3, "output_tokens": 2, "accepted_by_position": [0, 1]}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({**line, "offered_by_position": [2, 2], **changes}) + "\n")
    with pytest.raises(ValueError, match=words) as error:
        list(read_trace(path))
    assert str(error.value).startswith(f"{path}: line 1: ")


def test_other_names_and_no_file_are_refused(tmp_path: Path) -> None:
    """What is allowed is said."""
    with pytest.raises(ValueError, match=r"allowed are .jsonl, .jsonl.gz and .parquet"):
        write_trace(tmp_path / "t.csv", RECORDS)
    with pytest.raises(FileNotFoundError, match="no such acceptance trace"):
        list(read_trace(tmp_path / "none.jsonl"))
    assert not is_acceptance_trace(tmp_path)


def test_a_walk_cuts_drafts_by_k_by_what_is_offered_and_at_the_end() -> None:
    """The last token of a known length is never drafted; of an unknown one it is."""
    accepted, offered = [9, 1, 0, 5, 4, 3, 2, 1], [9, 4, 0, 6, 6, 6, 6, 6]
    assert list(walk(accepted, offered, 3)) == [(1, 3, 1), (3, 3, 3), (7, 0, 0)]
    assert list(walk(accepted, offered, 8)) == [(1, 4, 1), (3, 4, 4)]
    assert list(walk(accepted, offered, 8, length_known=False)) == [(1, 4, 1), (3, 6, 5)]
    assert list(walk(accepted, offered, 0)) == [(at, 0, 0) for at in range(1, 8)]


def test_autocorrelation_and_shares_are_those_of_the_textbook() -> None:
    """Against a direct computation over the steps of two requests."""
    both = [(0, 3, 0, 0, 1, 0, 2, 1, 0, 1, 0, 0, 2, 0, 0), (0, 0, 1, 0, 0, 0, 1, 0, 0, 0)]
    tally = WalkTally(2, lags=1, length_known=False)
    steps = []
    for number, accepted in enumerate(both):
        tally.add(AcceptanceRecord(number, 1, len(accepted), accepted))
        steps.append([kept for _, _, kept in walk(accepted, None, 2, length_known=False)])
    means = [sum(kept) / len(kept) for kept in steps]
    within = sum((x - m) ** 2 for kept, m in zip(steps, means, strict=True) for x in kept)
    everything = [x for kept in steps for x in kept]
    mean = sum(everything) / len(everything)
    lagged = sum((a - m) * (b - m) for kept, m in zip(steps, means, strict=True) for a, b in pairwise(kept))
    found = tally.facts()
    assert found.tokens_per_step == pytest.approx(1.0 + mean)
    assert found.autocorrelation[0] == pytest.approx(lagged / within)
    assert found.between_request_share == pytest.approx(
        1.0 - within / sum((x - mean) ** 2 for x in everything)
    )
