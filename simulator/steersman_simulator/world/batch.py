"""The simulated engine without its clock: queue, rows, packed forward, commit, drafts, report.

Requests wait in order of arrival. One forward a step carries an anchor and the pending drafts of every
decode request and, within the budgets, chunks of prompts; a request's first token is committed by the
step in which its prefill ends, and is no step of that request. Drafts verified in step t + 1 were made
under the K chosen in step t. Where KV blocks run short, the request that was admitted last goes back to
the front of the queue, and what it has so far is read again as a prompt (preemption by recompute).
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping

import numpy as np

from steersman_policies.executor import Decision, Load
from steersman_policies.messages import Group, StepReport
from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS, DraftTable
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world import kernels
from steersman_simulator.world.admission import Admission
from steersman_simulator.world.blocks import BlockPool
from steersman_simulator.world.gaps import add_gap
from steersman_simulator.world.groups import Groups
from steersman_simulator.world.requests import Finished, Live, counts_of, finished
from steersman_simulator.world.rows import Rows
from steersman_simulator.world.segments import Segments
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.step import Coming, Committed, Forward, Totals

_STATES = {"stateless": kernels.STATELESS, "warm": kernels.WARM, "cold": kernels.COLD}


class Batch:
    """Waiting and running requests. Every method is called once a step, in the order of this file."""

    def __init__(
        self,
        shape: Shape,
        drafts: Callable[[Live, float], DraftTable | None],
        *,
        k_max: int = MAX_DRAFT_TOKENS,
        keeps_deliveries: bool = True,
        makes_reports: bool = True,
    ) -> None:
        self.shape = shape
        self.rows = Rows(shape.max_batch)
        self.decoding: list[Live] = []
        """By row."""
        self.admission = Admission(shape, k_max)
        self.totals = Totals()
        self.segments = Segments()
        self.gaps = np.zeros((2, kernels.GAP_BINS), dtype=np.int64)
        """Deliveries, and tokens, by bin of the time since the delivery before."""
        self.makes_reports = makes_reports
        """Whether `report` may be called."""
        self._drafts = drafts
        self._keeps_deliveries = keeps_deliveries
        self._is_async = shape.scheduling == "async"
        self._context = 0
        self._next = Coming()
        self._switched = False
        self._groups = Groups(shape.max_batch)
        self._ends = np.zeros((2, shape.max_batch), dtype=np.int64)
        self._short = False
        """Whether blocks are missing for the next forward."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.decoding or self.admission.prefilling or self.admission.waiting)

    @property
    def requests(self) -> list[Live]:
        """Every request that is here and not done."""
        done = self.rows.values[kernels.DONE, : len(self.decoding)].tolist()
        live = [one for one, gone in zip(self.decoding, done, strict=True) if not gone]
        return [*live, *self.admission.prefilling, *self.admission.waiting]

    @property
    def load_requests(self) -> int:
        """How many are here, waiting ones included."""
        return len(self.decoding) + len(self.admission.prefilling) + len(self.admission.waiting)

    def check(self) -> None:
        """That no slot and no block leaked; an AssertionError says which did."""
        rows = self.rows
        assert len(self.decoding) == rows.count == sum(self.segments.live.values()), "a row leaked"
        assert rows.count + len(self.admission.prefilling) <= self.shape.max_batch, "a slot too many"
        blocks = rows.values[kernels.BLOCKS, : rows.count].tolist()
        self.admission.check(list(zip(self.decoding, blocks, strict=True)))

    def refusal(self, arrival: Arrival) -> str:
        """Why this request can never be served; empty where it can."""
        return self.admission.refusal(arrival)

    def arrive(self, live: Live) -> None:
        """Put a request that can be served into the queue."""
        self.admission.waiting.append(live)

    def redraft(self, now_s: float) -> None:
        """Ask for the drafts of all decode requests again."""
        for row, live in enumerate(self.decoding):
            if self.rows.values[kernels.TABLE, row] >= 0:
                self.rows.replace_table(row, self._drafts(live, now_s))

    def compose(self, now_s: float) -> Forward:
        """Pack the forward; a request is admitted where a slot, budget and blocks are left."""
        preempted = self._make_room() if self._short else False
        coming = self._next
        tokens = coming.requests + coming.draft_tokens + coming.filling
        chunks: list[tuple[Live, int]] = []
        slots = 0 if preempted else self.shape.max_batch - len(self.decoding)
        if self.admission.prefilling or (slots and self.admission.waiting):
            budget = self.shape.prefill_budget_tokens or self.shape.token_budget
            if self.shape.token_budget:
                budget = min(budget, self.shape.token_budget - tokens)
            chunks, gave_way = self.admission.chunks(now_s, budget, slots)
            if gave_way:
                preempted = True
        prefill = sum([chunk for _, chunk in chunks])
        tokens += prefill
        work = VerifyWork(
            coming.requests,
            coming.draft_tokens,
            coming.cached_tokens,
            prefill,
            tuple([(chunk, live.prefilled_tokens) for live, chunk in chunks]),
            coming.filling + (0 if prefill else self._padding(tokens)),
            coming.ragged,
            self._switched,
        )
        assert tokens, "a step without work"
        return Forward(chunks, work, tokens, now_s, preempted)

    def _padding(self, tokens: int) -> int:
        sizes = self.shape.graph_sizes
        at = bisect_left(sizes, tokens)
        return sizes[at] - tokens if at < len(sizes) else 0

    def _make_room(self) -> bool:
        """Blocks for the decode requests, first admitted first; whether one was preempted for that."""
        pool, rows, preempted, row = self.admission.pool, self.rows, False, 0
        assert pool is not None
        while row < rows.count:
            tokens = int(rows.values[kernels.CONTEXT, row]) + self.admission.reserved_tokens
            more = max(0, pool.blocks(tokens) - int(rows.values[kernels.BLOCKS, row]))
            if more and not rows.values[kernels.SKIPPED, row]:
                while row < rows.count and more > pool.available:
                    self._preempt()
                    preempted = True
                if row == rows.count:
                    break
                pool.take(more)
                rows.values[kernels.BLOCKS, row] += more
            row += 1
        self._short = False
        if preempted:
            self._next = self._measured()
        return preempted

    def _preempt(self) -> None:
        """The request that was admitted last goes back to the front of the queue."""
        if self.admission.prefilling:
            live = self.admission.prefilling.pop()
            self.admission.requeue(live, live.blocks)
            return
        live, row = self.decoding.pop(), self.rows.count - 1
        values = self.rows.values[:, row].tolist()
        live.delivered_s = float(self.rows.delivered_s[row])
        self.rows.count -= 1
        self.segments.count(live.arrival.segment, -1)
        if values[kernels.DONE]:
            self.admission.release(live, values[kernels.BLOCKS])
            return
        live.committed_tokens = values[kernels.COMMITTED]
        live.counts = counts_of(values)
        self.admission.requeue(live, values[kernels.BLOCKS])

    def _measured(self) -> Coming:
        """What the rows bring to the next forward, after some of them went."""
        values = self.rows.values[:, : self.rows.count]
        values = values[:, values[kernels.SKIPPED] == 0]
        drafts = values[kernels.PENDING]
        ragged = int((drafts < drafts.max(initial=0)).sum())
        filling = int(values[kernels.FILLING].sum())
        cached = int(values[kernels.CONTEXT].sum()) - values.shape[1]
        return Coming(values.shape[1], int(drafts.sum()), cached, ragged, filling)

    def commit(self, forward: Forward, now_s: float) -> Committed:
        """Accept drafts, hand out tokens, let finished requests go."""
        rows, ended, groups = self.rows, list[Finished](), tuple[Group, ...]()
        tokens = self._context = 0
        if rows.count:
            done, leave, tokens, self._context = kernels.commit(
                rows.values,
                rows.count,
                now_s,
                self._is_async,
                rows.delivered_s,
                self.gaps,
                self.segments.outcomes,
                self._ends,
            )
            if self.makes_reports:
                groups = self._groups.of(rows.values, rows.count, self.segments.names)
            if self._keeps_deliveries:
                new_tokens = rows.values[kernels.NEW, : rows.count].tolist()
                for live, new in zip(self.decoding, new_tokens, strict=True):
                    if new:
                        live.deliveries.append((now_s, new))
            if done:
                ended = [self._end(row, now_s) for row in self._ends[0, :done].tolist()]
            if leave:
                self._leave(self._ends[1, :leave])
        for live, chunk in forward.chunks:
            if self.admission.read(live, chunk):
                tokens += 1
                self._begin(live, now_s, ended)
        return Committed(tokens, ended, groups)

    def _end(self, row: int, now_s: float) -> Finished:
        values = self.rows.values[:, row].tolist()
        return finished(self.decoding[row], values[kernels.COMMITTED], counts_of(values), now_s)

    def _leave(self, rows: kernels.Ints) -> None:
        for row in reversed(rows.tolist()):
            live = self.decoding.pop(row)
            self.segments.count(live.arrival.segment, -1)
            self.admission.release(live, int(self.rows.values[kernels.BLOCKS, row]))
        self.rows.remove(rows)

    def _begin(self, live: Live, now_s: float, ended: list[Finished]) -> None:
        """The prompt is read: the first token, or the next one of a request that was preempted."""
        arrival = live.arrival
        live.committed_tokens += 1
        if self._keeps_deliveries:
            live.deliveries.append((now_s, 1))
        if live.first_s < 0.0:
            live.first_s = now_s
        else:
            add_gap(self.gaps, now_s - live.delivered_s)
        done = live.committed_tokens == arrival.output_tokens
        if done:
            ended.append(finished(live, live.committed_tokens, live.counts, now_s))
            if not self._is_async:
                self.admission.release(live, live.blocks)
                return
        segment = self.segments.number(arrival.segment)
        context = arrival.prompt_tokens + live.committed_tokens
        # A drafter that was off does not know the prompt either.
        missed = context if self.shape.off == "cold" and not self.segments.k[segment] else 0
        steps, drafted, accepted, reached, steps_drafted = live.counts
        values = {
            kernels.SEGMENT: segment,
            kernels.CONTEXT: context,
            kernels.COMMITTED: live.committed_tokens,
            kernels.OUTPUT: arrival.output_tokens,
            kernels.STOPS: arrival.stops,
            kernels.STEPS: steps,
            kernels.DRAFTED: drafted,
            kernels.ACCEPTED: accepted,
            kernels.REACHED: reached,
            kernels.STEPS_DRAFTED: steps_drafted,
            kernels.BLOCKS: live.blocks,
            kernels.MISSED: missed,
            kernels.NEW: 1,
            kernels.DONE: done,
        }
        self.rows.add(values, self._drafts(live, now_s), now_s)
        self.decoding.append(live)
        self.segments.count(arrival.segment, 1)
        if not done:
            self._context += context

    def load(self, forward: Forward) -> Load:
        """What the executor sees: the live requests after the commit, the prefill of this forward."""
        mean = self._context / len(self.decoding) if self.decoding else 0.0
        waiting = len(self.admission.waiting)
        return Load(self.totals.steps, self.segments.live.copy(), mean, forward.work.prefill_tokens, waiting)

    def early_load(self, forward: Forward, mean_context_tokens: float) -> Load:
        """What a scheduler sees that plans before the forward: who will decode, not what they commit."""
        requests = self.segments.live.copy()
        for live, chunk in forward.chunks:
            if live.prefilled_tokens + chunk == live.prefill_tokens:
                segment = live.arrival.segment
                requests[segment] = requests.get(segment, 0) + 1
        waiting = len(self.admission.waiting)
        return Load(self.totals.steps, requests, mean_context_tokens, forward.work.prefill_tokens, waiting)

    def draft(self, proposal_length: Mapping[str, int], forward: Forward) -> DraftWork:
        """Drafts for the next step."""
        if not self.rows.count:
            self._next = Coming()
            return DraftWork(0, 0, 0)
        self.segments.command(proposal_length)
        rows = self.rows
        asked, context, stale, missing, *coming = kernels.draft(
            rows.values,
            rows.count,
            self.segments.k,
            rows.offered,
            rows.accepted,
            self.shape.token_budget,
            _STATES[self.shape.off],
            self._is_async,
        )
        if missing:
            raise ValueError(
                "trace: no drafts in the fitted windows, so only K = 0 can be simulated; record with "
                "`serve --steer`, or an engine that is launched with drafts"
            )
        self._next = Coming(*coming)
        if self.admission.pool is not None:
            self._reserve(self.admission.pool)
        if not asked and self.shape.off == "warm":
            stale += forward.work.prefill_tokens
        return DraftWork(max(proposal_length.values()) if asked else 0, asked, context, stale)

    def _reserve(self, pool: BlockPool) -> None:
        available, reserved = pool.available, self.admission.reserved_tokens
        wanted = kernels.reserve(self.rows.values, self.rows.count, pool.block_tokens, reserved, available)
        self._short = wanted > available
        if not self._short:
            pool.take(wanted)

    def report(
        self,
        forward: Forward,
        committed: Committed,
        decision: Decision,
        drafting: DraftWork,
        seconds: tuple[float, float, float],
    ) -> StepReport:
        """The record of this step, which is over now; once a step. `seconds`: draft, verify, other."""
        work = forward.work
        return StepReport(
            self.totals.steps,
            forward.started_s,
            *seconds,
            work.decode_requests,
            work.prefill_tokens,
            forward.target_tokens,
            work.context_tokens,
            drafting.depth,
            drafting.requests,
            len(self.admission.waiting),
            self._kv_used(),
            committed.tokens,
            decision.plan_id,
            committed.groups,
            preemption=forward.preempted,
            first_after_switch=self._switched,
            explored=decision.explored,
            probability=decision.probability,
            reason=decision.reason,
            commanded=decision.proposal_length,
            would_be=decision.would_be,
        )

    def close(
        self, forward: Forward, committed: Committed, switched: bool, seconds: tuple[float, float, float]
    ) -> None:
        """The step is over."""
        totals, work = self.totals, forward.work
        draft_s, verify_s, other_s = seconds
        step_s = draft_s + verify_s + other_s
        totals.steps += 1
        totals.committed_tokens += committed.tokens
        totals.prefill_tokens += work.prefill_tokens
        totals.target_tokens += forward.target_tokens
        totals.padding_tokens += work.padding_tokens
        totals.busy_s += step_s
        totals.verify_s += verify_s
        totals.draft_s += draft_s
        totals.decode_request_s += work.decode_requests * step_s
        totals.slot_s += (work.decode_requests + len(forward.chunks)) * step_s
        self._switched = switched

    def _kv_used(self) -> float:
        if self.admission.pool is not None:
            return self.admission.pool.used_fraction
        if not self.shape.kv_tokens:
            return 0.0
        prompts = sum(live.prefilled_tokens + live.committed_tokens for live in self.admission.prefilling)
        return min(1.0, (self._context + prompts) / self.shape.kv_tokens)
