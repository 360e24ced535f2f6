"""How two ways of doing the same work compare, from pairs of blocks."""

import statistics
from collections.abc import Sequence

from msgspec import Struct

from steersman_engine.bench.hook import median_rank


class Ratio(Struct, frozen=True):
    """The speed of one way over the speed of the other: median over pairs, and its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int


def ratio(seconds: Sequence[float], base_seconds: Sequence[float]) -> Ratio:
    """From the seconds of both, pair by pair; above 1 the first is faster.

    >>> ratio([2.0] * 8, [1.0] * 8).ratio
    0.5
    """
    found = sorted(base / own for own, base in zip(seconds, base_seconds, strict=True))
    rank = median_rank(len(found))
    return Ratio(
        ratio=round(statistics.median(found), 5),
        low=round(found[rank], 5),
        high=round(found[-1 - rank], 5),
        pairs=len(found),
    )
