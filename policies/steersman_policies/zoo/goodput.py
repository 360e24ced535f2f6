"""Maximise committed tokens per busy second, for each segment, in every cell of the plan.

In a cell of `b` live requests, of which the share `w_s` belongs to segment s, raising K of s from
j - 1 to j adds ``b * w_s * offered_sj`` tokens to the target's forward and commits
``b * w_s * survival_sj`` more tokens on average. Sorted by survival per offered token, the prefixes
of that list are the candidates (survival falls with j, so every prefix is a valid set of K). Step
costs are stepped and not convex, so *all* prefixes are scored, for every drafting depth, and the
global maximum wins (papers: SmartSpec, arXiv 2406.14066; DSpark, arXiv 2607.05147).
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from steersman_policies.plan import Dwell, Explore, KTable, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import cell_batches, cell_contexts, make_plan, table
from steersman_policies.units import UNKNOWN_SEGMENT, Count, Fraction, Seconds
from steersman_policies.view import Row, SegmentBelief, StepCost, View, interpolate

Lengths = dict[str, int]
"""K by segment."""


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters; the defaults suit steps of 7 to 500 ms."""

    version: ClassVar[str] = "1"
    band: Fraction = 0.03
    """A K in force stays until another promises more than this fraction above it."""
    tie: Fraction = 0.005
    """Candidates this close to the best count as equal; the one with fewest draft tokens wins."""
    dwell_steps: Count = 20
    dwell_s: Seconds = 0.25
    explore: Fraction = 0.02
    """Share of steps that try the longest proposal, once every live segment is known."""
    explore_unknown: Fraction = 0.2
    """The same while a live segment has less than `known_weight` drafts behind its belief."""
    known_weight: Annotated[float, Meta(ge=0.0, le=1e9)] = 40.0
    live_share: Fraction = 0.02
    """A segment with a smaller share of the load is planned as if it were alone."""

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """Tables for steps without and with prefill, a cautious fallback, and a little exploration."""
        plain = self._tables(view, prefill_tokens=0.0)
        prefill = self._tables(view, prefill_tokens=view.prefill_tokens) if view.prefill_tokens else {}
        plan = make_plan(
            view,
            policy="goodput",
            version=self.version,
            proposal_length=plain,
            prefill_proposal_length=prefill,
            fallback=self._fallback(view),
            dwell=Dwell(steps=self.dwell_steps, seconds=self.dwell_s),
            explore=self._explore(view),
        )
        return plan, memory

    def _tables(self, view: View, prefill_tokens: float) -> dict[str, KTable]:
        batches = cell_batches(view.batch_edges, view.hello.max_batch)
        contexts = cell_contexts(view.context_edges, view.mean_context_tokens)
        cells: dict[str, list[list[int]]] = {
            segment.segment: [[0] * len(contexts) for _ in batches] for segment in view.segments
        }
        for b, batch in enumerate(batches):
            for c, context in enumerate(contexts):
                held = _held(view, b, c, prefill=prefill_tokens > 0.0)
                for segment, k in self._cell(view, batch, context, prefill_tokens, held).items():
                    cells[segment][b][c] = k
        return {segment: table(rows) for segment, rows in cells.items()}

    def _cell(
        self, view: View, batch: int, context_tokens: float, prefill_tokens: float, held: Lengths
    ) -> Lengths:
        live = [s for s in view.segments if s.share >= self.live_share] or list(view.segments)
        groups = [live, *([s] for s in view.segments if s not in live)]
        lengths: Lengths = {}
        for group in groups:
            cell = _Cell(view, group, batch, context_tokens, prefill_tokens, self.known_weight)
            lengths |= cell.choose(held, self.band, self.tie)
        return lengths

    def _fallback(self, view: View) -> tuple[int, ...]:
        """One K for everybody from the lower bounds: what may run unattended."""
        mixed = _mixture(view.segments)
        row = []
        for batch in cell_batches(view.batch_edges, view.hello.max_batch):
            cell = _Cell(view, [mixed], batch, view.mean_context_tokens, 0.0, known_weight=float("inf"))
            row.append(cell.choose({}, 0.0, self.tie)[mixed.segment])
        return tuple(row)

    def _explore(self, view: View) -> Explore | None:
        longest = max(view.hello.reachable_k)
        if longest == 0:
            return None
        live = [s for s in view.segments if s.share >= self.live_share]
        unknown = any(s.weight < self.known_weight for s in live)
        epsilon = self.explore_unknown if unknown else self.explore
        return Explore(seed=view.seed, epsilon=epsilon, k_set=(longest,))


class _Cell:
    """The candidates of one cell of the plan and their goodput."""

    def __init__(
        self,
        view: View,
        segments: list[SegmentBelief],
        batch: int,
        context_tokens: float,
        prefill_tokens: float,
        known_weight: float,
    ) -> None:
        self.batch = batch
        self.prefill_tokens = prefill_tokens
        self.cost: StepCost = view.cost
        self.grid = view.cost.tokens_grid
        self.row: Row = view.cost.verify_row(batch * context_tokens, prefill_tokens)
        self.other_s = view.cost.other_at(batch)
        self.reachable = view.hello.reachable_k
        self.per_request = view.hello.per_request_k
        total = sum(s.share for s in segments)
        self.requests = {
            s.segment: batch * (s.share / total if total > 0.0 else 1.0 / len(segments))
            for s in segments
        }
        # A segment that is hardly known is judged by its lower bound: speculation has to earn it.
        self.survival = {s.segment: s.survival(low=s.weight < known_weight) for s in segments}
        self.offered = {s.segment: s.offered() for s in segments}

    def goodput(self, lengths: Lengths) -> float:
        """Committed tokens per second."""
        tokens, drafted, asked, depth = float(self.batch), 0.0, 0.0, 0
        for segment, k in lengths.items():
            requests = self.requests[segment]
            tokens += requests * sum(self.survival[segment][:k])
            drafted += requests * sum(self.offered[segment][:k])
            asked += requests if k else 0.0
            depth = max(depth, k)
        return tokens / self.seconds(drafted, asked, depth)

    def seconds(self, drafted: float, asked: float, depth: int) -> float:
        """Duration of a step that verifies `drafted` tokens and asks `asked` requests for more."""
        verify_s = interpolate(self.grid, self.row, self.batch + self.prefill_tokens + drafted)
        draft_s = self.cost.draft_at(depth, asked) if depth else 0.0
        return max(verify_s + draft_s + self.other_s, 1e-9)

    def choose(self, held: Lengths, band: float, tie: float) -> Lengths:
        """The best K by segment; the `held` one while nothing beats it by more than `band`."""
        candidates = list(self._prefixes() if self.per_request else self._uniform())
        scores = [self.goodput(lengths) for lengths in candidates]
        enough = max(scores) * (1.0 - tie)
        # Candidates come with the fewest draft tokens first.
        best = next(i for i, score in enumerate(scores) if score >= enough)
        if held.keys() >= self.requests.keys():
            mine = {segment: held[segment] for segment in self.requests}
            if self.goodput(mine) * (1.0 + band) >= scores[best]:
                return mine
        return candidates[best]

    def _uniform(self) -> list[Lengths]:
        return [dict.fromkeys(self.requests, k) for k in self.reachable]

    def _prefixes(self) -> list[Lengths]:
        """K by segment for every prefix of the increments sorted by what a draft token brings."""
        increments = []
        floor = self.reachable[0]
        for segment in self.requests:
            for below, k in zip(self.reachable, self.reachable[1:], strict=False):
                gain = sum(self.survival[segment][below:k])
                cost = sum(self.offered[segment][below:k])
                increments.append((-gain / cost if cost > 0.0 else 0.0, k, segment))
        increments.sort()
        lengths = dict.fromkeys(self.requests, floor)
        out = [dict(lengths)]
        for _, k, segment in increments:
            # A rise that sorts before the rise below it is taken together with that one.
            lengths[segment] = max(lengths[segment], k)
            out.append(dict(lengths))
        return out


def _held(view: View, batch: int, context: int, *, prefill: bool) -> Lengths:
    """K of the previous plan in a cell, where that plan was made by this policy on the same edges."""
    plan = view.previous
    if plan is None or plan.policy != "goodput":
        return {}
    if (plan.batch_edges, plan.context_edges) != (view.batch_edges, view.context_edges):
        return {}
    tables = plan.prefill_proposal_length if prefill else plan.proposal_length
    return {segment: rows[batch][context] for segment, rows in tables.items()}


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
