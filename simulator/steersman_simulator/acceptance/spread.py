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
    distance_tokens: _Floats,
    covariance: _Floats,
    expected: _Floats,
    noise: _Floats,
    stretch_tokens: float = 0.0,
) -> tuple[float, float, float]:
    """(variance of requests, variance of stretches, mean tokens of a stretch).

    At each distance, covariance = expected x (requests + stretches x exp(-distance / tokens)), with
    chance of standard deviation `noise`. Variances are 0 where nothing is to be seen.
    `stretch_tokens`, where it is known; else it is found, or 0 with no stretches.

    >>> at, many = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]), np.full(7, 1e4)
    >>> seen = many * (0.3 + np.exp(-at / 16.0))
    >>> [round(x, 2) for x in spread_over_distance(at, seen, many, np.sqrt(many))]
    [0.3, 1.0, 16.0]
    """
    known = (expected > 0.0) & (noise > 0.0)
    if not known.any():
        return 0.0, 0.0, 0.0
    distance, weight = distance_tokens[known], expected[known] / noise[known]
    seen = covariance[known] / noise[known]
    alone = max(float(weight @ seen / (weight @ weight)), 0.0)
    best = (alone, 0.0, 0.0)
    best_error = float(((seen - weight * alone) ** 2).sum()) - _LEAST_GAIN
    for tokens in (stretch_tokens,) if stretch_tokens else STRETCH_TOKENS:
        (request, stretch), off = nnls(np.stack([weight, weight * np.exp(-distance / tokens)], 1), seen)
        if off * off < best_error or stretch_tokens:
            best, best_error = (float(request), float(stretch), tokens), off * off
    return best


def within_one(tokens: float, stretch_tokens: float) -> float:
    """Variance of the mean of a stretch's effect over a text of so many tokens, over that at one position.

    >>> round(within_one(1.0, 1e6), 3), round(within_one(200.0, 20.0), 3)
    (1.0, 0.18)
    """
    lengths = tokens / stretch_tokens
    return float(2.0 * (lengths - 1.0 + np.exp(-lengths)) / lengths**2) if lengths > 1e-6 else 1.0
