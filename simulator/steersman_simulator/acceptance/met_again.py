"""Requests that were recorded once and come again: their drafts are drawn so that they fit what was seen.

Greedy decoding gives a prompt the same text whoever serves it, so a request that comes again under
another policy accepts as it did before. Of several draws from its segment the one is taken that would
have needed as many steps and drafts as recorded, under the K of then.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from steersman_policies.messages import RequestReport, StepReport
from steersman_policies.prompt_statistics import PromptStatistics
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import stream

DRAWS = 24
"""More of them fit a request better and take longer; with this many the steps are met within one or two."""

_CONSTANT = 0.98
"""A policy takes a moment to come into force."""

Identity: TypeAlias = tuple[str, int, int, PromptStatistics | None]
"""By what a request is known again: segment, prompt and output tokens, statistics of its prompt."""


class Seen(Struct, frozen=True):
    """What a request needed under a constant K."""

    k: int
    steps: int
    drafted: int
    accepted: int


class MetAgain(Struct, frozen=True):
    """A truth about segments, and requests that were seen."""

    truth: AcceptanceTruth
    seen: dict[Identity, Seen]

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        """The drafts of request `ordinal`; of one never seen, those of its segment."""
        seen = self.seen.get(
            (arrival.segment, arrival.prompt_tokens, arrival.output_tokens, arrival.statistics)
        )
        if seen is None:
            return self.truth.table(arrival, ordinal, seed, at_s)
        chance = stream(seed, ordinal)
        draws = [self.truth.table(arrival, ordinal, chance.getrandbits(63), at_s) for _ in range(DRAWS)]
        return min(draws, key=lambda table: _distance(_walked(table, seen.k, arrival), seen))

    @property
    def segments(self) -> dict[str, SegmentTruth]:
        """What is known of requests never seen."""
        return self.truth.segments

    def changes(self) -> tuple[float, ...]:
        """It never changes."""
        return ()


def constant_k(steps: Iterable[StepReport]) -> int:
    """The K that all but a few request-steps were verified under; 0 where there is none such."""
    rows: Counter[int] = Counter()
    for step in steps:
        for group in step.groups:
            rows[group.commanded_k] += group.requests
    ((k, most),) = rows.most_common(1) or [(0, 0)]
    return k if most >= _CONSTANT * sum(rows.values()) else 0


def seen_under(k: int, requests: Iterable[RequestReport]) -> dict[Identity, Seen]:
    """Requests served under one K, by what they are known again; the first of several alike."""
    found: dict[Identity, Seen] = {}
    for r in requests:
        known = (r.segment, r.prompt_tokens, r.output_tokens, r.statistics)
        found.setdefault(known, Seen(k, r.steps, r.drafted, r.accepted))
    return found


def _walked(table: DraftTable, k: int, arrival: Arrival) -> Seen:
    """The request from its first token on, which is no step, to its last."""
    at, steps, drafted, accepted = 1, 0, 0, 0
    while at < arrival.output_tokens:
        left = arrival.output_tokens - at
        room = k if arrival.stops else min(k, left - 1)
        pending = min(room, int(table.offered[at]))
        got = min(pending, int(table.accepted[at]))
        steps, drafted, accepted = steps + 1, drafted + pending, accepted + got
        at += min(got + 1, left)
    return Seen(k, steps, drafted, accepted)


def _distance(found: Seen, wanted: Seen) -> tuple[int, int]:
    return (
        abs(found.steps - wanted.steps),
        abs(found.drafted - wanted.drafted) + abs(found.accepted - wanted.accepted),
    )
