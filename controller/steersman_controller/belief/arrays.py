"""Sums over reports that come out the same, bit for bit, however the reports are cut into chunks.

Reports are folded into the belief some dozens at a time, and where a chunk ends depends on when somebody
asked for a plan. There are two ways not to depend on it:

- Add terms one after the other, to what is there (`add_at`, `cumsum`). Forgetting is a gain that grows:
  each term is multiplied by it when it is added, instead of all others being shrunk, and the gain is a
  function of a count. A true sum is the kept one divided by the gain.
- Keep the rows of a block of steps as they are until the block is full, where the belief settles; what
  is asked in between is computed from the start of the block.
"""

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

BLOCK_STEPS = 256
"""The longest block."""


def block_steps(steps: int) -> int:
    """The length of a block, so many steps after the belief began or was last contradicted.

    >>> [block_steps(n) for n in (0, 7, 8, 16, 32, 127, 128, 1000)]
    [1, 1, 8, 16, 32, 64, 128, 256]
    """
    return 1 if steps < 8 else min(1 << steps.bit_length() - 1, BLOCK_STEPS)


def gain(keep: float, count: Counts) -> Array:
    """By how much a term outweighs those `count` terms before it, each keeping `keep` of what was."""
    return np.asarray(np.exp(count * -math.log(keep)), np.float64)


def fades(keep: float, number: int) -> Array:
    """What is left of `number` terms in a row, the newest of which counts 1."""
    return np.asarray(np.power(keep, np.arange(number - 1, -1, -1)), np.float64)


def added_up(places: Counts, terms: Array, size: int) -> Array:
    """Sums of terms by place, each added in the order of the terms."""
    return np.asarray(np.bincount(places, terms, size), np.float64)


def all_of(masks: Mask) -> Mask:
    """By column, whether it holds in every row."""
    return np.asarray(np.logical_and.reduce(masks, axis=0))


def add_at(sums: Array, places: Counts, terms: Array) -> None:
    """Add terms to a contiguous array at flat places, one after the other."""
    np.add.at(sums.reshape(-1), places, terms)


class Sorted:
    """Rows brought together by cell, in their order within each."""

    def __init__(self, cells: Counts, size: int) -> None:
        self.order = cells.argsort(kind="stable")
        self.numbers = np.bincount(cells, minlength=size)
        """Of rows, by cell."""
        self.found = self.numbers.nonzero()[0]
        """The cells that have any."""
        ends = self.numbers.cumsum()
        self.starts = (ends - self.numbers)[self.found]
        """Of those cells, among the sorted rows."""
        self.cells = cells[self.order]
        """By sorted row."""
        self.later = ends[self.cells] - 1.0 - np.arange(len(cells))
        """By sorted row: how many come behind it in its cell."""
