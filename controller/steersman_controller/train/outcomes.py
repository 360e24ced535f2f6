"""Finished requests as evidence for segments: what was known when they came, and how their drafts went."""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from steersman_controller.request_spread import is_decided
from steersman_controller.trace.recording import is_recording, read_recording
from steersman_controller.train.cells import Floats
from steersman_policies.messages import RequestReport
from steersman_policies.policy import did_you_mean
from steersman_policies.prompt_statistics import FEATURES, PromptStatistics, rounded_statistics
from steersman_policies.units import K_LIMIT, UNKNOWN_SEGMENT, Count, Fraction, Segment

LEAF_PREFIX = "tree/"
"""Segments that a tree gave: to the next training their requests have no tag."""

MOST_REQUESTS = 20_000
"""Of a longer recording so many are taken, evenly."""


@dataclass(frozen=True)
class Outcomes:
    """One entry per request, in order of arrival."""

    tags: NDArray[np.str_]
    """`unknown` where neither a tag nor a rule decided."""
    statistics: tuple[PromptStatistics, ...]
    accepted: Floats
    reached: Floats
    """Draft tokens whose acceptance was decided."""
    steps: Floats
    steps_drafted: Floats

    def __len__(self) -> int:
        return len(self.tags)

    def features(self) -> Floats:
        """[request][feature], as a tree asks them."""
        rows = [[float(getattr(each, name)) for name in FEATURES] for each in self.statistics]
        return np.array(rows, dtype=np.float64).reshape(len(self), len(FEATURES))

    def pick(self, which: NDArray[np.int64]) -> "Outcomes":
        """Some of them."""
        return Outcomes(
            self.tags[which],
            tuple(self.statistics[at] for at in which),
            self.accepted[which],
            self.reached[which],
            self.steps[which],
            self.steps_drafted[which],
        )


def outcomes_of(reports: Iterable[RequestReport]) -> Outcomes:
    """Of the requests whose engine told statistics, and how many of their draft tokens were decided."""
    told = [r for r in reports if r.statistics is not None and r.steps and is_decided(r)]
    told.sort(key=lambda r: (r.arrived_s, r.request))
    rows = [(r.segment, r.statistics, r.accepted, r.reached, r.steps, r.steps_drafted) for r in told]
    return _gathered(rows)


class TraceLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of an acceptance trace; statistics of the prompt may be added."""

    request_id: str | int
    prompt_tokens: Count
    output_tokens: Count
    accepted_by_position: tuple[Annotated[int, Meta(ge=0, le=K_LIMIT)], ...]
    """For each output position how many draft tokens a step starting there would have accepted."""
    segment: Segment = UNKNOWN_SEGMENT
    max_output_tokens: Count = 0
    distinct_fraction: Fraction = 0.0
    repeated_fraction: Fraction = 0.0
    temperature: float = 0.0
    structured: Annotated[int, Meta(ge=0, le=1)] = 0


def read_acceptance_trace(path: Path) -> Outcomes:
    """The requests of a recording; or of a JSONL file, replayed at the most accepted tokens that it holds.

    Raises OSError, or ValueError in one line naming file, line and key.
    """
    if path.is_dir() or is_recording(path):
        return outcomes_of(read_recording(path).requests())
    lines = list(_trace_lines(path))
    k = max((max(line.accepted_by_position, default=0) for line in lines), default=0)
    if not k:
        raise ValueError(f"{path}: no draft token was accepted anywhere, so there is nothing to learn from")
    return _gathered([_replayed(line, k) for line in lines])


def _trace_lines(path: Path) -> Iterator[TraceLine]:
    decoder = msgspec.json.Decoder(TraceLine)
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                found = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number}: {error}{_hint(str(error))}") from None
            told, tokens = len(found.accepted_by_position), found.output_tokens
            if told != tokens:
                wrong = f"accepted_by_position has {told} numbers for {tokens} output tokens"
                raise ValueError(f"{path}: line {number}: {wrong}")
            yield found


def _hint(error: str) -> str:
    _, _, word = error.partition("unknown field `")
    return did_you_mean(word.partition("`")[0], TraceLine.__struct_fields__) if word else ""


def _replayed(line: TraceLine, k: int) -> tuple[str, PromptStatistics, int, int, int, int]:
    """A step that starts at a position commits min(accepted, K) + 1 tokens and goes on behind them."""
    at = steps = accepted = reached = 0
    while at < len(line.accepted_by_position):
        kept = min(line.accepted_by_position[at], k)
        steps += 1
        accepted += kept
        reached += min(kept + 1, k)
        at += kept + 1
    statistics = rounded_statistics(
        prompt_tokens=line.prompt_tokens,
        max_output_tokens=line.max_output_tokens,
        distinct_fraction=line.distinct_fraction,
        repeated_fraction=line.repeated_fraction,
        temperature=line.temperature,
        structured=bool(line.structured),
    )
    # The format does not tell a step without a draft from one whose first token was wrong.
    return line.segment, statistics, accepted, reached, steps, steps


def _gathered(rows: Sequence[tuple[str, PromptStatistics | None, float, float, float, float]]) -> Outcomes:
    if len(rows) > MOST_REQUESTS:
        rows = [rows[at] for at in np.linspace(0, len(rows) - 1, MOST_REQUESTS).astype(int)]
    tags = [UNKNOWN_SEGMENT if row[0].startswith(LEAF_PREFIX) else row[0] for row in rows]
    numbers = np.array([row[2:] for row in rows], dtype=np.float64).reshape(len(rows), 4)
    return Outcomes(
        np.array(tags, dtype=np.str_),
        tuple(row[1] for row in rows if row[1] is not None),
        *(numbers[:, column] for column in range(4)),
    )
