"""What the engine's thread hands over, and what the link's thread makes of it.

vLLM describes a step in objects that it makes afresh every time, so a reference is a snapshot. The
engine's thread adds only what will have changed when the other thread looks: lengths and stamps.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from steersman_engine.rows import StepRows
from steersman_policies.executor import Decision
from steersman_policies.messages import RequestReport
from steersman_policies.prompt_statistics import PromptStatistics

WARM_UP_STEPS = 4
"""vLLM compiles and allocates in its first steps."""


class Admitted(Struct, frozen=True, gc=False):
    """A request has come."""

    request_id: str
    segment: str
    arrived_s: float
    prompt_tokens: int
    statistics: PromptStatistics


class Proposed(Struct, frozen=True, gc=False):
    """The drafts that came back from the worker, some of them longer than their request's K."""

    request_ids: Sequence[str]
    drafts: Sequence[Sequence[int]]


class Step(Struct, gc=False):
    """A step from its scheduling on; complete, and handed over, when vLLM has processed its output."""

    number: int
    output: Any
    """vLLM's `SchedulerOutput`."""
    decision: Decision
    decode_requests: int
    """Requests that were to be drafted for in this step."""
    prefill_tokens: int
    proposed: Proposed | None
    """What this step could verify; None where drafts stay in the worker."""
    waiting: int
    began_s: float
    """When vLLM began to schedule it."""
    scheduled_s: float
    interrupted: Collection[str] = ()
    """Requests that were preempted while this step ran."""
    discarded: Collection[str] = ()
    """Requests for which vLLM threw away what the step brought."""
    index: Mapping[str, int] = {}
    """Where a request stands in `sampled` and `tokens`."""
    sampled: Sequence[int] = ()
    """Tokens that came back for each request."""
    tokens: Sequence[Sequence[int]] = ()
    """The same tokens, which vLLM has cut at a stop by the time the step is handed over."""
    before_s: float = 0.0
    """When the output before this one came back."""
    returned_s: float = 0.0
    measured_draft_s: float = 0.0
    """0 where nobody measures it."""
    follows_work: bool = False
    """Whether the engine had anything to do when the output before this one had been processed."""

    def seconds(self) -> tuple[float, float, float, float]:
        """Start, and seconds of drafting, of verifying and of everything else."""
        started_s = self.before_s if self.follows_work else self.began_s
        # Steps may overlap in the worker: one begins when the one before it has come back.
        executed_s = self.returned_s - max(self.scheduled_s, self.before_s)
        draft_s = min(self.measured_draft_s, executed_s)
        other_s = max(0.0, self.returned_s - started_s - executed_s)
        return started_s, draft_s, executed_s - draft_s, other_s


class Ended(Struct, frozen=True, gc=False):
    """A request is over."""

    request_id: str
    ended_s: float
    output_tokens: int
    finish_reason: str


Handed: TypeAlias = Admitted | Step | Ended


class _Request:
    """What the reports of one request need."""

    __slots__ = (
        "accepted",
        "admitted",
        "commanded_k",
        "drafted",
        "first_s",
        "number",
        "reached",
        "scheduled_s",
        "steps",
        "steps_drafted",
    )

    def __init__(self, number: int, admitted: Admitted) -> None:
        self.number = number
        self.admitted = admitted
        self.commanded_k: int | None = None
        """The K under which its next drafts are made; None before there is one."""
        self.scheduled_s: float | None = None
        self.first_s: float | None = None
        self.steps = self.drafted = self.accepted = self.reached = self.steps_drafted = 0


class _Columns:
    """The decode requests of a step."""

    def __init__(self) -> None:
        self.segments: list[str] = []
        self.context_tokens: list[int] = []
        self.commanded_k: list[int] = []
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self.committed: list[int] = []
        self.not_drafted: list[str] = []
        self.requests: list[int] = []


class StepReader:
    """Makes records of what was handed over, in order. Belongs to the link's thread.

    `kv_used` is the fraction of the KV cache in use, asked when a step is read. `failed` is told of the
    first thing that is not as expected; from then on nothing is read.
    """

    def __init__(self, kv_used: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        self._kv_used = kv_used
        self._failed = failed
        self._requests: dict[str, _Request] = {}
        self._admitted = 0
        self._last_step = -1
        self._is_broken = False

    def __call__(self, handed: Handed) -> Iterator[StepRows | RequestReport]:
        """The records of one thing that was handed over."""
        if self._is_broken:
            return
        try:
            if isinstance(handed, Step):
                yield self._rows(handed)
            elif isinstance(handed, Admitted):
                self._requests[handed.request_id] = _Request(self._admitted, handed)
                self._admitted += 1
            else:
                yield from self._report(handed)
        except Exception as error:
            self._is_broken = True
            self._failed(error)

    def _rows(self, step: Step) -> StepRows:
        if step.number != self._last_step + 1:
            # Steps were dropped: nobody knows any more under which K the drafts at hand were made.
            for request in self._requests.values():
                request.commanded_k = None
        self._last_step = step.number
        started_s, draft_s, verify_s, other_s = step.seconds()
        columns, first_tokens = self._columns(step, started_s)
        depth = max(step.decision.proposal_length.values(), default=0)
        return StepRows(
            step=step.number,
            started_s=started_s,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=other_s,
            segments=columns.segments,
            context_tokens=columns.context_tokens,
            commanded_k=columns.commanded_k,
            drafted=columns.drafted,
            accepted=columns.accepted,
            committed=columns.committed,
            not_drafted=columns.not_drafted,
            prefill_tokens=step.prefill_tokens,
            first_tokens=first_tokens,
            requests_drafting=step.decode_requests if depth else 0,
            waiting=step.waiting,
            kv_used_fraction=self._kv_used(),
            decision=step.decision,
            warm_up=step.number < WARM_UP_STEPS,
            preemption=bool(step.output.preempted_req_ids),
            requests=columns.requests,
        )

    def _columns(self, step: Step, started_s: float) -> tuple[_Columns, int]:
        """The decode requests, and the number of tokens of those that were still in prefill."""
        output, first_tokens, columns = step.output, 0, _Columns()
        contexts = decode_contexts(output)
        drafts = output.scheduled_spec_decode_tokens
        proposed = _lengths(step.proposed)
        lengths = step.decision.proposal_length
        for request_id, tokens in output.num_scheduled_tokens.items():
            request, at = self._requests.get(request_id), step.index.get(request_id)
            if request is None or at is None:
                continue  # it was aborted while the step ran
            segment = request.admitted.segment
            if request.scheduled_s is None:
                request.scheduled_s = started_s
            sampled = step.sampled[at] if step.sampled else 0
            kept = len(step.tokens[at]) if step.tokens else 0
            scheduled = len(drafts.get(request_id, ()))
            if request_id in step.discarded:
                kept = 0
            elif request_id not in contexts or tokens != 1 + scheduled:
                first_tokens += kept
            else:
                invalid = (output.num_invalid_spec_tokens or {}).get(request_id, 0)
                self._row(columns, request, proposed, scheduled, invalid, sampled)
                columns.segments.append(segment)
                columns.context_tokens.append(contexts[request_id])
                columns.committed.append(kept)
            if kept and request.first_s is None:
                request.first_s = step.returned_s
            request.commanded_k = lengths.get(segment, 0)
        return columns, first_tokens

    def _row(
        self,
        columns: _Columns,
        request: _Request,
        proposed: dict[str, int] | None,
        scheduled: int,
        invalid: int,
        sampled: int,
    ) -> None:
        """Count what a request verified: `scheduled` draft tokens, `invalid` of them by its grammar."""
        # A request that got nothing back was not verified: its drafts are neither accepted nor rejected.
        drafted = scheduled - invalid if sampled else 0
        accepted = min(max(sampled - 1, 0), drafted)
        k = drafted if request.commanded_k is None else request.commanded_k
        why = ""
        if k and not drafted:
            why = self._why_not(request, proposed, invalid) if sampled else "invalid_state"
        columns.commanded_k.append(k)
        columns.drafted.append(drafted)
        columns.accepted.append(accepted)
        columns.not_drafted.append(why)
        columns.requests.append(request.number)
        request.steps += 1
        request.drafted += drafted
        request.accepted += accepted
        request.reached += min(drafted, accepted + 1)
        request.steps_drafted += drafted > 0

    def _why_not(self, request: _Request, proposed: dict[str, int] | None, invalid: int) -> str:
        if proposed is None:
            return "grammar" if invalid else "length_limit"
        if not proposed.get(request.admitted.request_id):
            return "no_match"
        return "grammar" if request.admitted.statistics.structured else "length_limit"

    def _report(self, ended: Ended) -> Iterator[RequestReport]:
        request = self._requests.pop(ended.request_id, None)
        if request is None:
            return
        admitted, first_s, gaps = request.admitted, request.first_s, ended.output_tokens - 1
        scheduled_s = ended.ended_s if request.scheduled_s is None else request.scheduled_s
        yield RequestReport(
            request=request.number,
            segment=admitted.segment,
            arrived_s=admitted.arrived_s,
            prompt_tokens=admitted.prompt_tokens,
            output_tokens=ended.output_tokens,
            queue_s=max(0.0, scheduled_s - admitted.arrived_s),
            ttft_s=0.0 if first_s is None else max(0.0, first_s - admitted.arrived_s),
            tpot_s=(ended.ended_s - first_s) / gaps if first_s is not None and gaps > 0 else 0.0,
            e2e_s=max(0.0, ended.ended_s - admitted.arrived_s),
            steps=request.steps,
            drafted=request.drafted,
            accepted=request.accepted,
            finish_reason=ended.finish_reason,
            reached=request.reached,
            steps_drafted=request.steps_drafted,
            statistics=admitted.statistics,
        )


def decode_contexts(output: Any) -> dict[str, int]:
    """Tokens in the cache before the step, of the requests that had an output token then.

    Not of those that were admitted or resumed in this step: what they carry is prefill, and drafts that
    vLLM gave them are padding, not anybody's proposal.
    """
    cached = output.scheduled_cached_reqs
    contexts = {
        request_id: tokens
        for request_id, tokens, outputs in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        )
        if outputs
    }
    for request_id in cached.resumed_req_ids:
        contexts.pop(request_id, None)
    return contexts


def _lengths(proposed: Proposed | None) -> dict[str, int] | None:
    if proposed is None:
        return None
    return dict(zip(proposed.request_ids, map(len, proposed.drafts), strict=True))
