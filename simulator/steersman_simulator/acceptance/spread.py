"""What covariances over distances say about requests and stretches of text."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

_Floats = NDArray[np.float64]

STRETCH_TOKENS = tuple(float(x) for x in np.geomspace(8.0, 256.0, 21))
"""Mean lengths that are tried. Much longer stretches are no different from requests."""

_LEAST_GAIN = 9.0
"""A stretch must improve the fit by so much of its chi-square: two parameters at three sigma, about."""


def spread_over_distance(
    distance_tokens: _Floats, covariance: _Floats, pairs: _Floats, stretch_tokens: float = 0.0
) -> tuple[float, float, float]:
    """(variance of requests, variance of stretches, mean tokens of a stretch).

    `covariance` is a sum of products of residuals at each distance, `pairs` that of their weights: without
    noise covariance = pairs x (requests + stretches x exp(-distance / tokens)). Variances are 0 where
    nothing is to be seen. `stretch_tokens`, where it is known; else it is found, or 0 with no stretches.

    >>> at = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
    >>> [round(x, 2) for x in spread_over_distance(at, 1e4 * (0.3 + np.exp(-at / 16.0)), np.full(7, 1e4))]
    [0.3, 1.0, 16.0]
    """
    known = pairs > 0.0
    if not known.any():
        return 0.0, 0.0, 0.0
    distance, weight = distance_tokens[known], np.sqrt(pairs[known])
    # Where drafts say nothing about each other, the variance of the sum of products is the sum of weights.
    seen = covariance[known] / weight
    alone = max(float(weight @ seen / (weight @ weight)), 0.0)
    best = (alone, 0.0, 0.0)
    best_error = float(((seen - weight * alone) ** 2).sum()) - _LEAST_GAIN
    for tokens in (stretch_tokens,) if stretch_tokens else STRETCH_TOKENS:
        (request, stretch), off = nnls(np.stack([weight, weight * np.exp(-distance / tokens)], 1), seen)
        if off * off < best_error or stretch_tokens:
            best, best_error = (float(request), float(stretch), tokens), off * off
    return best
