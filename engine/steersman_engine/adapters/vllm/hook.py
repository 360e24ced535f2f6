"""What the engine's thread does per step: look K up, put it in, note references down.

What grows with the batch runs in C (`map`, `sum`) or on the link's thread; Python loops are left to what
changes from step to step, and to cutting drafts. Nothing here is caught: `scheduler` catches everything.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from steersman_engine.adapters.vllm.draft_timer import DRAFT_SECONDS
from steersman_engine.adapters.vllm.roster import Roster
from steersman_engine.adapters.vllm.segments import attributes_of, request_statistics, tag_of
from steersman_engine.adapters.vllm.steps import Admitted, Ended, Proposed, Step
from steersman_engine.link import Link
from steersman_policies.executor import Decision, Load

UNTOUCHED = frozenset(("shadow", "pause", "launch", "error"))
"""Decisions that leave vLLM's own number as it is."""


class Hook:
    """Steers one scheduler through a link. All methods belong to the engine's thread.

    `clamp`: whether a request may be cut to the K of its own segment; drafts must then come back from the
    worker. `reachable_k`: what vLLM is ready for; another K is a fault of ours and raises.
    """

    def __init__(
        self,
        link: Link,
        *,
        clamp: bool,
        reachable_k: Iterable[int],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.link = link
        self.clamp = clamp
        self._reachable = frozenset(reachable_k)
        self._clock = clock
        self._wall_clock = wall_clock
        self._roster = Roster()
        self._flying: deque[Step] = deque()
        self._steps = 0
        self._decided: Decision | None = None
        """The last decision that was put in: steps in the same place get the same object."""
        self._depth = 0
        self._limits: tuple[tuple[int, str], ...] = ()
        """K below the depth, and the segment to be cut to it."""
        self._proposed: Proposed | None = None
        self._began_s = 0.0
        self._returned_s = 0.0
        """When the newest output came back."""
        self.fault: Exception | None = None
        """What went wrong on the link's thread: the next step raises it."""
        self._is_busy = False
        self._is_processing = False
        self._ended: list[Ended] = []
        self._resumable: set[str] = set()
        """Requests whose input is streamed: vLLM may throw away what a step in flight brings for them."""

    def admitted(self, request: Any) -> None:
        """A request came; it keeps the segment that it gets now."""
        statistics = request_statistics(request)
        segment = self.link.segment_of(tag_of(request), attributes_of(request), statistics)
        self._roster.admit(request.request_id, segment)
        if request.resumable:
            self._resumable.add(request.request_id)
        waited_s = max(0.0, self._wall_clock() - request.arrival_time)
        self.link.hand_over(
            Admitted(
                request_id=request.request_id,
                segment=segment,
                arrived_s=max(0.0, self._clock() - waited_s),
                prompt_tokens=request.num_prompt_tokens,
                statistics=statistics,
            ),
            droppable=False,
        )

    def ended(self, request: Any) -> None:
        """A request is over, for whatever reason."""
        self._roster.end(request.request_id)
        self._resumable.discard(request.request_id)
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
            self.link.hand_over(ended, droppable=False)

    def begin(self) -> None:
        """A step is about to be scheduled."""
        self._began_s = self._clock()

    def choose(self, scheduler: Any, output: Any) -> None:
        """The batch is composed: set the K for the drafts made in this step."""
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            # Whoever waits now waits for something outside of the engine.
            self._is_busy = self._is_busy and bool(self._flying)
            return
        if self.fault is not None:
            raise self.fault
        live, prefill_tokens = self._roster.update(scheduler, output)
        contexts = output.scheduled_cached_reqs.num_computed_tokens
        waiting = scheduler.get_request_counts()[1]
        decision = self.link.decide(
            Load(
                self._steps,
                live,
                sum(contexts) / len(contexts) if contexts else 0.0,
                prefill_tokens,
                waiting,
                launch_k=output.num_spec_tokens_to_schedule,
            )
        )
        if decision.reason in UNTOUCHED or not live:
            self._decided, self._limits = None, ()
        else:
            self._put_in(output, decision)
        if output.preempted_req_ids:
            for earlier in self._flying:
                earlier.interrupted = {*earlier.interrupted, *output.preempted_req_ids}
        self._flying.append(
            Step(
                self._steps,
                output,
                decision,
                sum(live.values()),
                prefill_tokens,
                self._proposed,
                waiting,
                self._began_s,
                self._clock(),
            )
        )
        self._proposed = None
        self._steps += 1

    def limit(self) -> None:
        """Cut the drafts of each request to its own K."""
        for k, segment in self._limits:
            for request in self._roster.running(segment):
                if len(request.spec_token_ids) > k:
                    request.spec_token_ids = request.spec_token_ids[:k]

    def drafted(self, drafts: Any) -> None:
        """Drafts have come from the worker."""
        # A worker in this process goes on changing its list of ids.
        self._proposed = Proposed(tuple(drafts.req_ids), drafts.draft_token_ids)

    def returned(self, scheduler: Any, output: Any, result: Any) -> Step | None:
        """A step's output is here and not processed yet; None for a step that carried nothing."""
        if not output.num_scheduled_tokens:
            return None
        returned_s = self._clock()
        step = self._flying.popleft()
        if step.output is not output:
            raise RuntimeError(f"step {step.number}: its output did not come back in order")
        step.before_s, step.returned_s = self._returned_s, returned_s
        step.index, step.tokens = result.req_id_to_index, result.sampled_token_ids
        # vLLM will cut what a request brings beyond its stop.
        step.sampled = list(map(len, result.sampled_token_ids))
        step.measured_draft_s = getattr(result, DRAFT_SECONDS, 0.0)
        if step.interrupted or self._resumable:
            suspects = {*step.interrupted, *self._resumable}
            step.discarded = {each for each in suspects if _is_discarded(scheduler.requests.get(each))}
        self._returned_s = returned_s
        self._is_processing = True
        return step

    def processed(self, scheduler: Any, step: Step) -> None:
        """A step's output was processed: hand everything over."""
        step.follows_work = self._is_busy
        self._is_busy = any(scheduler.get_request_counts())
        self.link.executor.committed(any(step.sampled), step.decode_requests)
        self.link.hand_over(step)
        self._is_processing = False
        for ended in self._ended:
            self.link.hand_over(ended, droppable=False)
        self._ended.clear()

    def _put_in(self, output: Any, decision: Decision) -> None:
        """Ask the worker for the longest K."""
        if decision is not self._decided:
            self._settle(decision)
        output.num_spec_tokens_to_schedule = self._depth

    def _settle(self, decision: Decision) -> None:
        """Work out depth and limits, which hold until another decision comes."""
        lengths = decision.proposal_length
        if not self._reachable.issuperset(lengths.values()):
            raise RuntimeError(f"decision {decision.reason}: K of {dict(lengths)} is not all reachable")
        self._depth = depth = max(lengths.values())
        if self.clamp:
            self._limits = tuple((k, segment) for segment, k in lengths.items() if k < depth)
        self._decided = decision


def _is_discarded(request: Any) -> bool:
    """Whether vLLM will throw away what a step in flight brings for a request (`drop_stale_output`)."""
    return request is not None and request.num_stale_output_tokens > 0 and request.drop_stale_output
