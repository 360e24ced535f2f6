"""What sorts requests: tag, rules and a tree over statistics that give no prompt away."""

import random
from collections.abc import Sequence
from typing import Any, overload

import msgspec
import pytest

from steersman_policies.codec import SCHEMA, Envelope, decode, encode
from steersman_policies.messages import RequestReport
from steersman_policies.prompt_statistics import (
    FRACTION_STEPS,
    TEMPERATURE_STEPS,
    WINDOW_TOKENS,
    PromptStatistics,
    statistics_of,
)
from steersman_policies.segment_tree import SegmentTree
from steersman_policies.segmenter import Segmenter, SegmentRule

TREE = SegmentTree((3, -1, -1), (0.25, 0.0, 0.0), (1, -1, -1), (2, -1, -1), ("", "tree/1", "tree/2"))


def statistics(tokens: Sequence[int]) -> PromptStatistics:
    return statistics_of(tokens, max_output_tokens=200, temperature=0.7)


def chain(depth: int) -> list[Any]:
    """A tree whose nodes all have a leaf on the left and the next node on the right."""
    inner = range(0, 2 * depth, 2)
    nodes = range(2 * depth + 1)
    return [
        [0 if node in inner else -1 for node in nodes],
        [float(node) for node in nodes],
        [node + 1 if node in inner else -1 for node in nodes],
        [node + 2 if node in inner else -1 for node in nodes],
        ["" if node in inner else f"s{node}" for node in nodes],
    ]


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ([[3, -1, -1], [0, 0, 0], [0, -1, -1], [2, -1, -1], ["", "a", "b"]], "child 0, allowed are 1 to 2"),
        ([[3, 3, -1], [0, 0, 0], [1, 0, -1], [2, 2, -1], ["", "", "b"]], "node 1: child 0"),
        ([[3, 3, -1], [0, 0, 0], [1, 2, -1], [2, 2, -1], ["", "", "b"]], "no parent, or two"),
        ([[-1, -1], [0, 0], [-1, -1], [-1, -1], ["a", "b"]], "no parent, or two"),
        ([[3, -1, -1], [0, 0, 0], [1, -1, -1], [3, -1, -1], ["", "a", "b"]], "child 3"),
        (
            [[9, -1, -1], [0, 0, 0], [1, -1, -1], [2, -1, -1], ["", "a", "b"]],
            "question 9, allowed are 0 to 5",
        ),
        ([[3, -1, -1], [0, 0, 0], [1, -1, -1], [2, -1, -1], ["", "a", ""]], "leaf 2 needs a segment"),
        ([[3, -1, -1], [0, 0, 0], [1, -1, -1], [2, -1, -1], ["", "a", "a poem"]], "leaf 2 needs a segment"),
        ([[3, -1, -1], [0, 0, 0], [1, -1, -1], [2, -1, -1], ["c", "a", "b"]], "without a segment"),
        ([[3, -1, -1], [0, 0], [1, -1, -1], [2, -1, -1], ["", "a", "b"]], "differ in length"),
        ([[], [], [], [], []], "0 nodes"),
        (chain(9), "depth 9, at most 8"),
        ([[-1] * 31, [0] * 31, [-1] * 31, [-1] * 31, ["a"] * 31], "31 nodes, allowed are 1 to 29"),
        ([[3, -1, -1], [1e300, 0, 0], [1, -1, -1], [2, -1, -1], ["", "a", "b"]], "Expected `float` <="),
    ],
)
def test_what_is_no_tree_is_refused_where_it_is_decoded(tree: list[Any], why: str) -> None:
    """A cycle, a second parent, an orphan, another question or too many of them: one line, never a walk."""
    payload = msgspec.msgpack.encode([1, [], tree])
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.msgpack.decode(payload, type=Segmenter)
    assert why in str(error.value)


def test_a_tree_reads_back_as_it_was() -> None:
    """A chain as deep as allowed, and a single question; both read back as they were."""
    for columns in (chain(8), msgspec.to_builtins(TREE)):
        tree = msgspec.convert(columns, SegmentTree)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(tree), type=SegmentTree) == tree


def test_the_tag_comes_before_the_rules_before_the_tree() -> None:
    """Each is asked only where those before it say nothing; without statistics the tree is not asked."""
    segmenter = Segmenter(1, (SegmentRule("tenant", "acme", "vip"),), TREE, {"talk": "chat"})
    copies = PromptStatistics(repeated_fraction=0.5)
    assert segmenter.segment_of("code", {"tenant": "acme"}, copies) == "code"
    assert segmenter.segment_of("talk", {}, copies) == "chat"
    assert segmenter.segment_of("", {"tenant": "acme"}, copies) == "vip"
    assert segmenter.segment_of("", {"tenant": "other"}, copies) == "tree/2"
    assert segmenter.segment_of("", {}, PromptStatistics()) == "tree/1"
    assert segmenter.segment_of("", {}) == "unknown"


def test_statistics_do_not_depend_on_which_tokens_they_are() -> None:
    """Any renaming of the vocabulary gives the same numbers: no id, and nothing made of one, is in them."""
    rng = random.Random(0)
    for _ in range(50):
        tokens = [rng.randrange(60) for _ in range(rng.choice((5, 90, 700)))]
        renamed = list(range(60))
        rng.shuffle(renamed)
        assert statistics([40_000 + renamed[token] for token in tokens]) == statistics(tokens)


def test_statistics_are_coarse() -> None:
    """Every number stands on a coarse grid, so many prompts share all of theirs."""
    rng = random.Random(1)
    seen = set()
    for _ in range(3_000):
        found = statistics([rng.randrange(400) for _ in range(rng.randint(128, 191))])
        assert (found.distinct_fraction * FRACTION_STEPS).is_integer()
        assert (found.repeated_fraction * FRACTION_STEPS).is_integer()
        assert (found.temperature * TEMPERATURE_STEPS).is_integer()
        for tokens in (found.prompt_tokens, found.max_output_tokens):
            assert f"{tokens:b}"[2:].strip("0") == "", "more than two binary digits"
        seen.add(found)
    assert len(seen) < 20


def test_statistics_tell_a_prompt_that_repeats_itself() -> None:
    """Also where it repeats over a distance."""
    rng = random.Random(2)
    once = [rng.randrange(50_000) for _ in range(1_000)]
    assert statistics(once).repeated_fraction == 0.0
    assert statistics(once[:40] * 4).repeated_fraction > 0.5
    assert statistics(once).distinct_fraction == 1.0
    assert statistics(once[:500] + once[250:500]).repeated_fraction == 0.0
    assert statistics(once[:64] * 2 + once[:64]).repeated_fraction == 0.5, "its middle comes again at its end"
    assert statistics([]).distinct_fraction == statistics([5]).repeated_fraction == 0.0
    embedded = statistics_of(None, max_output_tokens=9, temperature=float("nan"))
    assert (embedded.prompt_tokens, embedded.temperature) == (0, 2.0)


class Watched(Sequence[int]):
    """A long prompt that counts what is read of it."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        places = range(len(self))[at]
        self.read += len(places) if isinstance(places, range) else 1
        return list(places) if isinstance(places, range) else places


def test_a_long_prompt_costs_no_more_than_a_short_one() -> None:
    """Two windows of it are read, however long it is."""
    prompt = Watched()
    statistics(prompt)
    assert prompt.read == 2 * WINDOW_TOKENS


class OldReport(msgspec.Struct, array_like=True, tag="request"):
    """`RequestReport` as it was before it told statistics."""

    request: int
    segment: str
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    queue_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    steps: int
    drafted: int
    accepted: int
    finish_reason: str


def test_reports_are_understood_one_version_older_and_newer() -> None:
    """An old report says nothing about what was appended; an old reader ignores it."""
    numbers = (1, "code", 1.0, 20, 30, 0.1, 0.2, 0.05, 2.0, 12, 40, 18, "length")
    told = RequestReport(*numbers, 25, 11, statistics([1, 2] * 40))
    frames = encode(b"t", 1, Envelope(SCHEMA, 1, "e", 0, told))
    assert decode(frames).envelope.body == told
    body = msgspec.msgpack.decode(frames[2])[4]
    assert msgspec.convert(body, OldReport) == OldReport(*numbers)
    old = msgspec.msgpack.encode([SCHEMA - 1, 1, "e", 0, ["request", *numbers]])
    read = decode([b"t", bytes(8), old]).envelope.body
    assert isinstance(read, RequestReport)
    assert (read.reached, read.steps_drafted, read.statistics) == (0, 0, None)
    far = msgspec.msgpack.encode(
        [SCHEMA, 1, "e", 0, ["request", *numbers, 25, 11, [8, 8, 0.1, 0.1, -1.0, 0]]]
    )
    with pytest.raises(ValueError, match="contract"):
        decode([b"t", bytes(8), far])
