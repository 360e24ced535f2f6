"""Drafts out of an exact acceptance trace: what was measured, at every output position."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.policy import did_you_mean
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import stream

Pick: TypeAlias = Literal["order", "segment"]


class ExactAcceptance:
    """Every request gets the drafts of a recorded one.

    `order`: request n gets the n-th of the trace, from the front again where it is used up; its output
    must be as long as the recorded one. `segment`: chance picks among the recorded requests of its
    segment, of all where the trace knows segment `unknown` only; a shorter text is cut off, a longer
    one is continued with another pick, as the drafts of other texts are all that is known of it.
    """

    def __init__(self, records: Iterable[AcceptanceRecord], pick: Pick = "order") -> None:
        self.pick = pick
        self._tables: list[DraftTable] = []
        self._by_segment: dict[str, list[int]] = {}
        for record in records:
            if record.output_tokens:
                self._by_segment.setdefault(record.segment, []).append(len(self._tables))
                self._tables.append(_table(record))
        if not self._tables:
            raise ValueError("acceptance trace: no request with any output")

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        """The drafts of request `ordinal`. Raises ValueError in one line where the trace has none for it."""
        del at_s
        if self.pick == "order":
            at = ordinal % len(self._tables)
            found = self._tables[at]
            if len(found.accepted) != arrival.output_tokens:
                raise ValueError(
                    f"acceptance trace: request {at} has {len(found.accepted)} output tokens, the arrival "
                    f"{arrival.output_tokens}; serve the trace's own requests, or use `pick: segment`"
                )
            return found
        return self._picked(arrival, ordinal, seed)

    def changes(self) -> tuple[float, ...]:
        """It never changes."""
        return ()

    def _picked(self, arrival: Arrival, ordinal: int, seed: int) -> DraftTable:
        known, chance = self._members(arrival.segment), stream(seed, ordinal)
        chosen, tokens = [self._tables[chance.choice(known)]], 0
        tokens = len(chosen[0].accepted)
        while tokens < arrival.output_tokens:
            more = self._tables[chance.choice(known)]
            chosen.append(more)
            tokens += len(more.accepted)
        cut = slice(arrival.output_tokens)
        return DraftTable(
            np.concatenate([table.offered for table in chosen])[cut],
            np.concatenate([table.accepted for table in chosen])[cut],
        )

    def _members(self, segment: str) -> list[int]:
        found = self._by_segment.get(segment)
        if found is None and set(self._by_segment) == {UNKNOWN_SEGMENT}:
            found = self._by_segment[UNKNOWN_SEGMENT]
        if found is None:
            held = sorted(self._by_segment)
            hint = did_you_mean(segment, held)
            raise ValueError(f"acceptance trace: no segment {segment!r}{hint}; held: {', '.join(held)}")
        return found


def _table(record: AcceptanceRecord) -> DraftTable:
    return DraftTable(
        np.array(record.offered, dtype=np.uint8), np.array(record.accepted_by_position, dtype=np.uint8)
    )
