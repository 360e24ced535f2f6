"""The simulated engine without its clock: queue, slots, packed forward, commit, drafts, report.

It follows our own engine: requests wait in arrival order and move into free slots; one packed
forward a step carries an anchor and the pending drafts of every decode request and, within a token
budget, chunks of prompts; a request's first token is committed by the step in which its prefill
ends, and is no step of that request. Drafts verified in step t + 1 were made under the K chosen in step t.
"""

from collections import deque
from collections.abc import Mapping

from msgspec import Struct

from steersman_policies.executor import Decision, Load
from steersman_policies.messages import Group, NotDrafted, RequestReport, StepReport, context_bucket
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.truths.step_work import VerifyWork
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.shape import Shape


class Live(Struct, gc=False):
    """A request in the engine. Mutable: it belongs to one `Batch`."""

    ordinal: int
    arm: int
    arrival: Arrival
    drafts: DraftTable | None
    """None: nothing is known about its drafts, and nobody may ask for one."""
    arrived_s: float
    admitted_s: float = 0.0
    prefilled_tokens: int = 0
    committed_tokens: int = 0
    commanded_k: int = 0
    """The K under which the pending drafts were made."""
    pending: int = 0
    """Draft tokens to verify in the next step."""
    why_none: NotDrafted | None = None
    acceptable: int = 0
    """How much of a long enough draft the target would accept there."""
    accepted_now: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: int = 0
    steps_drafted: int = 0
    deliveries: list[tuple[float, int]] = []
    """(moment, tokens) of everything committed."""

    @property
    def context_tokens(self) -> int:
        """Prompt and output so far."""
        return self.prefilled_tokens + self.committed_tokens

    @property
    def cached_tokens(self) -> int:
        """What the cache holds before a step: all but the newest token."""
        return self.context_tokens - 1

    @property
    def left_tokens(self) -> int:
        """Output tokens still to come."""
        return self.arrival.output_tokens - self.committed_tokens


class Forward(Struct, gc=False):
    """One composed step."""

    decode: list[Live]
    chunks: list[tuple[Live, int]]
    work: VerifyWork
    started_s: float


class Committed(Struct, frozen=True, gc=False):
    """What a step brought."""

    groups: tuple[Group, ...]
    tokens: int
    finished: list[Live]


class Batch:
    """Waiting requests and slots. Every method is called once a step, in the order of this file."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.waiting: deque[Live] = deque()
        self.slots: list[Live] = []
        self.steps = 0
        self._switched = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.slots and not self.waiting

    def compose(self, now_s: float) -> Forward:
        """Pack the forward; a request is admitted where a slot is free and prefill budget is left."""
        decode: list[Live] = []
        chunks: list[tuple[Live, int]] = []
        budget, drafts, context = self.shape.prefill_budget_tokens, 0, 0
        for live in self.slots:
            if live.committed_tokens:
                decode.append(live)
                drafts += live.pending
                context += live.cached_tokens
            else:
                budget -= self._chunk(live, budget, chunks)
        while budget > 0 and self.waiting and len(self.slots) < self.shape.max_batch:
            live = self.waiting.popleft()
            live.admitted_s = now_s
            self.slots.append(live)
            budget -= self._chunk(live, budget, chunks)
        prefill = self.shape.prefill_budget_tokens - budget
        work = VerifyWork(
            decode_requests=len(decode),
            draft_tokens=drafts,
            context_tokens=context,
            prefill_tokens=prefill,
            chunks=tuple((tokens, live.prefilled_tokens) for live, tokens in chunks),
        )
        return Forward(decode, chunks, work, now_s)

    def _chunk(self, live: Live, budget: int, chunks: list[tuple[Live, int]]) -> int:
        chunk = min(live.arrival.prompt_tokens - live.prefilled_tokens, budget)
        if chunk:
            chunks.append((live, chunk))
        return chunk

    def commit(self, forward: Forward, now_s: float) -> Committed:
        """Accept drafts, hand out tokens, let finished requests go."""
        tokens = 0
        for live in forward.decode:
            live.steps += 1
            live.accepted_now = min(live.pending, live.acceptable) if live.pending else 0
            live.drafted += live.pending
            live.accepted += live.accepted_now
            live.reached += min(live.pending, live.accepted_now + 1)
            live.steps_drafted += live.pending > 0
            tokens += _deliver(live, min(live.accepted_now + 1, live.left_tokens), now_s)
        groups = _groups(forward.decode)
        for live, chunk in forward.chunks:
            live.prefilled_tokens += chunk
            if live.prefilled_tokens == live.arrival.prompt_tokens:
                tokens += _deliver(live, 1, now_s)
        finished = [live for live in self.slots if not live.left_tokens]
        if finished:
            self.slots = [live for live in self.slots if live.left_tokens]
        return Committed(groups, tokens, finished)

    def load(self, forward: Forward) -> Load:
        """What the executor sees: the live requests after the commit, the prefill of this forward."""
        requests: dict[str, int] = {}
        context = count = 0
        for live in self.slots:
            if live.committed_tokens:
                segment = live.arrival.segment
                requests[segment] = requests.get(segment, 0) + 1
                context += live.context_tokens
                count += 1
        mean = context / count if count else 0.0
        return Load(self.steps, requests, mean, forward.work.prefill_tokens, len(self.waiting))

    def draft(self, proposal_length: Mapping[str, int]) -> tuple[int, int, int]:
        """Drafts for the next step; the depth, the requests asked, and their context."""
        asked = context = 0
        for live in self.slots:
            live.pending = 0
            live.why_none = None
            if not live.committed_tokens:
                continue
            k = live.commanded_k = proposal_length[live.arrival.segment]
            if k == 0:
                continue
            # The last token of a request is the bonus token of its last step, if its length is known.
            room = k if live.arrival.stops else min(k, live.left_tokens - 1)
            if room == 0:
                live.why_none = "length_limit"
                continue
            asked += 1
            context += live.context_tokens
            live.pending, live.acceptable = _offer(live, room)
            if not live.pending:
                live.why_none = "no_match"
        depth = max(proposal_length.values()) if asked else 0
        return depth, asked, context

    def report(
        self,
        forward: Forward,
        committed: Committed,
        decision: Decision,
        drafting: tuple[int, int, int],
        seconds: tuple[float, float, float],
    ) -> StepReport:
        """The record of this step, which is over now. `seconds`: draft, verify, other."""
        depth, asked, _ = drafting
        report = StepReport(
            step=self.steps,
            started_s=forward.started_s,
            draft_s=seconds[0],
            verify_s=seconds[1],
            other_s=seconds[2],
            decode_requests=len(forward.decode),
            prefill_tokens=forward.work.prefill_tokens,
            target_tokens=forward.work.target_tokens,
            context_tokens=forward.work.context_tokens,
            drafting_depth=depth,
            requests_drafting=asked,
            waiting=len(self.waiting),
            kv_used_fraction=self._kv_used(),
            committed_tokens=committed.tokens,
            plan_id=decision.plan_id,
            groups=committed.groups,
            first_after_switch=self._switched,
            explored=decision.explored,
            probability=decision.probability,
            reason=decision.reason,
            commanded=decision.proposal_length,
            would_be=decision.would_be,
        )
        self.steps += 1
        self._switched = decision.switched
        return report

    def _kv_used(self) -> float:
        if not self.shape.kv_tokens:
            return 0.0
        return min(1.0, sum(live.context_tokens for live in self.slots) / self.shape.kv_tokens)


def finished_report(live: Live) -> RequestReport:
    """The record of a finished request."""
    first_s, last_s = live.deliveries[0][0], live.deliveries[-1][0]
    later = live.committed_tokens - 1
    return RequestReport(
        request=live.ordinal,
        segment=live.arrival.segment,
        arrived_s=live.arrived_s,
        prompt_tokens=live.arrival.prompt_tokens,
        output_tokens=live.committed_tokens,
        queue_s=live.admitted_s - live.arrived_s,
        ttft_s=first_s - live.arrived_s,
        tpot_s=(last_s - first_s) / later if later else 0.0,
        e2e_s=last_s - live.arrived_s,
        steps=live.steps,
        drafted=live.drafted,
        accepted=live.accepted,
        finish_reason="stop" if live.arrival.stops else "length",
        reached=live.reached,
        steps_drafted=live.steps_drafted,
        statistics=live.arrival.statistics,
    )


def _offer(live: Live, k: int) -> tuple[int, int]:
    if live.drafts is None:
        raise ValueError(
            "trace: no drafts in the fitted windows, so only K = 0 can be simulated; record with "
            "`serve --steer`, or an engine that is launched with drafts"
        )
    at = live.committed_tokens
    return min(k, int(live.drafts.offered[at])), int(live.drafts.accepted[at])


def _deliver(live: Live, tokens: int, now_s: float) -> int:
    live.committed_tokens += tokens
    live.deliveries.append((now_s, tokens))
    return tokens


def _groups(decode: list[Live]) -> tuple[Group, ...]:
    rows: dict[tuple[str, int, int], list[Live]] = {}
    for live in decode:
        # Delivered already, so the tokens of this step are taken off again.
        before = live.cached_tokens - live.deliveries[-1][1]
        key = (live.arrival.segment, context_bucket(before), live.commanded_k)
        rows.setdefault(key, []).append(live)
    return tuple(_group(*key, lives) for key, lives in rows.items())


def _group(segment: str, bucket: int, k: int, lives: list[Live]) -> Group:
    outcomes: dict[tuple[int, int], int] = {}
    not_drafted: dict[NotDrafted, int] = {}
    drafted = 0
    for live in lives:
        if live.pending:
            drafted += 1
            key = (live.pending, live.accepted_now)
            outcomes[key] = outcomes.get(key, 0) + 1
        elif live.why_none:
            not_drafted[live.why_none] = not_drafted.get(live.why_none, 0) + 1
    rows = tuple((d, a, n) for (d, a), n in outcomes.items())
    return Group(segment, bucket, len(lives), k, drafted, rows, 0, not_drafted)
