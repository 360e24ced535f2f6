"""A worker without a model: tokens and drafts that mean nothing, in numbers as real ones have them."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from msgspec import Struct

_TOKEN = [5]
_RING = 4_099
"""A prime, so that no batch size repeats the same draws."""


class Outcome(Struct, frozen=True):
    """What really happened in a step."""

    decode_requests: int
    committed_tokens: int
    outcomes: dict[tuple[int, int], int]
    """Requests by draft tokens verified and accepted, where there were any."""


class Worker:
    """Samples for every request of a step, then drafts for it as many tokens as it is told.

    `miss` is how often it finds no drafts at all; every draft token is accepted with `accept`.
    """

    def __init__(self, rng: random.Random, *, miss: float = 0.2, accept: float = 0.5) -> None:
        self.longest: dict[str, int] = {}
        """Of a request's drafts."""
        self.outcomes: list[Outcome] | None = None
        """One for each step with a request in it, where somebody made a list of it."""
        self._begun: set[str] = set()
        self._finds = cycle([0 if rng.random() < miss else 99 for _ in range(_RING)])
        self._accepts = cycle([_run(rng, accept) for _ in range(_RING)])

    def sample(self, output: Any) -> list[list[int]]:
        """New tokens of each request, in the order of `output.num_scheduled_tokens`."""
        drafts, accepts = output.scheduled_spec_decode_tokens, self._accepts
        lengths = [
            (len(drafts[request_id]), next(accepts)) if request_id in drafts else (0, 0)
            for request_id in output.num_scheduled_tokens
        ]
        if self.outcomes is not None and lengths:
            self._note(output, lengths)
        return [_TOKEN * (1 + min(drafted, accepted)) for drafted, accepted in lengths]

    def draft(self, output: Any) -> list[list[int]]:
        """Draft tokens for each request, in the same order."""
        k, longest, finds = output.num_spec_tokens_to_schedule, self.longest, self._finds
        return [
            _TOKEN * min(k, longest.get(request_id, k), next(finds))
            for request_id in output.num_scheduled_tokens
        ]

    def forget(self) -> None:
        """All requests are gone."""
        self.longest.clear()
        self._begun.clear()

    def _note(self, output: Any, lengths: Sequence[tuple[int, int]]) -> None:
        ids = list(output.num_scheduled_tokens)
        begun = [n for n, request_id in enumerate(ids) if request_id in self._begun]
        verified = ((lengths[n][0], min(lengths[n])) for n in begun)
        assert self.outcomes is not None, "the caller has looked"
        self.outcomes.append(
            Outcome(
                decode_requests=len(begun),
                committed_tokens=sum(1 + min(pair) for pair in lengths),
                outcomes=dict(Counter(pair for pair in verified if pair[0])),
            )
        )
        self._begun.update(ids)


class Driven:
    """A scheduler and its engine loop around such a worker, synchronous or one step ahead.

    `results` makes vLLM's records: `(ids, tokens) -> ModelRunnerOutput`, `(ids, drafts) ->
    DraftTokenIds`. `work` is called where the worker is busy.
    """

    def __init__(
        self,
        scheduler: Any,
        worker: Worker,
        *,
        is_async: bool,
        work: Callable[[], None],
        sampled: Callable[[list[str], list[list[int]]], Any],
        drafted: Callable[[list[str], list[list[int]]], Any],
    ) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.is_async = is_async
        self.work = work
        self._sampled = sampled
        self._drafted = drafted
        self._ahead: list[Any] = []

    def step(self) -> None:
        """Schedule a step, let the worker work, process what it brings."""
        output = self.scheduler.schedule()
        if self.is_async:
            self._ahead.append(output)
            if len(self._ahead) < 2:
                return
            output = self._ahead.pop(0)
        self.work()
        self._process(output)

    def drain(self) -> None:
        """Process what is still ahead."""
        while self._ahead:
            self._process(self._ahead.pop(0))

    def _process(self, output: Any) -> None:
        ids = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(output, self._sampled(ids, self.worker.sample(output)))
        if ids and not self.is_async:
            self.scheduler.update_draft_token_ids(self._drafted(ids, self.worker.draft(output)))


def _run(rng: random.Random, accept: float) -> int:
    """Successes before the first failure, 99 at most."""
    return next((n for n in range(99) if rng.random() >= accept), 99)
