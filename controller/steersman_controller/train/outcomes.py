"""Finished requests as evidence for segments: what was known when they came, and how their drafts went."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman_controller.request_spread import is_decided
from steersman_controller.trace.recording import is_recording, read_recording
from steersman_controller.train.cells import Floats
from steersman_policies.acceptance_trace import AcceptanceRecord, is_acceptance_trace, read_trace
from steersman_policies.acceptance_walk import walk
from steersman_policies.messages import RequestReport
from steersman_policies.prompt_statistics import FEATURES, PromptStatistics, rounded_statistics
from steersman_policies.units import UNKNOWN_SEGMENT

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


def read_acceptance_trace(path: Path) -> Outcomes:
    """The requests of a recording; or of a JSONL file, replayed at the most accepted tokens that it holds.

    Raises OSError, or ValueError in one line naming file, line and key.
    """
    if not is_acceptance_trace(path) and (path.is_dir() or is_recording(path)):
        return outcomes_of(read_recording(path).requests())
    lines = list(read_trace(path))
    k = max((max(line.accepted_by_position, default=0) for line in lines), default=0)
    if not k:
        raise ValueError(f"{path}: no draft token was accepted anywhere, so there is nothing to learn from")
    return _gathered([_replayed(line, k) for line in lines])


def _replayed(line: AcceptanceRecord, k: int) -> tuple[str, PromptStatistics, int, int, int, int]:
    """A step that starts at a position commits min(accepted, K) + 1 tokens and goes on behind them."""
    steps = drafts = accepted = reached = 0
    offered = line.offered_by_position or None
    for _, drafted, kept in walk(line.accepted_by_position, offered, k, first=0, length_known=False):
        steps += 1
        drafts += drafted > 0
        accepted += kept
        reached += min(kept + 1, drafted)
    statistics = rounded_statistics(
        prompt_tokens=line.prompt_tokens,
        max_output_tokens=line.max_output_tokens,
        distinct_fraction=line.distinct_fraction,
        repeated_fraction=line.repeated_fraction,
        temperature=line.temperature,
        structured=bool(line.structured),
    )
    return line.segment, statistics, accepted, reached, steps, drafts


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
