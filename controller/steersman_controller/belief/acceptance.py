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

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.estimate import NORMAL_Q95, PRIOR, Estimate
from steersman_controller.belief.evidence import (
    ASKED,
    DRAFTED,
    DRAFTED_TWICE,
    INVALID,
    KEEP_ASKED,
    Evidence,
    EvidenceState,
)
from steersman_controller.belief.expected import Expected, expected_of
from steersman_controller.belief.prior import Prior
from steersman_controller.belief.shrinkage import STRENGTH_CONTEXT, intervals, means
from steersman_controller.belief.signals import Signals, SignalsState
from steersman_controller.compiled import compiled
from steersman_policies.units import MAX_SEGMENTS
from steersman_policies.view import SegmentBelief

KEEP_DOUBTED = 1.0 / 64.0


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
        self._leaning: tuple[dict[str, int], Expected] | None = None
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

    def look(self, chunk: Columns, rows: Counts, residuals: Array, observed: Mask) -> None:
        """Write the standardised residuals against the references, and where there is one.

        By step that trains, and by channel: the first channels are the acceptance of each segment, the next
        their coverage. A step with more requests than those behind a reference counts as one with as many:
        what the reference is off by would stand out of it, however long it was looked at.
        """
        state = self.state
        _look(
            chunk.trains,
            chunk.groups_before,
            rows,
            chunk.bucket,
            chunk.asked,
            chunk.with_draft,
            chunk.teaches,
            chunk.outcomes_before,
            chunk.offered,
            chunk.reached,
            chunk.accepted,
            chunk.verified,
            state.expected,
            state.variance,
            state.coverage,
            state.usual,
            residuals,
            observed,
        )

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
        _refer(found.reached, found.accepted, acceptance, STRENGTH_CONTEXT, state.expected, state.variance)
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
        state, sums, gains = self.evidence.state, self.evidence.sums(), self.evidence.gains()
        which, expected = np.array(list(rows.values())), self._expected(rows)
        mean, weight, drafted_share, reached, accepted, coverage = means(
            which,
            state.by_context,
            state.by_k[0],
            sums[ASKED],
            sums[DRAFTED],
            gains,
            presence,
            *expected,
            float(fleet.mean),
            float(fleet.weight),
            PRIOR.mean,
        )
        mean, drafted_share = self.signals.untrimmed(mean, drafted_share)
        low, high, told, by_itself = intervals(
            which,
            state.by_k,
            sums[DRAFTED],
            sums[DRAFTED_TWICE],
            gains,
            mean,
            weight,
            reached,
            accepted,
            burstiness,
            NORMAL_Q95,
        )
        # Asking in vain is evidence too: what is hardly ever drafted is known to be so.
        known = np.maximum(sums[DRAFTED], sums[ASKED] / 4.0)
        invalid = sums[INVALID] / np.maximum(sums[ASKED] + sums[INVALID], 1e-9)
        by_row = np.array((shares, known, coverage, invalid))[:, which].T.tolist()
        by_position = np.array((mean[which], low, drafted_share[which], high)).transpose(1, 0, 2).tolist()
        apart = _apart(told, by_itself) if told.any() else {}
        by_signal = self.signals.beliefs()
        return tuple(
            [
                SegmentBelief(
                    segment=name,
                    share=numbers[0],
                    weight=numbers[1],
                    coverage=numbers[2],
                    acceptance=tuple(positions[0]),
                    acceptance_low=tuple(positions[1]),
                    drafted_share=tuple(positions[2]),
                    acceptance_high=tuple(positions[3]),
                    invalid_state_share=numbers[3],
                    by_k=apart.get(index, {}),
                    by_signal=by_signal.get(row, {}),
                )
                for index, ((name, row), numbers, positions) in enumerate(
                    zip(rows.items(), by_row, by_position, strict=True)
                )
            ]
        )

    def _expected(self, rows: Mapping[str, int]) -> Expected:
        """What the prior counts for; the same while the segments are."""
        if self._leaning is None or self._leaning[0] != rows:
            self._leaning = dict(rows), expected_of(self.prior, rows, self.k_max)
        return self._leaning[1]


def _apart(told: Mask, by_itself: Array) -> dict[int, dict[int, tuple[float, ...]]]:
    """Acceptance by commanded K, of the segments in which it differs from K to K."""
    return {
        index: {k: tuple(by_itself[index, k].tolist()) for k in np.flatnonzero(told[index]).tolist()}
        for index in np.flatnonzero(told.any(axis=1)).tolist()
    }


@compiled
def _look(
    trains: Mask,
    groups_before: Counts,
    rows: Counts,
    bucket: Counts,
    asked: Array,
    with_draft: Array,
    teaches: Array,
    outcomes_before: Counts,
    offered: Counts,
    reached: Counts,
    accepted: Counts,
    verified: Array,
    expected: Array,
    variance: Array,
    coverage: Array,
    usual: Array,
    residuals: Array,
    observed: Mask,
) -> None:
    """See `Acceptance.look`; the last two are written."""
    segments, at = len(coverage), 0
    surplus, spread, requests = np.empty((3, 2 * segments))
    for step in range(len(trains)):
        if not trains[step]:
            continue
        surplus[:] = spread[:] = requests[:] = 0.0
        for group in range(groups_before[step], groups_before[step + 1]):
            if teaches[group] == 0.0:
                continue
            row, context = rows[group], bucket[group]
            for outcome in range(outcomes_before[group], outcomes_before[group + 1]):
                more = accepted[outcome] - expected[row, context, reached[outcome]]
                surplus[row] += more * verified[outcome]
                spread[row] += variance[row, context, offered[outcome]] * verified[outcome]
            requests[row] += with_draft[group]
            share, row = coverage[row], row + segments
            surplus[row] += with_draft[group] - share * asked[group]
            spread[row] += share * (1.0 - share) * asked[group]
            requests[row] += asked[group]
        for channel in range(2 * segments):
            if requests[channel] > 0.0:
                counted = usual[channel] / max(requests[channel], usual[channel], 1e-9)
                residuals[at, channel] = surplus[channel] / math.sqrt(spread[channel] + 0.02)
                residuals[at, channel] *= math.sqrt(counted)
                observed[at, channel] = True
        at += 1


@compiled
def _refer(
    reached: Array, accepted: Array, renewed: Mask, strength: float, expected: Array, variance: Array
) -> None:
    """Write what is expected of these segments; acceptance by context leans on that of the segment."""
    _, contexts, positions = reached.shape
    for row in range(len(renewed)):
        if not renewed[row]:
            continue
        survival = np.ones(contexts)
        expected[row, :, 0] = variance[row, :, 0] = 0.0
        for position in range(positions):
            segment = (accepted[row, :, position].sum() + 1.0) / (reached[row, :, position].sum() + 2.0)
            for context in range(contexts):
                kept = accepted[row, context, position] + strength * segment
                mean = kept / (reached[row, context, position] + strength)
                expected[row, context, position + 1] = expected[row, context, position] + mean
                spread = survival[context] * mean * (1.0 - mean)
                variance[row, context, position + 1] = variance[row, context, position] + spread
                survival[context] *= mean
