"""Which requests are live in which segment, kept up to date by what changes from step to step."""

from collections.abc import Iterable
from typing import Any

from steersman_policies.units import UNKNOWN_SEGMENT


class Roster:
    """The running requests of a scheduler by segment. Costs grow with the changes, not with the batch."""

    def __init__(self) -> None:
        self._segment: dict[str, str] = {}
        """Of every request that was admitted and has not ended."""
        self._running: dict[str, dict[str, Any]] = {}
        """vLLM's requests by segment and id."""
        self._prefilling: frozenset[str] = frozenset()
        """Whose prompt was not through after the last step."""
        self._size = 0
        self._live: dict[str, int] | None = None
        """Running requests by segment, while it is known that nobody came or went."""

    def admit(self, request_id: str, segment: str) -> None:
        """A request came, and waits."""
        self._segment[request_id] = segment

    def end(self, request_id: str) -> None:
        """A request is over."""
        self._leave(request_id)
        self._segment.pop(request_id, None)

    def update(self, scheduler: Any, output: Any) -> tuple[dict[str, int], int]:
        """Follow a step that was just composed.

        Returns the live requests by segment that will be drafted for at its end, and its prompt tokens.
        """
        scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
        if (
            self._live is not None
            and self._size == len(scheduler.running)
            and not (output.scheduled_new_reqs or cached.resumed_req_ids or scheduler._inflight_prefills)
        ):
            return self._live, 0
        for request_id in output.preempted_req_ids or ():
            self._leave(request_id)
        tokens: int = sum(scheduled.get(request_id, 0) for request_id in self._prefilling)
        for request_id in (*(new.req_id for new in output.scheduled_new_reqs), *cached.resumed_req_ids):
            self._join(scheduler.requests[request_id])
            if request_id not in self._prefilling:
                tokens += scheduled[request_id]
        if self._size != len(scheduler.running):
            self._count_afresh(scheduler)
        live = {segment: len(requests) for segment, requests in self._running.items() if requests}
        if scheduler._inflight_prefills or self._prefilling:
            self._prefilling = self._still_prefilling(scheduler, scheduled)
            for request_id in self._prefilling:
                segment = self._segment_of(request_id)
                if live.get(segment, 0) > 1:
                    live[segment] -= 1
                else:
                    live.pop(segment, None)
        self._live = None if self._prefilling else live
        return live, tokens

    def running(self, segment: str) -> Iterable[Any]:
        """vLLM's running requests of a segment."""
        return self._running.get(segment, {}).values()

    def _join(self, request: Any) -> None:
        request_id = request.request_id
        requests = self._running.setdefault(self._segment_of(request_id), {})
        if request_id not in requests:
            requests[request_id] = request
            self._size += 1
            self._live = None

    def _leave(self, request_id: str) -> None:
        requests = self._running.get(self._segment_of(request_id), {})
        if requests.pop(request_id, None) is not None:
            self._size -= 1
            self._live = None

    def _count_afresh(self, scheduler: Any) -> None:
        # Some ways out of the batch, such as a pause in streamed input, are not told to anybody.
        self._running, self._size, self._live = {}, 0, None
        for request in scheduler.running:
            self._join(request)

    def _still_prefilling(self, scheduler: Any, scheduled: dict[str, int]) -> frozenset[str]:
        # Those that wait for their cache from elsewhere are among vLLM's, and not in the batch.
        return frozenset(
            request.request_id
            for request in scheduler._inflight_prefills
            if request.num_computed_tokens + scheduled.get(request.request_id, 0) < request.num_tokens
            and request.request_id in self._running.get(self._segment_of(request.request_id), ())
        )

    def _segment_of(self, request_id: str) -> str:
        return self._segment.get(request_id, UNKNOWN_SEGMENT)
