"""Drafts of a request as a table by output position, and the protocol of whoever makes it.

Text decides what a drafter offers and what the target accepts, and the text of a request does not
depend on who serves it. So both are fixed by the place in the output, for every K at once: a draft
made under K is the first K tokens of the longest one (Leviathan et al. 2023: the kept prefix). Two
policies meet the same requests, and a longer proposal is never accepted less far.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from steersman_simulator.workload.arrival import Arrival

MAX_DRAFT_TOKENS = 64
"""No engine drafts further."""

Lengths = NDArray[np.uint8]


class DraftTable(NamedTuple):
    """Both of shape [output tokens], by the number of tokens committed when the draft is made."""

    offered: Lengths
    """The longest draft that the drafter has there; 0: no match."""
    accepted: Lengths
    """How much of it the target accepts."""


class Acceptance(Protocol):
    """Makes the drafts of requests."""

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable | None:
        """The drafts of request `ordinal`, as they are from the moment `at_s` of its arm on.

        It depends on nothing but the arguments, so every arm meets the same request. None where
        nothing is known about drafts: then nobody may ask for one.
        """
        ...

    def changes(self) -> tuple[float, ...]:
        """Moments of an arm, ascending, from which on the tables of live requests are others."""
        ...
