"""What counts say about acceptance: each estimate shrunk towards the next coarser one, with its interval.

Arrays are by segment, then by context or K, then by position; marks as in `evidence`.
"""

from math import sqrt

import numpy as np

from steersman_controller.belief.arrays import Array, Counts, Mask
from steersman_controller.compiled import compiled

STRENGTH_ENGINE = 2.0
"""Segments differ a lot within one engine, so the engine's mean says little about a new one."""

STRENGTH_SEGMENT = 4.0
STRENGTH_CONTEXT = 30.0

EQUAL_AT_MOST = 17.0
"""Squared deviations, in units of their usual square, at which K are kept apart, and `PER_FREEDOM` more
for each K beyond the first: a chance of about 1 in 100,000."""

PER_FREEDOM = 3.0

KNOWN_REACHED = 60.0
"""Verifications that reached position 1 under a K before it can be told apart."""


@compiled
def refined(mean: float, weight: float, successes: float, trials: float) -> tuple[float, float]:
    """`Estimate.refined`; `weight` is already limited."""
    total = weight + trials
    return min((weight * mean + successes) / total, 1.0), total


@compiled
def stepping_aside(drafts: float, seen: float) -> float:
    """What is left of a prior's weight beside that of what was seen: half of it beside as much."""
    return drafts * drafts / max(drafts + seen, 1e-300)


@compiled
def positions(marks: Array, gain: float) -> Array:
    """True values by position: of those whose mark lies there or behind."""
    found = np.empty((marks.shape[0], marks.shape[1] - 1))
    for i in range(marks.shape[0]):
        total = 0.0
        for j in range(marks.shape[1] - 2, -1, -1):
            total += marks[i, j + 1]
            found[i, j] = total / gain
    return found


@compiled
def drafted_shares(offered: Array) -> Array:
    """Of a segment; `offered`: by commanded K and position."""
    number = offered.shape[1]
    shares, above = np.empty(number), 1.0
    for j in range(number):
        could, did = 1.0, 0.0
        for k in range(number + 1):
            did += offered[k, j]
            if k > j:
                could += offered[k, 0]
        above = shares[j] = min(above, (above + did) / could)
    return shares


@compiled
def means(
    rows: Counts,
    by_context: Array,
    offered_by_k: Array,
    asked: Array,
    drafted: Array,
    gains: Array,
    presence: Array,
    expected_reached: Array,
    expected_accepted: Array,
    expected_coverage: Array,
    expected_drafts: float,
    fleet_mean: float,
    fleet_weight: float,
    first_coverage: float,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Of these rows, by position: acceptance over the contexts that are present, the weight behind it, P(the
    drafter offers it), true counts of reached and accepted over all contexts; and coverage by row.

    They lean on everything that this engine drafted, as far as no prior counts for more. That leans on the
    fleet, and at first on `first_coverage`, with a weight of 1 at most.
    """
    _, segments, contexts, marks = by_context.shape
    number = marks - 1
    reached, accepted = 0.0, 0.0
    for row in range(segments):
        for context in range(contexts):
            for mark in range(1, marks):
                reached += mark * by_context[0, row, context, mark] / gains[row]
                accepted += mark * by_context[1, row, context, mark] / gains[row]
    engine, engine_weight = refined(fleet_mean, min(fleet_weight, 1.0), accepted, reached)
    usual, usual_weight = refined(first_coverage, 1.0, drafted.sum(), asked.sum())
    mean, weight, shares, all_reached, all_accepted = np.zeros((5, segments, number))
    coverage = np.zeros(segments)
    for row in rows:
        here_reached = positions(by_context[0, row], gains[row])
        here_accepted = positions(by_context[1, row], gains[row])
        all_reached[row], all_accepted[row] = here_reached.sum(axis=0), here_accepted.sum(axis=0)
        left = np.empty(number)
        for j in range(number):
            drafts = expected_reached[row, j]
            left[j] = stepping_aside(drafts, all_reached[row, j]) / max(drafts, 1e-300)
        with_reached = all_reached[row] + left * expected_reached[row]
        with_accepted = all_accepted[row] + left * expected_accepted[row]
        strength = min(engine_weight, STRENGTH_ENGINE)
        pooled, behind = refined(engine, strength, with_accepted.sum(), with_reached.sum())
        present = presence[row].sum()
        for j in range(number):
            strength = min(behind, STRENGTH_SEGMENT)
            segment, weight[row, j] = refined(pooled, strength, with_accepted[j], with_reached[j])
            strength = min(weight[row, j], STRENGTH_CONTEXT)
            for context in range(contexts):
                here, _ = refined(segment, strength, here_accepted[context, j], here_reached[context, j])
                mean[row, j] += here * (presence[row, context] / max(present, 1e-300))
            mean[row, j] = min(mean[row, j] if present > 0.0 else segment, 1.0)
        shares[row] = drafted_shares(positions(offered_by_k[row], gains[row]))
        lean, strength = usual, min(usual_weight, STRENGTH_ENGINE)
        if expected_coverage[row] >= 0.0:
            lean, strength = expected_coverage[row], stepping_aside(expected_drafts, asked[row])
        coverage[row], _ = refined(lean, strength, drafted[row], asked[row])
    return mean, weight, shares, all_reached, all_accepted, coverage


@compiled
def worth_of(drafts: float, twice: float) -> float:
    """How many independent drafts one of the faded ones is worth: W^2 / sum w^2 by its weight W."""
    return drafts / max(twice, 1e-300) if twice > 0.0 else 1.0


@compiled
def burstiness_of(reached: Array, accepted: Array, burstiness: float) -> Array:
    """Variance against that of independent drafts by position, given that of whole proposals.

    What all positions have in common, an easy spell, adds up over a proposal: with n_j verifications of
    variance v_j and a common level of variance t, the sum varies by N + t N^2, N = sum n_j v_j, and position
    j by n_j v_j + t (n_j v_j)^2. So its excess is the part n_j v_j / N of that of the whole.
    """
    mean = (accepted + 0.5) / (reached + 1.0)
    variance = reached * mean * (1.0 - mean)
    found: Array = 1.0 + (burstiness - 1.0) * variance / max(variance.sum(), 1e-300)
    return found


@compiled
def apart(reached: Array, accepted: Array, worth: float) -> Mask:
    """Of a segment: the K under which its acceptance is known, where it differs from K to K; else none.

    `reached`, `accepted`: by commanded K and position.
    """
    known: Mask = reached[:, 0] >= KNOWN_REACHED
    number = known.sum()
    if number <= 1:
        return np.zeros(len(known), np.bool_)
    # Bursts make the first position differ most; every K is compared over the positions that all share.
    surplus, variance = np.zeros((2, len(known)))
    for j in range(known.argmax()):
        all_reached, all_accepted = 2.0, 1.0
        for k in range(len(known)):
            if known[k]:
                all_reached += reached[k, j]
                all_accepted += accepted[k, j]
        common = all_accepted / all_reached
        for k in range(len(known)):
            if known[k]:
                surplus[k] += accepted[k, j] - reached[k, j] * common
                variance[k] += reached[k, j] * common * (1.0 - common) / worth
    square = 0.0
    for k in range(len(known)):
        square += surplus[k] * surplus[k] / max(variance[k], 1e-9)
    if square <= EQUAL_AT_MOST + PER_FREEDOM * (number - 1):
        known[:] = False
    return known


@compiled
def intervals(
    rows: Counts,
    by_k: Array,
    drafted: Array,
    drafted_twice: Array,
    gains: Array,
    mean: Array,
    weight: Array,
    reached: Array,
    accepted: Array,
    burstiness: Array,
    quantile: float,
) -> tuple[Array, Array, Mask, Array]:
    """Of these rows: both ends of the interval (normal approximation of the Beta posterior) by position; and
    by commanded K whether acceptance is told apart, and what it is there."""
    number, marks = len(rows), by_k.shape[2]
    low, high = np.empty((2, number, marks - 1))
    told, by_itself = np.zeros((number, marks), np.bool_), np.zeros((number, marks, marks - 1))
    for i in range(number):
        row = rows[i]
        worth, bursts = worth_of(drafted[row], drafted_twice[row]), max(burstiness[row], 1.0)
        by_position = burstiness_of(reached[row], accepted[row], bursts)
        for j in range(marks - 1):
            share = mean[row, j]
            effective = weight[row, j] * worth / by_position[j]
            half = quantile * sqrt(share * (1.0 - share) / (effective + 1.0))
            low[i, j], high[i, j] = max(share - half, 0.0), min(share + half, 1.0)
        k_reached, k_accepted = positions(by_k[1, row], gains[row]), positions(by_k[2, row], gains[row])
        told[i] = apart(k_reached, k_accepted, worth / bursts)
        for k in range(marks):
            if told[i, k]:
                by_itself[i, k] = (k_accepted[k] + STRENGTH_CONTEXT * mean[row]) / (
                    k_reached[k] + STRENGTH_CONTEXT
                )
    return low, high, told, by_itself
