"""Building blocks that planners share: a plan from per-cell decisions."""

from collections.abc import Mapping
from itertools import pairwise

from steersman_policies.plan import Dwell, Explore, KTable, Plan
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import View


def cell_batches(edges: tuple[int, ...], max_batch: int) -> list[int]:
    """The batch size that stands for each bucket: its right end, where the step costs most.

    >>> cell_batches((1, 2, 4, 8), 16)
    [1, 2, 4, 8, 16]
    """
    return [*edges, max(max_batch, edges[-1] + 1 if edges else 1)]


def cell_contexts(edges: tuple[int, ...], mean_context_tokens: float) -> list[float]:
    """The mean context that stands for each bucket: the present mean in its own, else the middle.

    >>> cell_contexts((256, 1024), 300.0)
    [128.0, 300.0, 1536.0]
    """
    ends = [0.0, *map(float, edges), edges[-1] * 2.0 if edges else 2.0 * mean_context_tokens]
    middles = [(left + right) / 2.0 for left, right in pairwise(ends)]
    for index, (left, right) in enumerate(pairwise(ends)):
        if left < mean_context_tokens <= right:
            middles[index] = mean_context_tokens
    return middles


def at_most(view: View, k: int) -> int:
    """The largest reachable K that is not above `k`; the smallest reachable one where all are."""
    fitting = [reachable for reachable in view.hello.reachable_k if reachable <= k]
    return max(fitting) if fitting else min(view.hello.reachable_k)


def table(cells: list[list[int]]) -> KTable:
    """Freeze rows [batch][context]."""
    return tuple(tuple(row) for row in cells)


def make_plan(
    view: View,
    *,
    policy: str,
    version: str,
    proposal_length: Mapping[str, KTable],
    fallback: tuple[int, ...],
    prefill_proposal_length: Mapping[str, KTable] | None = None,
    dwell: Dwell | None = None,
    explore: Explore | None = None,
) -> Plan:
    """A plan for the engine of `view`; what a policy does not decide is carried over from the view."""
    return Plan(
        plan_id=view.next_plan_id,
        policy=policy,
        policy_version=version,
        fingerprint=view.fingerprint,
        mode=view.mode,
        batch_edges=view.batch_edges,
        context_edges=view.context_edges,
        proposal_length=dict(proposal_length),
        fallback=fallback,
        prefill_proposal_length=dict(prefill_proposal_length or {}),
        dwell=dwell if dwell is not None else Dwell(),
        explore=explore,
        segmenter=view.segmenter,
        slo=view.slo,
    )


def constant_plan(view: View, k: int, *, policy: str, version: str) -> Plan:
    """The same K for everybody, always; the reachable one that `at_most` finds.

    It says the same in every cell, so there is nothing to dwell on.
    """
    k = at_most(view, k)
    row = (k,) * (len(view.context_edges) + 1)
    batches = len(view.batch_edges) + 1
    return make_plan(
        view,
        policy=policy,
        version=version,
        proposal_length={UNKNOWN_SEGMENT: (row,) * batches},
        fallback=(k,) * batches,
        dwell=Dwell(steps=0, seconds=0.0),
    )
