"""What a draft would have brought under another K: by truncation where that is exact, else by a model.

A draft made under K is the first K tokens of the longest one. So of a request that verified k tokens,
min(accepted, K) is what it would have kept under any K <= k, and its `accepted` is what it would have kept
under any larger K if a token of it was rejected, or the drafter had no more. Only where all k tokens that
were commanded were accepted is the end of the draft not seen: it is censored. There a model goes on: the
share of the requests that reached a position and went past it, by segment, of other stretches of time.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_simulator.replay.logged import Floats, Ints

BLOCKS = 5
"""Contiguous stretches of a recording; what is imputed in one was learned in the others."""

_PRIOR = 5.0
"""How many requests the share over all segments counts for in each."""


class Survival(Struct):
    """Of one kind: tokens accepted, or tokens verified."""

    counts: NDArray[np.uint16]
    """[row][j]: requests that reached j"""
    sums: Ints
    """[row][k]: tokens under K = k, as far as it was seen"""
    further: NDArray[np.float64]
    """[block][segment][k][K]: expected tokens beyond k of a request that reached k, under K"""

    def seen(self, k: Ints, seen: Ints) -> Ints:
        """Tokens of each row under `k` from what its first `seen` positions show; the rest counts 0."""
        return self.sums[np.arange(len(k)), np.minimum(k, seen)]

    def beyond(self, k: Ints, seen: Ints, block: Ints, segment: Ints) -> Floats:
        """Tokens of each row under `k` after its first `seen` positions, by the model."""
        at = np.minimum(seen, k)
        reached = self.counts[np.arange(len(k)), at].astype(np.float64)
        return reached * self.further[block, segment, at, k]


def survival(
    counts: NDArray[np.uint16], asked: Ints, block: Ints, segment: Ints, *, deepest: int
) -> Survival:
    """From requests by position that they reached; `asked`: the K of each row, beyond which nothing is known.

    `block` numbers the stretch of time of each row. `deepest`: the largest K that will be asked for.
    """
    width = max(counts.shape[1], deepest + 1)
    padded = np.zeros((len(counts), width), dtype=np.uint16)
    padded[:, : counts.shape[1]] = counts
    sums = np.zeros((len(counts), width), dtype=np.int64)
    np.cumsum(padded[:, 1:], axis=1, out=sums[:, 1:])
    segments, blocks = int(segment.max()) + 1, int(block.max()) + 1
    cell = block * segments + segment
    reached = np.zeros((width, blocks * segments))
    went_on = np.zeros((width, blocks * segments))
    for position in range(1, width):
        rows = asked >= position
        if not rows.any():
            break
        reached[position] = np.bincount(cell[rows], padded[rows, position - 1], blocks * segments)
        went_on[position] = np.bincount(cell[rows], padded[rows, position], blocks * segments)
    shape = (width, blocks, segments)
    further = _further(*(others(x.reshape(shape)) for x in (reached, went_on)))
    return Survival(padded, sums, further)


def others(by_block: Floats) -> Floats:
    """[position][block][segment] summed over all blocks but each."""
    out: Floats = by_block.sum(axis=1, keepdims=True) - by_block
    return out


def _further(reached: Floats, went_on: Floats) -> Floats:
    """From counts [position][block][segment] to expected tokens [block][segment][k][K]."""
    width, blocks, segments = reached.shape
    share = np.zeros_like(reached)
    last = np.full((blocks, 1), 0.5)
    for position in range(1, width):
        above, below = went_on[position].sum(axis=1), reached[position].sum(axis=1)
        # A position that nobody reached goes on like the one before it.
        pooled = np.where(below > 0.0, (above + last[:, 0]) / (below + 1.0), last[:, 0])[:, None]
        share[position] = (went_on[position] + _PRIOR * pooled) / (reached[position] + _PRIOR)
        last = pooled
    further = np.zeros((blocks, segments, width, width))
    for start in range(width):
        alive = np.ones((blocks, segments))
        for position in range(start + 1, width):
            alive = alive * share[position]
            further[:, :, start, position] = further[:, :, start, position - 1] + alive
    return further
