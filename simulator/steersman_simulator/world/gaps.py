"""Times between deliveries as a histogram: what is left of them in a run that keeps no deliveries."""

import numpy as np

from steersman_simulator.world.kernels import GAP_BINS, GAP_BINS_PER_E, GAP_LEAST_S, Floats, Ints


def middles_s() -> Floats:
    """The middle of each bin, in seconds; that of the first one, which is open below, is its upper end."""
    places = np.arange(GAP_BINS) - 0.5
    places[0] = 0.0
    seconds: Floats = GAP_LEAST_S * np.exp(places / GAP_BINS_PER_E)
    return seconds


def gap_quantile_s(counts: Ints, quantile: float) -> float:
    """A quantile of `Batch.gaps[0]` (gaps of deliveries) or `[1]` (of tokens), right to half a percent.

    0 where there are no gaps.
    """
    below = np.cumsum(counts)
    if not below[-1]:
        return 0.0
    return float(middles_s()[np.searchsorted(below, quantile * below[-1], side="left")])
