"""What counts say about acceptance: each estimate shrunk towards the next coarser one, with its interval.

Arrays are by segment, then by context or K, then by position.
"""

from collections.abc import Mapping

import numpy as np

from steersman_controller.belief.arrays import Array
from steersman_controller.belief.estimate import NORMAL_Q95, PRIOR, Estimate
from steersman_controller.belief.evidence import ASKED, DRAFTED, DRAFTED_TWICE, Positions
from steersman_controller.belief.prior import GUESSED_DRAFTS, Prior
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT

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


def engine_means(whole: Positions, sums: Array, fleet: Estimate) -> tuple[Estimate, Estimate]:
    """Acceptance and coverage of everything this engine drafted, leaning on the fleet."""
    acceptance = fleet.refined(float(whole.accepted.sum()), float(whole.reached.sum()), PRIOR.weight)
    coverage = PRIOR.refined(float(sums[DRAFTED].sum()), float(sums[ASKED].sum()), PRIOR.weight)
    return acceptance, coverage


def refined(
    mean: Array | float, weight: Array | float, successes: Array, trials: Array
) -> tuple[Array, Array]:
    """`Estimate.refined` for arrays; `weight` is already limited."""
    total = weight + trials
    return np.minimum((weight * mean + successes) / total, 1.0), total


def expected_of(prior: Prior, rows: Mapping[str, int], k_max: int) -> Positions:
    """What a prior counts for, by row and position: drafts that it has not seen, but believes in."""
    reached, accepted = np.zeros((MAX_SEGMENTS, k_max)), np.zeros((MAX_SEGMENTS, k_max))
    for name, row in rows.items():
        shares = prior.acceptance.get(name) or prior.acceptance.get(UNKNOWN_SEGMENT)
        if shares is None:
            continue
        drafts = prior.drafts if name in prior.acceptance else min(prior.drafts, GUESSED_DRAFTS)
        mean = np.array(shares[:k_max])
        reached[row, : len(mean)] = drafts * np.cumprod(np.append(1.0, mean[:-1]))
        accepted[row, : len(mean)] = mean * reached[row, : len(mean)]
    return Positions(reached, accepted)


def expected_coverage(
    prior: Prior, rows: Mapping[str, int], leaning: tuple[Array, Array], asked: Array
) -> tuple[Array, Array]:
    """Coverage to lean on, by row, and its weight: a prior's where it has one."""
    mean, weight = leaning
    for name, row in rows.items():
        share = prior.coverage.get(name, prior.coverage.get(UNKNOWN_SEGMENT))
        if share is not None:
            mean[row], weight[row] = share, _stepping_aside(np.array(prior.drafts), asked[row])
    return mean, weight


def _stepping_aside(drafts: Array, seen: Array) -> Array:
    """What is left of a prior's weight beside that of what was seen: half of it beside as much."""
    return np.asarray(drafts**2 / np.maximum(drafts + seen, 1e-300))


def means(
    by_context: Positions,
    whole: Positions,
    presence: Array,
    engine: Estimate,
    expected: Positions | None = None,
) -> tuple[Array, Array]:
    """Acceptance by segment and position over the contexts that are present, and the weight behind it;
    `whole`: `by_context` over all of them."""
    reached, accepted = whole
    if expected is not None:
        left = _stepping_aside(expected.reached, reached) / np.maximum(expected.reached, 1e-300)
        reached, accepted = reached + left * expected.reached, accepted + left * expected.accepted
    pooled, weight = refined(
        engine.mean, min(engine.weight, STRENGTH_ENGINE), accepted.sum(axis=1), reached.sum(axis=1)
    )
    strength = np.minimum(weight, STRENGTH_SEGMENT)[:, None]
    segment, weight = refined(pooled[:, None], strength, accepted, reached)
    strength = np.minimum(weight, STRENGTH_CONTEXT)[:, None]
    here, _ = refined(segment[:, None], strength, by_context.accepted, by_context.reached)
    total = presence.sum(axis=1, keepdims=True)
    present = presence / np.maximum(total, 1e-300)
    mean = (here * present[:, :, None]).sum(axis=1)
    return np.minimum(np.where(total > 0.0, mean, segment), 1.0), weight


def worth_of(sums: Array) -> Array:
    """How many independent drafts one of the faded ones is worth: W^2 / sum w^2 by its weight W."""
    twice = sums[DRAFTED_TWICE]
    return np.where(twice > 0.0, sums[DRAFTED] / np.maximum(twice, 1e-300), 1.0)


def burstiness_of(whole: Positions, burstiness: Array) -> Array:
    """Variance against that of independent drafts by segment and position, given that of whole proposals.

    What all positions have in common, an easy spell, adds up over a proposal: with n_j verifications of
    variance v_j and a common level of variance t, the sum varies by N + t N^2, N = sum n_j v_j, and position
    j by n_j v_j + t (n_j v_j)^2. So its excess is the part n_j v_j / N of that of the whole.
    """
    reached, accepted = whole
    mean = (accepted + 0.5) / (reached + 1.0)
    variance = reached * mean * (1.0 - mean)
    part = variance / np.maximum(variance.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(1.0 + (burstiness[:, None] - 1.0) * part)


def interval(mean: Array, weight: Array, worth: Array) -> tuple[Array, Array]:
    """The 90 % interval (normal approximation of the Beta posterior)."""
    half = NORMAL_Q95 * np.sqrt(mean * (1.0 - mean) / (weight * worth + 1.0))
    return np.maximum(mean - half, 0.0), np.minimum(mean + half, 1.0)


def drafted_shares(offered: Array) -> Array:
    """P(position j is offered | a draft, K >= j): never rises with j; 1 at first, the last known after."""
    drafted = offered[:, :, :1].sum(axis=2).T
    could = 1.0 + drafted[::-1].cumsum(axis=0)[::-1][1:]
    did = offered.sum(axis=1).T
    shares = np.empty_like(did)
    above: Array = np.ones(MAX_SEGMENTS)
    for j in range(len(shares)):
        above = shares[j] = np.minimum(above, (above + did[j]) / could[j])
    return np.asarray(shares.T)


def apart_by_k(by_k: Positions, mean: Array, worth: Array) -> dict[int, dict[int, tuple[float, ...]]]:
    """Acceptance by commanded K of the segments in which it differs from K to K, by row."""
    known = np.asarray((by_k.reached[:, :, :1] >= KNOWN_REACHED).any(axis=2))
    number = known.sum(axis=1)
    if number.max() <= 1:
        return {}
    reached, accepted = by_k.reached * known[:, :, None], by_k.accepted * known[:, :, None]
    common = (accepted.sum(axis=1) + 1.0) / (reached.sum(axis=1) + 2.0)
    # Bursts make the first position differ most; every K is compared over the positions that all share.
    shared = (np.arange(reached.shape[2]) < known.argmax(axis=1)[:, None]).astype(np.float64)
    expected = common * shared
    surplus = _along(accepted, shared) - _along(reached, expected)
    variance = _along(reached, expected * (1.0 - common)) / worth[:, None]
    square = (surplus**2 / np.maximum(variance, 1e-9)).sum(axis=1)
    differ = (number > 1) & (square > EQUAL_AT_MOST + PER_FREEDOM * (number - 1))
    out: dict[int, dict[int, tuple[float, ...]]] = {}
    for row in differ.nonzero()[0].tolist():
        ks = known[row].nonzero()[0]
        table = (accepted[row, ks] + STRENGTH_CONTEXT * mean[row]) / (reached[row, ks] + STRENGTH_CONTEXT)
        out[row] = {k: tuple(line) for k, line in zip(ks.tolist(), table.tolist(), strict=True)}
    return out


def _along(table: Array, weights: Array) -> Array:
    """Sums over positions by segment and K; `weights`: by segment and position."""
    return (table @ weights[:, :, None])[:, :, 0]
