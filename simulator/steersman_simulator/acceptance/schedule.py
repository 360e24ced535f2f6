"""Acceptance that changes while requests are served: steps, ramps, another drafter, a sick one.

A draft token that would have been accepted is kept with probability `factor`, by one uniform number per
output position: position acceptance becomes factor x what it was, exactly, and a factor that is a little
lower takes away a little of what every request had.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from steersman_policies.executor import mix
from steersman_policies.units import Fraction, Seconds, Segment
from steersman_simulator.acceptance import loops
from steersman_simulator.acceptance.draft_table import Acceptance, DraftTable
from steersman_simulator.workload.arrival import Arrival

RAMP_PIECES = 20
"""A ramp is as many equal steps."""

_WORD = 0x5CED


class Phase(Struct, frozen=True):
    """From `at_s` of an arm on. What is not told stays as it was."""

    at_s: Seconds
    factor: Fraction | None = None
    """Position acceptance becomes so many times what the drafter has ..."""
    over_s: Seconds = 0.0
    """... within these seconds, in equal steps; 0: at once."""
    drafter: Acceptance | None = None
    """Drafts are another drafter's from here on, at the factor in force."""
    segments: tuple[Segment, ...] = ()
    """Only these; empty: all."""


class ScheduledAcceptance:
    """A drafter, and what becomes of it. Raises ValueError for phases that are not in order of time."""

    def __init__(self, drafter: Acceptance, phases: Sequence[Phase]) -> None:
        times = [phase.at_s for phase in phases]
        if times != sorted(times):
            raise ValueError(f"schedule: phases must be in order of at_s, found {times}")
        self.drafter, self.phases = drafter, tuple(phases)
        self._changes = self._moments()

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable | None:
        """The drafts of the drafter in force at `at_s`, thinned by the factor in force."""
        drafter, factor = self.in_force(arrival.segment, at_s)
        found = drafter.table(arrival, ordinal, seed, at_s)
        if found is None or factor == 1.0:
            return found
        return thinned(found, factor, mix(seed, ordinal, _WORD))

    def changes(self) -> tuple[float, ...]:
        """Every phase, every step of a ramp, and what the drafters themselves know of."""
        return self._changes

    def in_force(self, segment: str, at_s: float) -> tuple[Acceptance, float]:
        """The drafter and the factor of a segment at a moment."""
        drafter, before, factor = self.drafter, 1.0, 1.0
        for phase in self.phases:
            if phase.at_s > at_s or (phase.segments and segment not in phase.segments):
                continue
            drafter = phase.drafter or drafter
            if phase.factor is not None:
                before = factor
                factor = before + (phase.factor - before) * _progress(phase, at_s)
        return drafter, factor

    def _moments(self) -> tuple[float, ...]:
        drafters = [self.drafter, *(phase.drafter for phase in self.phases if phase.drafter is not None)]
        moments = [at_s for drafter in drafters for at_s in drafter.changes()]
        for phase in self.phases:
            pieces = RAMP_PIECES if phase.over_s and phase.factor is not None else 1
            moments += [phase.at_s + phase.over_s * piece / pieces for piece in range(pieces)]
        return tuple(sorted(set(moments)))


def thinned(table: DraftTable, factor: float, key: int) -> DraftTable:
    """The table with each acceptance kept with probability `factor`, until the first that is not."""
    accepted = np.empty_like(table.accepted)
    loops.thin(np.uint64(key), factor, table.accepted, accepted)
    return DraftTable(table.offered, accepted)


def _progress(phase: Phase, at_s: float) -> float:
    """How much of a ramp is done: (piece + 1) / pieces from the start of each piece on."""
    if phase.over_s == 0.0:
        return 1.0
    edges = [phase.at_s + phase.over_s * piece / RAMP_PIECES for piece in range(RAMP_PIECES)]
    return bisect_right(edges, at_s) / RAMP_PIECES
