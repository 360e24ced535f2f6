"""Building blocks that planners share: a plan from per-cell decisions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from steersman_policies.plan import Dwell, Explore, KTable, Plan, bucket
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


class Place(NamedTuple):
    """Which cell: in the table with or without prefill, by bucket."""

    prefill: bool
    batch: int
    context: int


class Tables:
    """The tables of the previous plan of a policy, to be changed cell by cell.

    Where there is no such plan, or one on other edges, they start with 0 everywhere and hold nothing.
    """

    def __init__(self, view: View, policy: str) -> None:
        self.batches = cell_batches(view.batch_edges, view.hello.max_batch)
        self.contexts = cell_contexts(view.context_edges, view.mean_context_tokens)
        kinds = (False, True) if view.prefill_tokens > 0.0 else (False,)
        self.places = _places(len(kinds), len(self.batches), len(self.contexts))
        old, edges = view.previous, (view.batch_edges, view.context_edges)
        ours = old is not None and old.policy == policy and (old.batch_edges, old.context_edges) == edges
        self.old = old if ours else None
        self._view = view
        self._reachable = frozenset(view.hello.reachable_k)
        self._held = {kind: self._start(kind) for kind in kinds}
        self._changes: dict[tuple[bool, str], dict[tuple[int, int], int]] = defaultdict(dict)

    def near(self) -> set[int]:
        """Numbers of the places of the present load, and of those next to it in steps without prefill."""
        batch = bucket(self._view.batch_edges, self._view.mean_requests)
        context = bucket(self._view.context_edges, self._view.mean_context_tokens)
        batches, contexts = len(self.batches), len(self.contexts)
        near = {batch * contexts + near for near in range(max(context - 1, 0), min(context + 2, contexts))}
        near |= {near * contexts + context for near in range(max(batch - 1, 0), min(batch + 2, batches))}
        if True in self._held:
            near.add((batches + batch) * contexts + context)
        return near

    def held(self, segments: Sequence[str], place: Place) -> tuple[int, ...]:
        """The K in force by segment; empty where there are none, or some that are not reachable any more."""
        tables = self._held[place.prefill]
        if not tables:
            return ()
        found = tuple([tables[segment][place.batch][place.context] for segment in segments])
        return found if self._reachable.issuperset(found) else ()

    def put(self, segments: Sequence[str], place: Place, lengths: Sequence[int]) -> None:
        """Decide a cell."""
        for segment, k in zip(segments, lengths, strict=True):
            self._changes[place.prefill, segment][place.batch, place.context] = k

    def frozen(self, *, prefill: bool) -> dict[str, KTable]:
        """The tables as they are now, by segment; none where the load has no prefill."""
        if prefill not in self._held:
            return {}
        held = self._held[prefill]
        if held and not self._changes:
            return held
        nothing = ((0,) * len(self.contexts),) * len(self.batches)
        return {
            s.segment: _with(held.get(s.segment, nothing), self._changes.get((prefill, s.segment), {}))
            for s in self._view.segments
        }

    def _start(self, prefill: bool) -> dict[str, KTable]:
        """Of every segment; what the plan did not name was served as unknown."""
        if self.old is None:
            return {}
        tables = self.old.prefill_proposal_length if prefill else self.old.proposal_length
        if UNKNOWN_SEGMENT not in tables:
            return {}
        unknown = tables[UNKNOWN_SEGMENT]
        return {s.segment: tables.get(s.segment, unknown) for s in self._view.segments}


@lru_cache(maxsize=16)
def _places(kinds: int, batches: int, contexts: int) -> tuple[Place, ...]:
    return tuple(
        Place(kind > 0, batch, context)
        for kind, batch, context in product(range(kinds), range(batches), range(contexts))
    )


def _with(table: KTable, changes: Mapping[tuple[int, int], int]) -> KTable:
    if not changes:
        return table
    rows = [list(row) for row in table]
    for (batch, context), k in changes.items():
        rows[batch][context] = k
    return tuple(map(tuple, rows))


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


def constant_plan(view: View, k: int, *, policy: str, version: str, explore: Explore | None = None) -> Plan:
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
        explore=explore,
    )
