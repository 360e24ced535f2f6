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
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

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


@lru_cache(maxsize=16)
def gains(keep: float) -> Array:
    """The gains of up to `BLOCK_STEPS` terms."""
    found = gain(keep, np.arange(BLOCK_STEPS + 1))
    found.flags.writeable = False
    return found


def fades(keep: float, number: int) -> Array:
    """What is left of up to `BLOCK_STEPS` terms in a row, the newest of which counts 1."""
    return _powers(keep)[BLOCK_STEPS - number :]


@lru_cache(maxsize=16)
def _powers(keep: float) -> Array:
    found = np.asarray(np.power(keep, np.arange(BLOCK_STEPS - 1, -1, -1)), np.float64)
    found.flags.writeable = False
    return found


def add_at(sums: Array, places: Counts, terms: Array) -> None:
    """Add terms to a contiguous array at flat places, one after the other."""
    np.add.at(sums.reshape(-1), places, terms)


def by_cell(cells: Counts, size: int) -> Iterator[tuple[int, Counts]]:
    """Each cell that has rows, and which, in their order; `cells`: by row, below `size`.

    >>> [(cell, rows.tolist()) for cell, rows in by_cell(np.array([3, 0, 3, 3]), 4)]
    [(0, [1]), (3, [0, 2, 3])]
    """
    if size == 1:
        yield 0, np.arange(len(cells))
        return
    order, numbers = cells.argsort(kind="stable"), np.bincount(cells, minlength=size)
    ends = numbers.cumsum()
    for cell in numbers.nonzero()[0].tolist():
        yield cell, order[ends[cell] - numbers[cell] : ends[cell]]
