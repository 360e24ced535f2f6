"""What is known about a request before its draft is verified, in a few bins; the same everywhere.

- `state`: how the request's own last drafts went. Bin 0: none was verified yet. Otherwise two moving position
  acceptances, a short and a long one, each low, middle or high: ``1 + 3 * short + long``.
- `confidence`: the probability that the drafter gave to its draft up to a position, the product over its
  tokens, in bins of its log-odds. The product and not the token's own probability: it is what says how likely
  the draft survives up to there, it never rises along a draft, and whoever trims drafts by it has trimmed
  exactly those behind some value.

Acceptance by bin is learned, so nothing here has to be calibrated.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from operator import mul

SHORT_KEEP = 0.5
LONG_KEEP = 0.9
"""What one verified draft leaves of the counts before it."""

LOW, HIGH = 0.4, 0.75
"""Right-closed edges between a low, a middle and a high acceptance."""

CONFIDENCE_EDGES = tuple(1.0 / (1.0 + 2.718281828459045**-odds) for odds in range(-4, 5))
"""Right-closed; log-odds -4 to 4."""


class RequestState:
    """The moving acceptance of one request. Counted by positions reached: it does not depend on K."""

    __slots__ = ("_long", "_long_reached", "_short", "_short_reached", "bin")

    def __init__(self) -> None:
        self._short = self._short_reached = self._long = self._long_reached = 0.0
        self.bin = 0

    def verified(self, drafted: int, accepted: int) -> None:
        """A draft of at least one token was verified.

        >>> state = RequestState()
        >>> state.verified(4, 4)
        >>> state.bin
        9
        >>> state.verified(4, 0)
        >>> state.bin
        6
        """
        reached = accepted + (accepted < drafted)
        short = self._short = SHORT_KEEP * self._short + accepted
        short_reached = self._short_reached = SHORT_KEEP * self._short_reached + reached
        long = self._long = LONG_KEEP * self._long + accepted
        long_reached = self._long_reached = LONG_KEEP * self._long_reached + reached
        self.bin = (
            1
            + 3 * ((short > LOW * short_reached) + (short > HIGH * short_reached))
            + (long > LOW * long_reached)
            + (long > HIGH * long_reached)
        )


def confidence_bins(probabilities: Iterable[float]) -> tuple[int, ...]:
    """The bin at each position of a draft whose tokens the drafter gave these probabilities.

    >>> confidence_bins((0.99, 0.9, 0.5, 0.0))
    (9, 7, 4, 0)
    """
    return tuple(bisect_left(CONFIDENCE_EDGES, product) for product in accumulate(probabilities, mul))
