"""Maximise committed tokens per busy second, for each segment, in every cell of the plan.

How one cell is decided is in `steersman_policies.candidates` and `allocation`; here is what surrounds it:
which segments share a batch, which cells are decided now, what is held, what runs unattended, and how much is
tried.

The cells of the present load and those next to it are decided in every plan. The others, the fallback and
the probe take turns; and all are decided at once where nothing can be taken over.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from steersman_policies.allocation import Batch, Outcome
from steersman_policies.candidates import Lengths, Menu
from steersman_policies.plan import Dwell, Explore, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import Tables, cell_batches, make_plan
from steersman_policies.units import UNKNOWN_SEGMENT, Count, Fraction, Seconds
from steersman_policies.view import Row, SegmentBelief, StepCost, View, interpolate

LEAST_BAND = 0.003

MOST_CHARGED = 0.1
"""Of a dwell, for one switch: a few that took long must not end all switching."""


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters; the defaults suit steps of 7 to 500 ms."""

    version: ClassVar[str] = "2"
    band: Fraction = 0.03
    """A K in force stays until another promises more than this fraction above it. Where the seconds of a step
    are known better than that, so much is enough, down to `LEAST_BAND`."""
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
    turns: Annotated[int, Meta(ge=1, le=1_000_000)] = 2
    """How many of those that take turns are decided in a plan."""

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """Tables for steps without and with prefill, a cautious fallback, and a little exploration."""
        tables = Tables(view, "goodput")
        old, cells = tables.old, len(tables.places)
        fallback, probe, number = cells, cells + 1, cells + 2
        turns = range(number)
        if old is not None and _goes_on(view, old, memory):
            turns = range(memory["cursor"], memory["cursor"] + self.turns)
        due = {turn % number for turn in turns}
        here, elsewhere = due.union(tables.near()).difference((fallback, probe)), due - {fallback, probe}
        live, *others = self._groups(view)
        menu = Menu(view, live, self.known_weight)
        self._decide(view, tables, menu, here)
        for segments in others if elsewhere else ():
            self._decide(view, tables, Menu(view, segments, self.known_weight), elsewhere)
        kept = None if fallback in due or old is None else old.fallback
        tried = None if probe in due or old is None else old.explore
        plan = make_plan(
            view,
            policy="goodput",
            version=self.version,
            proposal_length=tables.frozen(prefill=False),
            prefill_proposal_length=tables.frozen(prefill=True),
            fallback=kept or self._fallback(view, tables),
            dwell=Dwell(self.dwell_steps, self.dwell_s, self.dwell_lower_steps),
            explore=self._explore(view, menu, tried),
        )
        return plan, {"cursor": turns.stop % number, "reachable_k": list(view.hello.reachable_k)}

    def _groups(self, view: View) -> list[list[SegmentBelief]]:
        """Segments that are decided together: those that share the batch; the others one by one."""
        live = [s for s in view.segments if s.share >= self.live_share]
        if not live or not view.hello.per_request_k:
            return [list(view.segments)]
        return [live, *([s] for s in view.segments if s.share < self.live_share)]

    def _decide(self, view: View, tables: Tables, menu: Menu, numbers: Iterable[int]) -> None:
        """Put the best K of the segments of a menu into some cells."""
        batches: dict[tuple[bool, int], Batch] = {}
        for number in sorted(numbers):
            place = tables.places[number]
            key, size = place[:2], tables.batches[place.batch]
            prefill_tokens = view.prefill_tokens if place.prefill else 0.0
            batch = batches.get(key)
            if batch is None:
                batch = batches[key] = Batch(menu, size, prefill_tokens)
            row = view.cost.verify_row(size * tables.contexts[place.context], prefill_tokens)
            held = tables.held(menu.names, place)
            more_than = self._enough(batch.outcome(held, row), view.cost) if held else 0.0
            lengths = batch.best(row, self.tie, more_than)
            if lengths:
                tables.put(menu.names, place, lengths)

    def _enough(self, held: Outcome, cost: StepCost) -> float:
        """Tokens per second and request that another K has to promise before it replaces the held one."""
        band = self.band
        if cost.half_interval:
            half = interpolate(cost.tokens_grid, cost.half_interval, held.target_tokens)
            band = min(band, max(half, LEAST_BAND))
        dwell_s = max(self.dwell_steps * held.seconds, self.dwell_s)
        charged = min(cost.first_after_switch_s / dwell_s, MOST_CHARGED) if dwell_s > 0.0 else 0.0
        return held.tokens / held.seconds * max(1.0 + band, 1.0 / (1.0 - charged))

    def _fallback(self, view: View, tables: Tables) -> tuple[int, ...]:
        """One K for everybody from the lower bounds: what may run unattended."""
        menu = Menu(view, [_mixture(view.segments)], known_weight=float("inf"))
        return tuple(self._freely(menu, batch, view)[1][0] for batch in tables.batches)

    def _freely(self, menu: Menu, size: int, view: View) -> tuple[Batch, Lengths, Row]:
        """A batch in the present mean context, and the best K there, whatever is held."""
        batch = Batch(menu, size, 0.0)
        row = view.cost.verify_row(size * view.mean_context_tokens, 0.0)
        return batch, batch.best(row, self.tie, 0.0), row

    def _explore(self, view: View, menu: Menu, old: Explore | None) -> Explore | None:
        """How much is tried; what is tried is taken over from `old`."""
        if max(view.hello.reachable_k) == 0:
            return None
        live = [s for s in view.segments if s.share >= self.live_share]
        unknown = any(s.weight < self.known_weight for s in live)
        epsilon = self.explore_unknown if unknown else self.explore
        k_set = (self._probe(view, menu),) if old is None else old.k_set
        return Explore(seed=view.seed, epsilon=epsilon, k_set=k_set)

    def _probe(self, view: View, menu: Menu) -> int:
        """The K to try: a long one tells about all shorter ones, but must be affordable when it is busy."""
        size = cell_batches(view.batch_edges, view.hello.max_batch)[-1]
        batch, best, row = self._freely(menu, size, view)
        usual = batch.outcome(best, row)

        def loss(k: int) -> float:
            probes = [batch.outcome((*best[:s], k, *best[s + 1 :]), row) for s in range(len(best))]
            return max(probe.seconds / usual.seconds - probe.tokens / usual.tokens for probe in probes)

        losses: dict[int, float] = {}
        for k in reversed([k for k in view.hello.reachable_k if k > 0]):
            losses[k] = loss(k)
            if losses[k] <= self.probe_loss:
                return k
        return min(losses, key=losses.__getitem__)


def _goes_on(view: View, old: Plan, memory: Memory) -> bool:
    """Whether most of the previous plan can be taken over."""
    return (
        not view.afresh
        and memory.get("reachable_k") == list(view.hello.reachable_k)
        and old.mode == view.mode
        and old.proposal_length.keys() == {s.segment for s in view.segments}
        and bool(old.prefill_proposal_length) == (view.prefill_tokens > 0.0)
    )


def _mixture(segments: tuple[SegmentBelief, ...]) -> SegmentBelief:
    """All segments as one, weighted by share, at their lower bounds."""
    total = sum(s.share for s in segments)
    weights = [s.share / total if total > 0.0 else 1.0 / len(segments) for s in segments]

    def mean(pick: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
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
