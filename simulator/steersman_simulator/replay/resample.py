"""Stationary bootstrap (Politis and Romano 1994) of sums over steps that depend on their neighbours."""

import numpy as np

from steersman_simulator.replay.logged import Floats

MOST_CHUNKS = 20_000
"""More steps are first added up in equal stretches."""


def chunked(columns: Floats) -> Floats:
    """[step][column] as sums over at most `MOST_CHUNKS` stretches."""
    size = -(-len(columns) // MOST_CHUNKS)
    if size <= 1:
        return columns
    starts = np.arange(0, len(columns), size)
    return np.add.reduceat(columns, starts, axis=0)


def resampled(columns: Floats, block: float, draws: int, chance: np.random.Generator) -> Floats:
    """[draw][column]: sums of the columns over runs of consecutive rows, `block` long in the mean, that
    begin anywhere and go round at the end, until as many rows are drawn as there are.

    >>> one = resampled(np.ones((50, 1)), 5.0, 3, np.random.default_rng(0))
    >>> one[:, 0].tolist()
    [50.0, 50.0, 50.0]
    """
    rows = len(columns)
    before = np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(np.tile(columns, (2, 1)), axis=0)])
    out = np.empty((draws, columns.shape[1]))
    most = int(rows / block * 2.0 + 40.0)
    for draw in range(draws):
        lengths = np.minimum(chance.geometric(1.0 / max(block, 1.0), most), rows)
        while lengths.sum() < rows:
            lengths = np.concatenate([lengths, np.minimum(chance.geometric(1.0 / block, most), rows)])
        ends = np.cumsum(lengths)
        used = int(np.searchsorted(ends, rows)) + 1
        lengths = lengths[:used].copy()
        lengths[-1] -= ends[used - 1] - rows
        starts = chance.integers(0, rows, used)
        out[draw] = (before[starts + lengths] - before[starts]).sum(axis=0)
    return out
