"""A prior as drafts that were not seen, but are believed in."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from steersman_controller.belief.arrays import Array
from steersman_controller.belief.prior import GUESSED_DRAFTS, Prior
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT


class Expected(NamedTuple):
    """What a prior counts for, by row of a segment."""

    reached: Array
    """By position."""
    accepted: Array
    coverage: Array
    """-1 where it says nothing."""
    drafts: float


def expected_of(prior: Prior | None, rows: Mapping[str, int], k_max: int) -> Expected:
    """What a prior counts for."""
    reached, accepted = np.zeros((2, MAX_SEGMENTS, k_max))
    coverage = np.full(MAX_SEGMENTS, -1.0)
    if prior is None:
        return Expected(reached, accepted, coverage, 0.0)
    for name, row in rows.items():
        coverage[row] = prior.coverage.get(name, prior.coverage.get(UNKNOWN_SEGMENT, -1.0))
        shares = prior.acceptance.get(name) or prior.acceptance.get(UNKNOWN_SEGMENT)
        if shares is None:
            continue
        drafts = prior.drafts if name in prior.acceptance else min(prior.drafts, GUESSED_DRAFTS)
        mean = np.array(shares[:k_max])
        reached[row, : len(mean)] = drafts * np.cumprod(np.append(1.0, mean[:-1]))
        accepted[row, : len(mean)] = mean * reached[row, : len(mean)]
    return Expected(reached, accepted, coverage, float(prior.drafts))
