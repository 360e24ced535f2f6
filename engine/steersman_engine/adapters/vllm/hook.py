"""What the engine's thread does per step: look K up, put it in, note references down.

What grows with the batch runs in C (`map`, `sum`); Python loops are left to what changes from step to
step and to the link's thread. Nothing here is caught: `scheduler` catches everything, once.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from steersman_engine.adapters.vllm.draft_timer import DRAFT_SECONDS
from steersman_engine.adapters.vllm.roster import Roster
from steersman_engine.adapters.vllm.segments import attributes_of, constraint_of, tag_of
from steersman_engine.adapters.vllm.steps import Admitted, Ended, Proposed, Step
from steersman_engine.link import Link
from steersman_policies.executor import Decision, Load

UNTOUCHED = frozenset(("shadow", "pause", "launch", "error"))
"""Decisions that leave vLLM's own number as it is."""


class _InFlight(Struct, gc=False):
    """A step between its scheduling and its output."""

    number: int
    output: Any
    decision: Decision
    decode_requests: int
    prefill_tokens: int
    proposed: Proposed | None
    waiting: int
    began_s: float
    scheduled_s: float
    stale: set[str]


class Hook:
    """Steers one scheduler through a link. All methods belong to the engine's thread.

    `clamp`: whether a request may be cut to the K of its own segment. `is_async`: whether drafts stay
    in the worker. `reachable_k`: what vLLM is ready for; another K is a fault of ours and raises.
    """

    def __init__(
        self,
        link: Link,
        *,
        clamp: bool,
        is_async: bool,
        reachable_k: Iterable[int],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.link = link
        self.clamp = clamp
        self.is_async = is_async
        self._reachable = frozenset(reachable_k)
        self._clock = clock
        self._wall_clock = wall_clock
        self._roster = Roster()
        self._flying: deque[_InFlight] = deque()
        self._steps = 0
        self._limits: list[tuple[int, str]] = []
        """K below the depth of the last decision, and the segment to be cut to it."""
        self._proposed: Proposed | None = None
        self._began_s = 0.0
        self._returned_s = 0.0
        self._before_s = 0.0
        """When the output before the newest one came back."""
        self.fault: Exception | None = None
        """What went wrong on the link's thread: the next step raises it."""
        self._is_busy = False
        self._is_processing = False
        self._ended: list[Ended] = []

    def admitted(self, request: Any) -> None:
        """A request came; it keeps the segment that it gets now."""
        segment = self.link.segment_of(tag_of(request), attributes_of(request))
        self._roster.admit(request.request_id, segment)
        waited_s = max(0.0, self._wall_clock() - request.arrival_time)
        self.link.hand_over(
            Admitted(
                request_id=request.request_id,
                segment=segment,
                arrived_s=max(0.0, self._clock() - waited_s),
                prompt_tokens=request.num_prompt_tokens,
                is_structured=bool(constraint_of(request)),
            )
        )

    def ended(self, request: Any) -> None:
        """A request is over, for whatever reason."""
        self._roster.end(request.request_id)
        reason = request.get_finished_reason()
        ended = Ended(
            request.request_id,
            self._clock(),
            request.num_output_tokens,
            "" if reason is None else str(reason),
        )
        # The step that brought its last tokens comes first.
        if self._is_processing:
            self._ended.append(ended)
        else:
            self.link.hand_over(ended)

    def begin(self) -> None:
        """A step is about to be scheduled."""
        self._began_s = self._clock()

    def choose(self, scheduler: Any, output: Any) -> None:
        """The batch is composed: set the K for the drafts made in this step."""
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return
        if self.fault is not None:
            raise self.fault
        live, prefill_tokens = self._roster.update(scheduler, output)
        decode_requests = sum(live.values())
        contexts = output.scheduled_cached_reqs.num_computed_tokens
        waiting = scheduler.get_request_counts()[1]
        native_k = output.num_spec_tokens_to_schedule
        decision = self.link.decide(
            Load(
                step=self._steps,
                decode_requests=live,
                mean_context_tokens=sum(contexts) / len(contexts) if contexts else 0.0,
                prefill_tokens=prefill_tokens,
                waiting=waiting,
                launch_k=native_k,
            )
        )
        self._limits = []
        if decision.reason not in UNTOUCHED and decode_requests:
            decision = self._put_in(output, decision)
        now_s = self._clock()
        if output.preempted_req_ids:
            for earlier in self._flying:
                earlier.stale |= output.preempted_req_ids
        self._flying.append(
            _InFlight(
                number=self._steps,
                output=output,
                decision=decision,
                decode_requests=decode_requests,
                prefill_tokens=prefill_tokens,
                proposed=self._proposed,
                waiting=waiting,
                began_s=self._began_s,
                scheduled_s=now_s,
                stale=set(),
            )
        )
        self._proposed = None
        self._steps += 1

    def limit(self) -> None:
        """Cut the drafts of each request, or the places for them, to its own K."""
        for k, segment in self._limits:
            for request in self._roster.running(segment):
                if len(request.spec_token_ids) > k:
                    request.spec_token_ids = request.spec_token_ids[:k]  # the list may be shared

    def drafted(self, drafts: Any) -> None:
        """Drafts have come from the worker."""
        self._proposed = Proposed(drafts.req_ids, drafts.draft_token_ids)

    def returned(self, output: Any, result: Any) -> Sequence[int] | None:
        """A step's output is here and not processed yet; the number of tokens of each request.

        None for a step that carried nothing.
        """
        if not output.num_scheduled_tokens:
            return None
        self._before_s, self._returned_s = self._returned_s, self._clock()
        self._is_processing = True
        return list(map(len, result.sampled_token_ids))

    def processed(self, scheduler: Any, output: Any, result: Any, sampled: Sequence[int]) -> None:
        """A step's output was processed: hand everything over."""
        step = self._flying.popleft()
        if step.output is not output:
            raise RuntimeError(f"step {step.number}: its output did not come back in order")
        returned_s = self._returned_s
        began_s = self._before_s if self._is_busy else step.began_s
        # Steps may overlap in the worker: one begins when the one before it has come back.
        executed_s = returned_s - max(step.scheduled_s, self._before_s)
        draft_s = min(getattr(result, DRAFT_SECONDS, 0.0), executed_s)
        self._is_busy = any(scheduler.get_request_counts())
        self.link.executor.committed(any(sampled), step.decode_requests)
        self.link.hand_over(
            Step(
                number=step.number,
                output=output,
                index=result.req_id_to_index,
                sampled=sampled,
                # vLLM cuts only what a request brings with which it ends.
                kept=list(map(len, result.sampled_token_ids)) if self._ended else sampled,
                decision=step.decision,
                decode_requests=step.decode_requests,
                prefill_tokens=step.prefill_tokens,
                proposed=step.proposed,
                stale=step.stale,
                started_s=began_s,
                draft_s=draft_s,
                verify_s=executed_s - draft_s,
                other_s=max(0.0, returned_s - began_s - executed_s),
                ended_s=returned_s,
                waiting=step.waiting,
                kv_used_fraction=scheduler.kv_cache_manager.usage,
            )
        )
        self._is_processing = False
        for ended in self._ended:
            self.link.hand_over(ended)
        self._ended.clear()

    def _put_in(self, output: Any, decision: Decision) -> Decision:
        """Ask the worker for the longest K; the decision as it can be carried out."""
        lengths = decision.proposal_length
        if not self._reachable.issuperset(lengths.values()):
            raise RuntimeError(f"decision {decision.reason}: K of {dict(lengths)} is not all reachable")
        depth = max(lengths.values())
        output.num_spec_tokens_to_schedule = depth
        shorter = [(k, segment) for segment, k in lengths.items() if k < depth]
        if self.clamp:
            self._limits = shorter
        elif shorter:
            # A plan or an exploration may tell segments apart; here all are drafted for alike.
            return msgspec.structs.replace(decision, proposal_length=dict.fromkeys(lengths, depth))
        return decision
