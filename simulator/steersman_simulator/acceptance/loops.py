"""The loops over output positions that every table of drafts runs, compiled.

Numba compiles each at its first call in a process; its cache on disk is not used, because the index of
that cache is a pickle. Nothing in here draws chance: what was drawn comes in.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from steersman_simulator.acceptance.draft_table import Lengths

Floats = NDArray[np.float64]


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def lengths(drawn: Floats, survival: Floats, out: Lengths) -> None:
    """How many in a row, by position: as long as P(at least so many) is above what was drawn."""
    for at in range(drawn.shape[0]):
        length = 0
        while length < survival.shape[0] and survival[length] > drawn[at]:
            length += 1
        out[at] = length


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def lengths_by_row(drawn: Floats, survival: Floats, rows: NDArray[np.int64], out: Lengths) -> None:
    """The same, each position with its own row of `survival`, shape [row, length]."""
    for at in range(drawn.shape[0]):
        length = 0
        while length < survival.shape[1] and survival[rows[at], length] > drawn[at]:
            length += 1
        out[at] = length


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def chain(drawn: Floats, begins: float, enter: float, stay: float, out: NDArray[np.bool_]) -> None:
    """A two-state chain: P(on) of the first position, after an off one, after an on one."""
    share = begins
    for at in range(drawn.shape[0]):
        on = drawn[at] < share
        out[at] = on
        share = stay if on else enter


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def continued(fresh: Lengths, kinds: NDArray[np.int8], out: Lengths) -> None:
    """Accepted lengths where the draft of a position may be the rest of the one before.

    `fresh`: those of new drafts. A new one is made where nothing is left of the one before; else kind 0 is
    the rest, 1 the longer of both, 2 the new one.
    """
    length = 0
    for at in range(fresh.shape[0]):
        if length == 0 or kinds[at] == 2:
            length = fresh[at]
        else:
            length -= 1
            if kinds[at] == 1 and fresh[at] > length:
                length = fresh[at]
        out[at] = length
