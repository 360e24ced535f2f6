"""What was seen of the drafts of each segment: counts that fade, kept in one flat array.

A verification that had d draft tokens and accepted a of them is kept as three marks: where it was offered
(d), how far it reached (min(d, a + 1)) and how far it was accepted (a). Sums from a mark to the end then say
how often a position was offered, reached and accepted; and what lies behind the last position that was
verified is missing, not zero.
"""

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask, gain, gains
from steersman_controller.belief.columns import CONTEXTS, Columns
from steersman_controller.compiled import compiled
from steersman_policies.units import MAX_SEGMENTS

KEEP_ASKED = 0.995
"""Kept of the evidence in a step that asked the segment for drafts."""

KEEP_IDLE = 0.9995
"""Kept in a step in which the segment was live but not asked."""

ASKED, DRAFTED, INVALID, DRAFTED_TWICE = range(4)
"""Sums by segment: requests asked, those with a draft, those without valid drafter state; and drafts times
the square of their gain, from which follows how many drafts the faded ones are worth."""

SUMS = 4


class EvidenceState(Struct):
    """Part of a snapshot. True values are the kept ones divided by the gain of their segment."""

    by_context: Array
    """[reached, accepted][segment][context][mark]"""
    by_k: Array
    """[offered, reached, accepted][segment][commanded K][mark]"""
    sums: Array
    """[what][segment]"""
    asked_steps: Counts
    """By segment, since the gain was 1."""
    idle_steps: Counts


class Positions(NamedTuple):
    """True values by position 1 to K_max on the last axis."""

    reached: Array
    accepted: Array


class Evidence:
    """Evidence of all segments. Only `add`, `doubt`, `free` and `settle` change it."""

    def __init__(self, k_max: int) -> None:
        self.k_max = k_max
        marks = k_max + 1
        self._at_or_behind = np.tri(marks, k_max, -1)
        """[mark][position]: 1 where the mark lies at the position or behind."""
        self.state = EvidenceState(
            by_context=np.zeros((2, MAX_SEGMENTS, CONTEXTS, marks)),
            by_k=np.zeros((3, MAX_SEGMENTS, marks, marks)),
            sums=np.zeros((SUMS, MAX_SEGMENTS)),
            asked_steps=np.zeros(MAX_SEGMENTS, np.int64),
            idle_steps=np.zeros(MAX_SEGMENTS, np.int64),
        )

    def add(self, chunk: Columns, rows: Counts) -> None:
        """Count what the groups of a chunk verified; `rows`: the segment of each."""
        state = self.state
        _add(
            chunk.trains,
            chunk.groups_before,
            rows,
            chunk.bucket,
            chunk.k,
            chunk.asked,
            chunk.with_draft,
            chunk.invalid,
            chunk.teaches,
            chunk.outcomes_before,
            chunk.offered,
            chunk.reached,
            chunk.accepted,
            chunk.verified,
            gains(KEEP_ASKED),
            gains(KEEP_IDLE),
            state.by_context,
            state.by_k,
            state.sums,
            state.asked_steps,
            state.idle_steps,
        )

    def doubt(self, rows: Counts, keep: float) -> None:
        """Forget all but this fraction of what was seen of these segments."""
        state = self.state
        for kept in (state.by_context, state.by_k, state.sums):
            kept[:, rows] *= keep

    def free(self, row: int) -> None:
        """Forget a segment."""
        self.doubt(np.array([row]), 0.0)
        self.state.asked_steps[row] = self.state.idle_steps[row] = 0

    def settle(self) -> None:
        """Bring all gains back to 1."""
        state = self.state
        shrink = 1.0 / self.gains()
        state.by_context *= shrink[:, None, None]
        state.by_k *= shrink[:, None, None]
        state.sums *= shrink
        state.sums[DRAFTED_TWICE] *= shrink
        state.asked_steps[:] = 0
        state.idle_steps[:] = 0

    def sums(self) -> Array:
        """The sums by segment, as of now."""
        gains = self.gains()
        true: Array = self.state.sums / gains
        true[DRAFTED_TWICE] /= gains
        return true

    def by_context(self) -> Positions:
        """By segment, context bucket and position."""
        return Positions(*self._by_position(self.state.by_context))

    def by_k(self) -> tuple[Array, Positions]:
        """By segment, commanded K and position: how often it was offered, and what came of it."""
        offered, reached, accepted = self._by_position(self.state.by_k)
        return offered, Positions(reached, accepted)

    def _by_position(self, marks: Array) -> Array:
        """True values by position: those whose mark lies there or behind."""
        # All of it, and always the same shape: a product is faster than sums from behind, and as exact.
        return np.asarray((marks / self.gains()[:, None, None]) @ self._at_or_behind)

    def gains(self) -> Array:
        """By what true values are multiplied in the kept ones, by segment."""
        return np.asarray(gain(KEEP_ASKED, self.state.asked_steps) * gain(KEEP_IDLE, self.state.idle_steps))


@compiled
def _add(
    trains: Mask,
    groups_before: Counts,
    rows: Counts,
    bucket: Counts,
    k: Counts,
    asked: Array,
    with_draft: Array,
    invalid: Array,
    teaches: Array,
    outcomes_before: Counts,
    offered: Counts,
    reached: Counts,
    accepted: Counts,
    verified: Array,
    asked_gains: Array,
    idle_gains: Array,
    by_context: Array,
    by_k: Array,
    sums: Array,
    asked_steps: Counts,
    idle_steps: Counts,
) -> None:
    """Add what groups verified to the last five. A segment forgets once per step, however many its groups."""
    most = len(asked_gains) - 1
    forgot, was_asked = np.full((2, len(asked_steps)), -1)
    for step in range(len(trains)):
        if not trains[step]:
            continue
        for group in range(groups_before[step], groups_before[step + 1]):
            if teaches[group] > 0.0:
                was_asked[rows[group]] = step
        for group in range(groups_before[step], groups_before[step + 1]):
            row = rows[group]
            if forgot[row] != step:
                forgot[row] = step
                asked_steps[row] += was_asked[row] == step
                idle_steps[row] += was_asked[row] != step
            if teaches[group] == 0.0:
                continue
            more = asked_gains[min(asked_steps[row], most)] * idle_gains[min(idle_steps[row], most)]
            sums[ASKED, row] += asked[group] * more
            sums[DRAFTED, row] += with_draft[group] * more
            sums[INVALID, row] += invalid[group] * more
            sums[DRAFTED_TWICE, row] += with_draft[group] * more * more
            for outcome in range(outcomes_before[group], outcomes_before[group + 1]):
                weight = verified[outcome] * more
                by_k[0, row, k[group], offered[outcome]] += weight
                by_k[1, row, k[group], reached[outcome]] += weight
                by_k[2, row, k[group], accepted[outcome]] += weight
                by_context[0, row, bucket[group], reached[outcome]] += weight
                by_context[1, row, bucket[group], accepted[outcome]] += weight
