"""How often drafts are accepted, by segment, context bucket and position.

Rules of this file:

- A step that verified d draft tokens of a request and accepted a of them says: positions 1 to a were
  reached and accepted, position a + 1 was reached and rejected if a < d, and nothing at all about the
  positions behind. Those are missing, not zero; so position acceptance is accepted / reached, and it
  does not depend on the K that was commanded. (accepted / drafted does: its expectation is
  (1/K) sum alpha^i, and a planner fed with it locks itself off.)
- Some drafters get worse at every position when asked for more. So evidence is kept by commanded K, and
  pooled over K only while a test of equality holds.
- Evidence is forgotten per step in which a segment was asked for drafts, and a little in steps in
  which it was not: an old belief becomes an uncertain one.
- A belief that a watch sees contradicted loses most of its weight at once.
- Every estimate is shrunk towards the next coarser one: context -> segment -> engine -> fleet -> prior.
- Requests without a valid drafter state are a class of their own: they were not asked, and do not count as
  refusals of the drafter.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask, added_up
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.estimate import PRIOR, Estimate
from steersman_controller.belief.evidence import (
    ASKED,
    DRAFTED,
    DRAFTED_TWICE,
    INVALID,
    KEEP_ASKED,
    Evidence,
    EvidenceState,
    Positions,
)
from steersman_controller.belief.prior import GUESSED_DRAFTS, Prior
from steersman_controller.belief.signals import Signals, SignalsState
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT
from steersman_policies.view import SegmentBelief

KEEP_DOUBTED = 1.0 / 64.0

STRENGTH_ENGINE = 2.0
"""Segments differ a lot within one engine, so the engine's mean says little about a new one."""

STRENGTH_SEGMENT = 4.0
STRENGTH_CONTEXT = 30.0

NORMAL_Q95 = 1.645


class AcceptanceState(Struct):
    """What an `Acceptance` has learned; part of a snapshot."""

    evidence: EvidenceState
    signals: SignalsState
    expected: Array
    """By segment and context: accepted tokens expected of a proposal that reaches 0, 1, 2 ... positions."""
    variance: Array
    """Their variance for a proposal that *offers* 0, 1, 2 ... positions. Divided by what was reached instead,
    a residual would depend on its own outcome: a refusal at once would weigh more than a long acceptance."""
    coverage: Array
    """By segment."""
    usual: Array
    """By channel, of a step behind its reference: requests with a draft, then requests asked; 0 before."""


class Acceptance:
    """Learns from chunks of steps. Only `learn`, `doubt`, `free` and `settle` change what is believed."""

    def __init__(self, k_max: int, prior: Prior | None = None) -> None:
        self.k_max = k_max
        self.prior = prior
        self.evidence = Evidence(k_max)
        self.signals = Signals(k_max)
        contexts = self.evidence.state.by_context.shape[2]
        self.state = AcceptanceState(
            evidence=self.evidence.state,
            signals=self.signals.state,
            expected=np.zeros((MAX_SEGMENTS, contexts, k_max + 1)),
            variance=np.zeros((MAX_SEGMENTS, contexts, k_max + 1)),
            coverage=np.zeros(MAX_SEGMENTS),
            usual=np.zeros(2 * MAX_SEGMENTS),
        )

    def look(self, chunk: Columns, rows: Counts) -> tuple[Array, Mask]:
        """Standardised residuals against the references, ``[step][channel]``, and where there is one.

        The first channels are the acceptance of each segment, the others its coverage. A step with more
        requests than those behind a reference counts as one with as many: what the reference is off by would
        stand out of it, however long it was looked at.
        """
        state, size = self.state, chunk.steps * MAX_SEGMENTS
        marks, contexts = state.expected.shape[2], state.expected.shape[1]
        place = chunk.step * MAX_SEGMENTS + rows
        of = place[chunk.group]
        table = ((rows * contexts + chunk.bucket) * marks)[chunk.group]
        offered, reached, accepted = chunk.marks
        surplus = (accepted - state.expected.reshape(-1)[table + reached]) * chunk.count
        variance = state.variance.reshape(-1)[table + offered] * chunk.count
        share = state.coverage[rows]
        asked, drafted, _ = chunk.drafts
        residuals = np.empty((chunk.steps, 2 * MAX_SEGMENTS))
        shape = (chunk.steps, MAX_SEGMENTS)
        residuals[:, :MAX_SEGMENTS] = _standardised(
            added_up(of, surplus, size),
            added_up(of, variance, size),
        ).reshape(shape)
        residuals[:, MAX_SEGMENTS:] = _standardised(
            added_up(place, drafted - share * asked, size),
            added_up(place, share * (1.0 - share) * asked, size),
        ).reshape(shape)
        requests = np.empty((chunk.steps, 2 * MAX_SEGMENTS))
        requests[:, :MAX_SEGMENTS] = added_up(place, drafted, size).reshape(shape)
        requests[:, MAX_SEGMENTS:] = added_up(place, asked, size).reshape(shape)
        residuals *= np.sqrt(state.usual / np.maximum(requests, np.maximum(state.usual, 1e-9)))
        return residuals, requests > 0.0

    def learn(self, chunk: Columns, rows: Counts) -> None:
        """Learn from a chunk; `rows`: the segment of each group."""
        self.evidence.add(chunk, rows)
        self.signals.learn(chunk, rows)

    def settle(self) -> None:
        """Rescale what was added."""
        self.evidence.settle()
        self.signals.settle()

    def doubt(self, rows: Counts) -> None:
        """Forget most of what was learned of these segments: what remains leans on their engine."""
        self.evidence.doubt(rows, KEEP_DOUBTED)
        self.signals.doubt(rows, KEEP_DOUBTED)

    def free(self, row: int) -> None:
        """Forget a segment."""
        self.evidence.free(row)
        self.signals.free(row)

    def refer(self, acceptance: Mask, coverage: Mask, seen: Counts) -> None:
        """From now on compare what these segments do with what is believed of them now; `seen`: steps behind
        that, by channel."""
        state = self.state
        found, sums = self.evidence.by_context(), self.evidence.sums()
        reached, accepted = found.reached.sum(axis=1), found.accepted.sum(axis=1)
        segment = (accepted + 1.0) / (reached + 2.0)
        strength = STRENGTH_CONTEXT
        mean = (found.accepted + strength * segment[:, None]) / (found.reached + strength)
        marks = ((0, 0), (0, 0), (1, 0))
        reach = np.cumprod(mean, axis=-1)[..., :-1]
        reach = np.concatenate([np.ones_like(mean[..., :1]), reach], axis=-1)
        expected, variance = np.cumsum(np.stack([mean, reach * mean * (1.0 - mean)]), axis=-1)
        state.expected[acceptance] = np.pad(expected, marks)[acceptance]
        state.variance[acceptance] = np.pad(variance, marks)[acceptance]
        share = (sums[DRAFTED] + 1.0) / (sums[ASKED] + 2.0)
        state.coverage[coverage] = share[coverage]
        renewed = np.concatenate([acceptance, coverage])
        steps = (1.0 - KEEP_ASKED ** np.maximum(seen, 1)) / (1.0 - KEEP_ASKED)
        state.usual[renewed] = (np.concatenate([sums[DRAFTED], sums[ASKED]]) / steps)[renewed]

    def restore(self, state: AcceptanceState) -> None:
        """Continue from a snapshot of an engine of the same size."""
        self.state = state
        self.evidence.state = state.evidence
        self.signals.state = state.signals

    def totals(self) -> tuple[float, float]:
        """Draft tokens accepted and reached, over everything remembered."""
        found = self.evidence.by_context()
        return float(found.accepted.sum()), float(found.reached.sum())

    def beliefs(
        self,
        rows: Mapping[str, int],
        shares: Array,
        presence: Array,
        burstiness: Array,
        fleet: Estimate = PRIOR,
    ) -> tuple[SegmentBelief, ...]:
        """Belief about each segment of `rows`, as present in the context buckets of ``presence[row]``
        (weights, any scale). `burstiness`: by row, the variance of sums of drafts against independent ones.
        """
        sums = self.evidence.sums()
        by_context = self.evidence.by_context()
        whole = Positions(by_context.reached.sum(axis=1), by_context.accepted.sum(axis=1))
        offered, by_k = self.evidence.by_k()
        engine, coverage = _engine(whole, sums, fleet)
        expected = None if self.prior is None else _expected(self.prior, rows, self.k_max)
        mean, weight = _means(by_context, whole, presence, engine, expected)
        leaning = (
            np.full(MAX_SEGMENTS, coverage.mean),
            np.full(MAX_SEGMENTS, min(coverage.weight, STRENGTH_ENGINE)),
        )
        if self.prior is not None:
            leaning = _expected_coverage(self.prior, rows, leaning, sums[ASKED])
        share = _refined(*leaning, sums[DRAFTED], sums[ASKED])[0]
        mean, drafted_share = self.signals.untrimmed(mean, _drafted_share(offered))
        by_signal = self.signals.beliefs()
        worth = _worth(sums)
        low, high = _interval(mean, weight, worth[:, None] / _burstiness(whole, burstiness))
        apart = _apart(by_k, mean, worth / burstiness)
        # Asking in vain is evidence too: what is hardly ever drafted is known to be so.
        known = np.maximum(sums[DRAFTED], sums[ASKED] / 4.0)
        invalid = sums[INVALID] / np.maximum(sums[ASKED] + sums[INVALID], 1e-9)
        by_row = np.stack([shares, known, share, invalid], axis=1).tolist()
        by_position = np.stack([mean, low, drafted_share, high], axis=1).tolist()
        return tuple(
            SegmentBelief(
                segment=name,
                share=by_row[row][0],
                weight=by_row[row][1],
                coverage=by_row[row][2],
                acceptance=tuple(by_position[row][0]),
                acceptance_low=tuple(by_position[row][1]),
                drafted_share=tuple(by_position[row][2]),
                acceptance_high=tuple(by_position[row][3]),
                invalid_state_share=by_row[row][3],
                by_k=apart.get(row, {}),
                by_signal=by_signal.get(row, {}),
            )
            for name, row in rows.items()
        )


EQUAL_AT_MOST = 17.0
"""Squared deviations, in units of their usual square, at which K are kept apart, and `PER_FREEDOM` more
for each K beyond the first: a chance of about 1 in 100,000."""

PER_FREEDOM = 3.0

KNOWN_REACHED = 60.0
"""Verifications that reached position 1 under a K before it can be told apart."""


def _engine(whole: Positions, sums: Array, fleet: Estimate) -> tuple[Estimate, Estimate]:
    """Acceptance and coverage of everything this engine drafted, leaning on the fleet."""
    acceptance = fleet.refined(float(whole.accepted.sum()), float(whole.reached.sum()), PRIOR.weight)
    coverage = PRIOR.refined(float(sums[DRAFTED].sum()), float(sums[ASKED].sum()), PRIOR.weight)
    return acceptance, coverage


def _refined(
    mean: Array | float, weight: Array | float, successes: Array, trials: Array
) -> tuple[Array, Array]:
    """`Estimate.refined` for arrays; `weight` is already limited."""
    total = weight + trials
    return np.minimum((weight * mean + successes) / total, 1.0), total


def _expected(prior: Prior, rows: Mapping[str, int], k_max: int) -> Positions:
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


def _expected_coverage(
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


def _means(
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
    pooled, weight = _refined(
        engine.mean, min(engine.weight, STRENGTH_ENGINE), accepted.sum(axis=1), reached.sum(axis=1)
    )
    strength = np.minimum(weight, STRENGTH_SEGMENT)[:, None]
    segment, weight = _refined(pooled[:, None], strength, accepted, reached)
    strength = np.minimum(weight, STRENGTH_CONTEXT)[:, None]
    here, _ = _refined(segment[:, None], strength, by_context.accepted, by_context.reached)
    total = presence.sum(axis=1, keepdims=True)
    present = presence / np.maximum(total, 1e-300)
    mean = (here * present[:, :, None]).sum(axis=1)
    return np.minimum(np.where(total > 0.0, mean, segment), 1.0), weight


def _worth(sums: Array) -> Array:
    """How many independent drafts one of the faded ones is worth: W^2 / sum w^2 by its weight W."""
    twice = sums[DRAFTED_TWICE]
    return np.where(twice > 0.0, sums[DRAFTED] / np.maximum(twice, 1e-300), 1.0)


def _burstiness(whole: Positions, burstiness: Array) -> Array:
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


def _interval(mean: Array, weight: Array, worth: Array) -> tuple[Array, Array]:
    """The 90 % interval (normal approximation of the Beta posterior)."""
    half = NORMAL_Q95 * np.sqrt(mean * (1.0 - mean) / (weight * worth + 1.0))
    return np.maximum(mean - half, 0.0), np.minimum(mean + half, 1.0)


def _drafted_share(offered: Array) -> Array:
    """P(position j is offered | a draft, K >= j): never rises with j; 1 at first, the last known after."""
    drafted = offered[:, :, :1].sum(axis=2).T
    could = 1.0 + drafted[::-1].cumsum(axis=0)[::-1][1:]
    did = offered.sum(axis=1).T
    shares = np.empty_like(did)
    above: Array = np.ones(MAX_SEGMENTS)
    for j in range(len(shares)):
        above = shares[j] = np.minimum(above, (above + did[j]) / could[j])
    return np.asarray(shares.T)


def _apart(by_k: Positions, mean: Array, worth: Array) -> dict[int, dict[int, tuple[float, ...]]]:
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


def _standardised(difference: Array, variance: Array) -> Array:
    return difference / np.sqrt(variance + 0.02)
