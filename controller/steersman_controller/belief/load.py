"""How busy the engine has been lately, and with what.

A sum that fades with the engine's own clock: what was e seconds ago counts less by exp(-e / tau), so a
change of phase shows within a second or two however long the steps are. As everywhere, the newest evidence
grows by a gain instead of everything else being shrunk.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, gain
from steersman_controller.belief.columns import CONTEXTS, Columns
from steersman_controller.compiled import compiled
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT

FADE_S = 1.0
"""Seconds after which a request that is gone counts 1/e."""

KEEP_PREFILL = 0.9
"""Kept of the mean prefill at a step that carries some."""

CROWDED_STEPS = 200
"""A segment unseen for this many steps makes room for a new one when all places are taken."""

LONGEST_FADES = 100.0
"""Gains must be rescaled before they have grown by exp of this."""


class LoadState(Struct):
    """What a `RecentLoad` has seen; part of a snapshot. Sums are faded with the clock."""

    names: list[str]
    """Segment by row; empty where the row is free."""
    last_step: Counts
    """By row: the step in which the segment was last seen."""
    presence: Array
    """Requests x busy seconds, by row and context bucket."""
    sums: Array
    """Busy seconds, and those times decode requests and times context tokens."""
    prefill: Array
    """Faded sum of prefill tokens over the steps that carried some, and of 1."""
    prefill_steps: Counts
    anchor_s: float = 0.0
    """Where on the engine's clock the gain is 1."""
    at_s: float = 0.0
    steps: int = 0
    folded: int = 0
    """Groups counted as `unknown` because all places were taken."""


class Placed(Struct, frozen=True, gc=False):
    """The row of each group of a chunk that ends before a segment has to go."""

    rows: Counts
    steps: int
    """Length of the chunk."""
    leaver: int | None = None
    """The row to be freed after the chunk."""
    unknown: Sequence[int] = ()
    """Groups among them that had to be counted as `unknown`."""


class RecentLoad:
    """Learns from chunks of steps what is present: at most `MAX_SEGMENTS` segments, `unknown` included."""

    def __init__(self) -> None:
        self.state = LoadState(
            names=[UNKNOWN_SEGMENT, *[""] * (MAX_SEGMENTS - 1)],
            last_step=np.zeros(MAX_SEGMENTS, np.int64),
            presence=np.zeros((MAX_SEGMENTS, CONTEXTS)),
            sums=np.zeros(3),
            prefill=np.zeros(2),
            prefill_steps=np.zeros(1, np.int64),
        )
        self._rows = {UNKNOWN_SEGMENT: 0}

    def fitting(self, chunk: Columns) -> int:
        """Steps from the start that the present gain can take; 0 where it must be rescaled first."""
        far = chunk.started_s - self.state.anchor_s > LONGEST_FADES * FADE_S
        return int(far.argmax()) if far.any() else chunk.steps

    def rescale(self, at_s: float) -> None:
        """Bring the gain back to 1 at this moment of the engine's clock."""
        state = self.state
        passed_s = max(at_s - state.anchor_s, 0.0)
        shrink = float(np.exp(-min(passed_s / FADE_S, 700.0)))
        state.presence *= shrink
        state.sums *= shrink
        state.anchor_s = at_s

    def place(self, chunk: Columns) -> Placed:
        """Find or make the row of each group's segment."""
        try:
            rows = np.fromiter(map(self._rows.__getitem__, chunk.names), np.int64, len(chunk.names))
        except KeyError:
            return self._place_one_by_one(chunk)
        return Placed(rows, chunk.steps)

    def add(self, chunk: Columns, rows: Counts) -> None:
        """Take in a chunk."""
        state = self.state
        _add(
            chunk.busy_s * np.exp((chunk.started_s - state.anchor_s) / FADE_S),
            chunk.decode_requests,
            chunk.context_tokens,
            chunk.prefill_tokens,
            gain(KEEP_PREFILL, state.prefill_steps[0] + 1 + np.arange(chunk.steps)),
            chunk.groups_before,
            rows,
            chunk.bucket,
            chunk.requests,
            state.steps,
            state.sums,
            state.presence,
            state.last_step,
            state.prefill,
            state.prefill_steps,
        )
        state.steps += chunk.steps
        state.at_s = float(chunk.started_s[-1])

    def settle(self) -> None:
        """Bring gains back to 1."""
        state = self.state
        state.prefill *= KEEP_PREFILL ** float(state.prefill_steps[0])
        state.prefill_steps[:] = 0
        self.rescale(state.at_s)

    def restarted(self) -> None:
        """The engine's clock and its batch start anew."""
        self.rescale(self.state.at_s)
        self.state.anchor_s = self.state.at_s = 0.0
        self.state.steps = 0
        self.state.last_step[:] = 0

    def free(self, row: int) -> None:
        """Let a segment go."""
        del self._rows[self.state.names[row]]
        self.state.names[row] = ""
        self.state.presence[row] = 0.0
        self.state.last_step[row] = 0

    def restore(self, state: LoadState) -> None:
        """Continue from a snapshot."""
        self.state = state
        self._rows = {name: row for row, name in enumerate(state.names) if name}

    @property
    def rows(self) -> dict[str, int]:
        """The row of each known segment, by name."""
        return dict(sorted(self._rows.items()))

    def shares(self) -> Array:
        """Share of each row among the live decode requests."""
        by_row = self.state.presence.sum(axis=1)
        total = by_row.sum()
        return np.minimum(by_row / total, 1.0) if total > 0.0 else np.zeros(MAX_SEGMENTS)

    @property
    def mean_requests(self) -> float:
        """Live decode requests, averaged over busy time."""
        seconds, requests, _ = self.state.sums.tolist()
        return requests / seconds if seconds > 0.0 else 0.0

    @property
    def mean_context_tokens(self) -> float:
        """Context of a live request."""
        _, requests, tokens = self.state.sums.tolist()
        return tokens / requests if requests > 0.0 else 0.0

    @property
    def prefill_tokens(self) -> float:
        """Mean over the recent steps that carried prefill."""
        tokens, steps = self.state.prefill.tolist()
        return tokens / steps if steps > 0.0 else 0.0

    def _place_one_by_one(self, chunk: Columns) -> Placed:
        state = self.state
        last_step = state.last_step.tolist()
        rows: list[int] = []
        unknown: list[int] = []
        for name, step in zip(chunk.names, chunk.step.tolist(), strict=True):
            now = state.steps + 1 + step
            row = self._rows.get(name)
            if row is None:
                row = self._free_row()
                if row is not None:
                    self._rows[name] = row
                    state.names[row] = name
                else:
                    leaver = self._leaver(last_step)
                    if now - last_step[leaver] >= CROWDED_STEPS:
                        before = int(chunk.groups_before[step])
                        unknown = [group for group in unknown if group < before]
                        return Placed(np.array(rows[:before], np.int64), step, leaver, unknown)
                    unknown.append(len(rows))
                    row = 0
            last_step[row] = now
            rows.append(row)
        return Placed(np.array(rows, np.int64), chunk.steps, None, unknown)

    def _free_row(self) -> int | None:
        return next((row for row, name in enumerate(self.state.names) if not name), None)

    def _leaver(self, last_step: Sequence[int]) -> int:
        """The segment that has been away for longest."""
        return min(range(1, MAX_SEGMENTS), key=lambda row: (last_step[row], self.state.names[row]))


@compiled
def _add(
    weight: Array,
    decode_requests: Array,
    context_tokens: Array,
    prefill_tokens: Array,
    prefill_gain: Array,
    groups_before: Counts,
    rows: Counts,
    bucket: Counts,
    requests: Array,
    steps_before: int,
    sums: Array,
    presence: Array,
    last_step: Counts,
    prefill: Array,
    prefill_steps: Counts,
) -> None:
    """Add steps and their groups to the last five; the n-th step with prefill has the n-th gain for it."""
    with_prefill = 0
    for step in range(len(weight)):
        sums[0] += weight[step]
        sums[1] += weight[step] * decode_requests[step]
        sums[2] += weight[step] * context_tokens[step]
        for group in range(groups_before[step], groups_before[step + 1]):
            presence[rows[group], bucket[group]] += requests[group] * weight[step]
            last_step[rows[group]] = steps_before + 1 + step
        if prefill_tokens[step] > 0.0:
            prefill[0] += prefill_tokens[step] * prefill_gain[with_prefill]
            prefill[1] += prefill_gain[with_prefill]
            with_prefill += 1
    prefill_steps[0] += with_prefill
