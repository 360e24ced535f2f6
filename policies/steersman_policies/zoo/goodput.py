"""Maximise committed tokens per busy second, for each segment, in every cell of the plan.

How one cell is decided is in `steersman_policies.allocation`; here is what surrounds it: which segments
share a batch, what is held, what runs unattended, and how much is tried.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from steersman_policies.allocation import Cell, Lengths, Menu
from steersman_policies.plan import Dwell, Explore, KTable, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import cell_batches, cell_contexts, make_plan, table
from steersman_policies.units import UNKNOWN_SEGMENT, Count, Fraction, Seconds
from steersman_policies.view import SegmentBelief, View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters; the defaults suit steps of 7 to 500 ms."""

    version: ClassVar[str] = "1"
    band: Fraction = 0.03
    """A K in force stays until another promises more than this fraction above it."""
    tie: Fraction = 0.005
    """Candidates this close to the best count as equal; the one with fewest draft tokens wins."""
    dwell_steps: Count = 20
    dwell_s: Seconds = 0.25
    dwell_lower_steps: Count = 2
    explore: Fraction = 0.02
    """Share of steps that try another K on one segment, once every live segment is known."""
    explore_unknown: Fraction = 0.2
    """The same while a live segment has less than `known_weight` drafts behind its belief."""
    known_weight: Annotated[float, Meta(ge=0.0, le=1e9)] = 40.0
    probe_loss: Fraction = 0.5
    """The longest K is tried with which a step loses at most this fraction of its seconds."""
    live_share: Fraction = 0.02
    """A segment with a smaller share of the load is planned as if it were alone."""

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """Tables for steps without and with prefill, a cautious fallback, and a little exploration."""
        menus = [Menu(view, group, self.known_weight) for group in self._groups(view)]
        prefill = self._tables(view, menus, view.prefill_tokens) if view.prefill_tokens > 0.0 else {}
        plan = make_plan(
            view,
            policy="goodput",
            version=self.version,
            proposal_length=self._tables(view, menus, 0.0),
            prefill_proposal_length=prefill,
            fallback=self._fallback(view),
            dwell=Dwell(self.dwell_steps, self.dwell_s, self.dwell_lower_steps),
            explore=self._explore(view, menus[0]),
        )
        return plan, memory

    def _groups(self, view: View) -> list[list[SegmentBelief]]:
        """Segments that are decided together: those that share the batch; the others one by one."""
        live = [s for s in view.segments if s.share >= self.live_share] or list(view.segments)
        if not view.hello.per_request_k:
            return [list(view.segments)]
        return [live, *([s] for s in view.segments if s not in live)]

    def _tables(self, view: View, menus: Sequence[Menu], prefill_tokens: float) -> dict[str, KTable]:
        batches = cell_batches(view.batch_edges, view.hello.max_batch)
        contexts = cell_contexts(view.context_edges, view.mean_context_tokens)
        cells: dict[str, list[list[int]]] = {
            s.segment: [[0] * len(contexts) for _ in batches] for s in view.segments
        }
        for b, batch in enumerate(batches):
            fixed_s = [menu.fixed_s(batch) for menu in menus]
            for c, context in enumerate(contexts):
                held = _held(view, b, c, prefill=prefill_tokens > 0.0)
                row = view.cost.verify_row(batch * context, prefill_tokens)
                for menu, seconds in zip(menus, fixed_s, strict=True):
                    cell = Cell(menu, batch, prefill_tokens, row, seconds)
                    for segment, k in cell.choose(held, self.band, self.tie).items():
                        cells[segment][b][c] = k
        return {segment: table(rows) for segment, rows in cells.items()}

    def _fallback(self, view: View) -> tuple[int, ...]:
        """One K for everybody from the lower bounds: what may run unattended."""
        mixed = _mixture(view.segments)
        menu = Menu(view, [mixed], known_weight=float("inf"))
        row = []
        for batch in cell_batches(view.batch_edges, view.hello.max_batch):
            verify = view.cost.verify_row(batch * view.mean_context_tokens, 0.0)
            cell = Cell(menu, batch, 0.0, verify, menu.fixed_s(batch))
            row.append(cell.choose({}, 0.0, self.tie)[mixed.segment])
        return tuple(row)

    def _explore(self, view: View, menu: Menu) -> Explore | None:
        if max(view.hello.reachable_k) == 0:
            return None
        live = [s for s in view.segments if s.share >= self.live_share]
        unknown = any(s.weight < self.known_weight for s in live)
        epsilon = self.explore_unknown if unknown else self.explore
        return Explore(seed=view.seed, epsilon=epsilon, k_set=(self._probe(view, menu),))

    def _probe(self, view: View, menu: Menu) -> int:
        """The K to try: a long one tells about all shorter ones, but must be affordable when it is busy."""
        batch = cell_batches(view.batch_edges, view.hello.max_batch)[-1]
        row = view.cost.verify_row(batch * view.mean_context_tokens, 0.0)
        cell = Cell(menu, batch, 0.0, row, menu.fixed_s(batch))
        best = menu.candidate(cell.choose({}, 0.0, self.tie))

        def loss(k: int) -> float:
            probes = [menu.candidate({**best.lengths, segment: k}) for segment in best.lengths]
            return max(cell.seconds(p) / cell.seconds(best) - p.tokens / best.tokens for p in probes)

        losses = {k: loss(k) for k in view.hello.reachable_k if k > 0}
        affordable = [k for k, lost in losses.items() if lost <= self.probe_loss]
        return max(affordable) if affordable else min(losses, key=losses.__getitem__)


def _held(view: View, batch: int, context: int, *, prefill: bool) -> Lengths:
    """K of the previous plan in a cell, where that plan was made by this policy on the same edges."""
    plan = view.previous
    if plan is None or plan.policy != "goodput":
        return {}
    if (plan.batch_edges, plan.context_edges) != (view.batch_edges, view.context_edges):
        return {}
    tables = plan.prefill_proposal_length if prefill else plan.proposal_length
    held = {segment: rows[batch][context] for segment, rows in tables.items()}
    # An engine may come back with other reachable K.
    return held if set(held.values()) <= set(view.hello.reachable_k) else {}


def _mixture(segments: tuple[SegmentBelief, ...]) -> SegmentBelief:
    """All segments as one, weighted by share, at their lower bounds."""
    total = sum(s.share for s in segments)
    weights = [s.share / total if total > 0.0 else 1.0 / len(segments) for s in segments]

    def mean(pick: list[tuple[float, ...]]) -> tuple[float, ...]:
        columns = zip(*pick, strict=True)
        return tuple(sum(w * x for w, x in zip(weights, column, strict=True)) for column in columns)

    low = mean([s.acceptance_low for s in segments])
    return SegmentBelief(
        segment=UNKNOWN_SEGMENT,
        share=1.0,
        weight=0.0,
        coverage=sum(w * s.coverage for w, s in zip(weights, segments, strict=True)),
        acceptance=low,
        acceptance_low=low,
        drafted_share=mean([s.drafted_share for s in segments]),
    )
