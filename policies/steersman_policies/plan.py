"""The plan: what the sidecar wants drafted, as tables that an engine looks up in microseconds."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, TypeAlias

from msgspec import Struct

from steersman_policies.messages import Hello
from steersman_policies.segmenter import Segmenter
from steersman_policies.units import (
    MAX_SEGMENTS,
    UNKNOWN_SEGMENT,
    Count,
    Fraction,
    Name,
    ProposalLength,
    Seconds,
    Segment,
)

KTable: TypeAlias = tuple[tuple[ProposalLength, ...], ...]
"""K by [batch bucket][context bucket]."""


class Explore(Struct, frozen=True, array_like=True):
    """Deliberate variation: with probability `epsilon` a step tries a K of `k_set` on one segment."""

    seed: Count
    epsilon: Fraction
    k_set: tuple[ProposalLength, ...]


class Dwell(Struct, frozen=True, array_like=True):
    """The least time between two changes of one segment's K.

    Raising K is a bet and waits for both `steps` and `seconds`. Lowering it is what a rising load
    asks for, and the batch pays for every step of delay: it waits for `lower_steps`, or `steps` where
    these are fewer.
    """

    steps: Count = 20
    seconds: Seconds = 0.25
    lower_steps: Count = 2


class Slo(Struct, frozen=True, array_like=True):
    """Latency objective of a segment at a quantile over its requests."""

    ttft_s: Seconds
    tpot_s: Seconds
    quantile: Fraction = 0.95


class Plan(Struct, frozen=True, array_like=True, tag="plan"):
    """K is a *cap*: a drafter may propose less.

    Edges are ascending and right-closed, the last bucket is open: n edges make n + 1 buckets. The
    batch is counted over all live decode requests, the context is their mean, both taken after the
    batch was composed.
    """

    plan_id: Count
    policy: Name
    policy_version: Name
    fingerprint: Name
    """`fingerprint_digest` of the engine that the plan was made for."""
    mode: Literal["shadow", "steer"]
    """In shadow the engine keeps its launch setting and reports what the plan would have asked."""
    batch_edges: tuple[Count, ...]
    context_edges: tuple[Count, ...]
    proposal_length: dict[Segment, KTable]
    """Must hold `unknown`, which serves every segment not named."""
    fallback: tuple[ProposalLength, ...]
    """K by batch bucket when the lease has run out; the engine also keeps it on disk."""
    prefill_proposal_length: dict[Segment, KTable] = {}
    """For steps that carry prefill; a segment not named here uses the first table."""
    deficit_proposal_length: dict[Segment, KTable] = {}
    """For segments with requests behind their SLO; a segment not named uses the others."""
    dwell: Dwell = Dwell()
    explore: Explore | None = None
    drafter_state: Literal["warm", "cold"] = "warm"
    segmenter: Segmenter = Segmenter()
    slo: dict[Segment, Slo] = {}


def bucket(edges: tuple[int, ...], value: float) -> int:
    """Index of the right-closed bucket that holds `value`.

    >>> [bucket((1, 4, 16), n) for n in (0, 1, 2, 4, 5, 16, 17)]
    [0, 0, 1, 1, 2, 2, 3]
    """
    return bisect_left(edges, value)


def refusal(plan: Plan, hello: Hello, fingerprint: str) -> str | None:
    """Why this engine cannot follow the plan, in one line; None when it can.

    Msgspec has checked types and ranges by now; what is checked here relates fields to each other
    and to the engine.
    """
    if plan.fingerprint != fingerprint:
        return f"fingerprint: plan is for {plan.fingerprint}, engine is {fingerprint}"
    for name, edges in (("batch_edges", plan.batch_edges), ("context_edges", plan.context_edges)):
        if any(left >= right for left, right in pairwise(edges)):
            return f"{name}: must ascend, found {edges}"
    if UNKNOWN_SEGMENT not in plan.proposal_length:
        return f"proposal_length: needs an entry for {UNKNOWN_SEGMENT!r}"
    if len(plan.proposal_length) > MAX_SEGMENTS:
        return f"proposal_length: {len(plan.proposal_length)} segments, at most {MAX_SEGMENTS}"
    if plan.drafter_state == "cold" and not hello.drafter_state_survives_off:
        return "drafter_state: cold, but this drafter's state does not survive K = 0"
    return _table_refusal(plan, hello)


def _table_refusal(plan: Plan, hello: Hello) -> str | None:
    batches, contexts = len(plan.batch_edges) + 1, len(plan.context_edges) + 1
    if len(plan.fallback) != batches:
        return f"fallback: {len(plan.fallback)} entries for {batches} batch buckets"
    asked = set(plan.fallback)
    for where, table in _tables(plan):
        if len(table) != batches or {contexts}.symmetric_difference(map(len, table)):
            return f"{where}: must be {batches} batch x {contexts} context buckets"
        asked.update(*table)
    reachable = frozenset(hello.reachable_k)
    if plan.explore is not None:
        if not plan.explore.k_set:
            return "explore.k_set: must not be empty"
        asked |= set(plan.explore.k_set)
    unreachable = sorted(asked - reachable)
    if unreachable:
        return f"proposal_length: K={unreachable[0]} is not one of {sorted(reachable)}"
    return None


def _tables(plan: Plan) -> Iterator[tuple[str, KTable]]:
    for field in ("proposal_length", "prefill_proposal_length", "deficit_proposal_length"):
        for segment, table in getattr(plan, field).items():
            yield f"{field}[{segment}]", table
