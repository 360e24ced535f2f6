"""How often drafts are accepted, by segment, context bucket and position.

Rules of this file:

- A step that verified d draft tokens of a request and accepted a of them says: positions 1 to a were
  reached and accepted, position a + 1 was reached and rejected if a < d, and nothing at all about the
  positions behind. Those are missing, not zero; so position acceptance is accepted / reached, and it
  does not depend on the K that was commanded. (accepted / drafted does: its expectation is
  (1/K) sum alpha^i, and a planner fed with it locks itself off.)
- Evidence is forgotten per step in which a segment was asked for drafts, and a little in steps in
  which it was not: an old belief becomes an uncertain one.
- A belief that its own newest evidence contradicts loses most of its weight at once.
- Every estimate is shrunk towards the next coarser one: context -> segment -> engine -> prior.
"""

from collections.abc import Mapping, Sequence

from steersman_controller.belief.estimate import PRIOR, Estimate
from steersman_controller.belief.evidence import Evidence, Positions, is_sane, no_evidence
from steersman_policies.messages import Group, NotDrafted
from steersman_policies.view import SegmentBelief

KEEP_ASKED = 0.995
"""Kept of the evidence in a step that asked the segment for drafts."""

KEEP_IDLE = 0.9995
"""Kept in a step in which the segment was live but not asked."""

KEEP_CONTRADICTED = 0.25

NOT_ASKED: tuple[NotDrafted, ...] = ("grammar", "length_limit", "invalid_state")
"""Reasons that say nothing about the drafter: the request could not be drafted for."""

STRENGTH_ENGINE = 2.0
"""Segments differ a lot within one engine, so the engine's mean says little about a new one."""

STRENGTH_SEGMENT = 4.0
STRENGTH_CONTEXT = 30.0


class Acceptance:
    """Learns from groups. Nothing but `observe` and `drop` changes it."""

    def __init__(self, k_max: int) -> None:
        self.k_max = k_max
        self.evidence: dict[str, Evidence] = {}

    def observe(self, segment: str, group: Group, step: int) -> bool:
        """Learn from what a group verified; False (and nothing learned) where it contradicts itself.

        `step` is any ordinal of the step: a segment forgets once per step, however many its groups.
        """
        if not is_sane(group, self.k_max):
            return False
        evidence = self.evidence.get(segment)
        if evidence is None:
            evidence = self.evidence[segment] = no_evidence(self.k_max)
        if evidence.step != step:
            evidence.step = step
            evidence.keep(KEEP_ASKED if group.commanded_k else KEEP_IDLE)
        if group.commanded_k:
            asked = group.requests
            if group.not_drafted:
                asked -= sum(group.not_drafted.get(reason, 0) for reason in NOT_ASKED)
                asked = max(asked, group.requests_drafted)
            if evidence.is_contradicted(group, asked):
                evidence.doubt(KEEP_CONTRADICTED)
            evidence.add(group, asked)
        return True

    def drop(self, segment: str) -> None:
        """Forget a segment."""
        self.evidence.pop(segment, None)

    def beliefs(
        self, shares: Mapping[str, float], contexts: Mapping[str, Sequence[float]]
    ) -> tuple[SegmentBelief, ...]:
        """Belief about each segment of `shares`, as present in the context buckets of `contexts`
        (weights, any scale)."""
        known = {
            name: [evidence.positions(bucket) for bucket in evidence.buckets]
            for name, evidence in sorted(self.evidence.items())
        }
        reached = sum(sum(p.reached) for buckets in known.values() for p in buckets)
        accepted = sum(sum(p.accepted) for buckets in known.values() for p in buckets)
        asked = sum(self.evidence[name].asked / self.evidence[name].gain for name in known)
        drafted = sum(self.evidence[name].drafted / self.evidence[name].gain for name in known)
        acceptance = PRIOR.refined(accepted, reached, PRIOR.weight)
        coverage = PRIOR.refined(drafted, asked, PRIOR.weight)
        nothing = no_evidence(self.k_max)
        nowhere = [nothing.positions(bucket) for bucket in nothing.buckets]
        return tuple(
            _belief(
                segment,
                share,
                self.evidence.get(segment, nothing),
                known.get(segment, nowhere),
                contexts[segment],
                acceptance,
                coverage,
            )
            for segment, share in shares.items()
        )


def _belief(
    segment: str,
    share: float,
    evidence: Evidence,
    buckets: Sequence[Positions],
    contexts: Sequence[float],
    engine_acceptance: Estimate,
    engine_coverage: Estimate,
) -> SegmentBelief:
    reached = [sum(column) for column in zip(*(p.reached for p in buckets), strict=True)]
    accepted = [sum(column) for column in zip(*(p.accepted for p in buckets), strict=True)]
    offered = [sum(column) for column in zip(*(p.offered for p in buckets), strict=True)]
    pooled = engine_acceptance.refined(sum(accepted), sum(reached), STRENGTH_ENGINE)
    estimates = [pooled.refined(a, r, STRENGTH_SEGMENT) for a, r in zip(accepted, reached, strict=True)]
    means = [_mean(estimate, j, buckets, contexts) for j, estimate in enumerate(estimates)]
    asked, drafted = evidence.asked / evidence.gain, evidence.drafted / evidence.gain
    return SegmentBelief(
        segment=segment,
        share=share,
        # Asking in vain is evidence too: what is hardly ever drafted is known to be so.
        weight=max(drafted, asked / 4.0),
        coverage=engine_coverage.refined(drafted, asked, STRENGTH_ENGINE).mean,
        acceptance=tuple(means),
        acceptance_low=tuple(
            Estimate(mean, estimate.weight).low for mean, estimate in zip(means, estimates, strict=True)
        ),
        drafted_share=_drafted_share(evidence, offered),
    )


def _mean(segment: Estimate, position: int, buckets: Sequence[Positions], contexts: Sequence[float]) -> float:
    """Acceptance at a position over the contexts that are present."""
    total = sum(contexts)
    if total <= 0.0:
        return segment.mean
    mean = 0.0
    for found, weight in zip(buckets, contexts, strict=True):
        if weight > 0.0:
            here = segment.refined(found.accepted[position], found.reached[position], STRENGTH_CONTEXT)
            mean += here.mean * (weight / total)
    return min(mean, 1.0)


def _drafted_share(evidence: Evidence, offered: Sequence[float]) -> tuple[float, ...]:
    """P(position j is offered | a draft, K >= j): never rises with j; 1 at first, the last known after."""
    shares: list[float] = []
    above = 1.0
    for j, did in enumerate(offered, start=1):
        could = sum(evidence.commanded[j:]) / evidence.gain
        above = min(above, Estimate(above, 1.0).refined(did, could, 1.0).mean)
        shares.append(above)
    return tuple(shares)
