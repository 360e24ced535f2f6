"""Loops that Python is too slow for, compiled by Numba.

Rules for whoever writes one:

- It is small, works on arrays, and adds terms one after the other: no `fastmath`, no threads.
- It is compiled when it is first called with new types of arguments. An array that is contiguous in one call
  and not in the next is another type: hand over whole arrays, or rows of them.
- What was compiled is kept beside the source, as Python keeps its own, and is good until the file of the
  function changes. So a compiled function uses no constant and no compiled function of another file: what
  it needs from there is an argument.
- It is kept nowhere else. Numba reads it as a pickle, so it must be as hard to write as the source itself.
- No index is checked. Whoever calls one answers for them.
- A sidecar must not compile while it serves: `warm_up` calls all that it will need before.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(function: Loop) -> Loop:
    """The same function, compiled; kept beside its source if that folder can be written.

    >>> import numpy as np
    >>> @compiled
    ... def total(terms):
    ...     found = 0.0
    ...     for term in terms:
    ...         found += term
    ...     return found
    >>> total(np.array([0.5, 0.25]))
    0.75
    """
    beside = Path(function.__code__.co_filename).parent
    found: Loop = njit(function, cache=os.access(beside, os.W_OK), error_model="numpy")
    return found


def inlined(function: Loop) -> Loop:
    """The same for what only compiled functions of its file call: it becomes part of them.

    Arrays that are handed over are counted otherwise, which takes longer than a few numbers do.
    """
    found: Loop = njit(function, error_model="numpy", forceinline=True)
    return found
