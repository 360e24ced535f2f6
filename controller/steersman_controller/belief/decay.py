"""Slow decay: a drafter that gets worse so gradually that no test for sudden change sees it.

What is watched is the expected accepted length of a segment at one reference K, against what it was at first.
The mix is held fixed: each segment is watched by itself, and its contexts count with the weights that they
had at the beginning. So a shift towards traffic that is hard to draft for is not called a sick drafter.
"""

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask
from steersman_controller.belief.evidence import ASKED, DRAFTED, Evidence
from steersman_controller.belief.shrinkage import STRENGTH_CONTEXT
from steersman_controller.compiled import compiled
from steersman_policies.units import MAX_SEGMENTS

REFERENCE_STEPS = 2048
"""Steps that asked a segment before what it does counts as its usual."""

LASTING_STEPS = 2048
"""Such steps for which it has to stay below."""

LOST_FRACTION = 0.1


class DecayState(Struct):
    """By segment; part of a snapshot."""

    steps: Counts
    """Steps that asked, until there is a reference."""
    mix: Array
    """Weight of each context in the reference."""
    usual: Array
    """Expected accepted length then; 0 where there is none yet."""
    below: Counts
    """Steps that asked since it fell below."""


class Decay:
    """Looks at the evidence whenever it settles."""

    def __init__(self, contexts: int, reference_k: int) -> None:
        self.reference_k = reference_k
        self.state = DecayState(
            steps=np.zeros(MAX_SEGMENTS, np.int64),
            mix=np.zeros((MAX_SEGMENTS, contexts)),
            usual=np.zeros(MAX_SEGMENTS),
            below=np.zeros(MAX_SEGMENTS, np.int64),
        )

    def look(self, evidence: Evidence, asked_steps: Counts) -> Counts:
        """The segments that have been worse than usual for long; what they do now becomes their usual.

        `asked_steps`: by segment, how many steps asked it since the last look.
        """
        state = self.state
        state.steps += asked_steps
        started = (state.usual == 0.0) & (state.steps >= REFERENCE_STEPS)
        if started.any():
            self._refer(evidence, started)
        length = self._length(evidence)
        low = (state.usual > 0.0) & (length < (1.0 - LOST_FRACTION) * state.usual)
        state.below = np.where(low, state.below + asked_steps, 0)
        decayed = state.below >= LASTING_STEPS
        if decayed.any():
            self._refer(evidence, decayed)
        return np.flatnonzero(decayed)

    def free(self, row: int) -> None:
        """Forget a segment."""
        for held in (self.state.steps, self.state.mix, self.state.usual, self.state.below):
            held[row] = 0

    def _refer(self, evidence: Evidence, rows: Mask) -> None:
        state = self.state
        reached = evidence.by_context().reached[:, :, :1].sum(axis=2)
        mix = reached / np.maximum(reached.sum(axis=1, keepdims=True), 1e-300)
        state.mix = np.where(rows[:, None], mix, state.mix)
        state.usual = np.where(rows, self._length(evidence), state.usual)
        state.below = np.where(rows, 0, state.below)

    def _length(self, evidence: Evidence) -> Array:
        """Expected accepted tokens at the reference K, contexts weighted as in the reference."""
        found, sums = evidence.by_context(), evidence.sums()
        coverage = sums[DRAFTED] / np.maximum(sums[ASKED], 1e-300)
        mix, k = self.state.mix, self.reference_k
        taken = _accepted_tokens(found.reached, found.accepted, mix, k, STRENGTH_CONTEXT)
        return np.asarray(coverage * taken)


@compiled
def _accepted_tokens(reached: Array, accepted: Array, mix: Array, k: int, strength: float) -> Array:
    """By segment, what is accepted of `k` draft tokens; a context leans on the whole segment."""
    segments, contexts, positions = reached.shape
    found = np.zeros(segments)
    for row in range(segments):
        survival = np.ones(contexts)
        for position in range(min(k, positions)):
            total = accepted_total = 0.0
            for context in range(contexts):
                total += reached[row, context, position]
                accepted_total += accepted[row, context, position]
            segment = (accepted_total + 1.0) / (total + 2.0)
            for context in range(contexts):
                kept = accepted[row, context, position] + strength * segment
                survival[context] *= kept / (reached[row, context, position] + strength)
                found[row] += survival[context] * mix[row, context]
    return found
