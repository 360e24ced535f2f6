"""A decode loop without a model: it waits as long as a step takes and does to the link what an engine
does, with batches that look like real ones."""

import random
import time
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from steersman_engine.rows import StepRows
from steersman_engine.steering import Steering
from steersman_policies.executor import Decision, Load
from steersman_policies.messages import Fingerprint, Hello
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT

SEGMENTS = (UNKNOWN_SEGMENT, *(f"segment-{index}" for index in range(1, MAX_SEGMENTS)))
K_MAX = 8
LAUNCH_K = 4

PYTHON_LOOPS = 10_000
"""Some 0.3 ms in which the loop holds the interpreter, as schedulers do."""


def sample_hello(max_batch: int = 256) -> Hello:
    """An engine that can do everything."""
    fingerprint = Fingerprint(
        engine="driven",
        engine_version="1",
        target="none",
        drafter="none",
        drafter_version="1",
        method="ngram",
        quantisation="none",
        dtype="none",
        device="none",
        graph_mode="none",
    )
    return Hello(
        fingerprint=fingerprint,
        k_max=K_MAX,
        reachable_k=tuple(range(K_MAX + 1)),
        k_floor=0,
        launch_k=LAUNCH_K,
        max_batch=max_batch,
        per_request_k=True,
        draft_timing=True,
        confidence=False,
        drafter_state_survives_off=True,
    )


class Batch(Struct, frozen=True):
    """The columns of one step, as an engine has them lying about."""

    segments: list[str]
    decode_requests: dict[str, int]
    """By segment; an engine counts them as requests come and go."""
    context_tokens: list[int]
    drafted_up_to: list[int]
    accept_up_to: list[int]


def batches(requests: int, rng: random.Random, number: int = 64) -> list[Batch]:
    """Different batches of `requests` over all segments. Acceptance is a fair coin per position."""
    made = []
    for _ in range(number):
        segments = [rng.choice(SEGMENTS) for _ in range(requests)]
        contexts = [rng.randrange(50, 4_000) for _ in range(requests)]
        drafted = [0 if rng.random() < 0.2 else K_MAX - (rng.random() < 0.1) for _ in range(requests)]
        accepted = [next(n for n in range(99) if rng.random() < 0.5) for _ in range(requests)]
        made.append(Batch(segments, dict(Counter(segments)), contexts, drafted, accepted))
    return made


class DrivenEngine:
    """Steps through batches; `step` returns the seconds that steering added to it and took."""

    def __init__(self, requests: int, rng: random.Random, step_s: float) -> None:
        self._batches = batches(requests, rng)
        self._step_s = step_s
        self._step = 0
        self._decision = Decision(dict.fromkeys(SEGMENTS, LAUNCH_K), 0, "launch", False)

    @property
    def steered(self) -> bool:
        """Whether the last decision followed a plan."""
        return self._decision.plan_id > 0

    def step(self, steering: Steering | None) -> tuple[float, float]:
        """One step: seconds added by steering, seconds of the whole step. None: nobody steers."""
        started_s = time.perf_counter()
        time.sleep(self._step_s)  # the accelerator verifies, the interpreter is free
        batch = self._batches[self._step % len(self._batches)]
        columns = self._commit(batch)
        for _ in range(PYTHON_LOOPS):
            pass
        added_s = 0.0
        if steering is not None:
            before_s = time.perf_counter()
            self._hook(steering, batch, columns, started_s)
            added_s = time.perf_counter() - before_s
        self._step += 1
        return added_s, time.perf_counter() - started_s

    def _commit(self, batch: Batch) -> tuple[list[int], list[int], list[int], list[int], list[str]]:
        commanded = [self._decision.proposal_length.get(segment, 0) for segment in batch.segments]
        drafted = list(map(min, commanded, batch.drafted_up_to))
        accepted = list(map(min, drafted, batch.accept_up_to))
        committed = [count + 1 for count in accepted]
        why = ["no_match" if k and not d else "" for k, d in zip(commanded, drafted, strict=True)]
        return commanded, drafted, accepted, committed, why

    def _hook(
        self,
        steering: Steering,
        batch: Batch,
        columns: tuple[list[int], list[int], list[int], list[int], list[str]],
        started_s: float,
    ) -> None:
        """All that an engine does because it is steered: describe its batch, ask, hand the step over."""
        commanded, drafted, accepted, committed, why = columns
        mean_context = sum(batch.context_tokens) / len(batch.segments)
        self._decision = steering.decide(Load(self._step, batch.decode_requests, mean_context, 0, 0))
        rows = StepRows(
            step=self._step,
            started_s=started_s,
            draft_s=self._step_s * 0.2,
            verify_s=self._step_s * 0.7,
            other_s=self._step_s * 0.1,
            segments=batch.segments,
            context_tokens=batch.context_tokens,
            commanded_k=commanded,
            drafted=drafted,
            accepted=accepted,
            committed=committed,
            not_drafted=why,
            prefill_tokens=0,
            first_tokens=0,
            requests_drafting=len(batch.segments),
            waiting=0,
            kv_used_fraction=0.5,
            decision=self._decision,
        )
        steering.record(rows)


def paired(number: int) -> Iterator[bool]:
    """Whether each of `number` blocks is steered: A B B A, so that a drift cancels out.

    >>> list(paired(8))
    [False, True, True, False, False, True, True, False]
    """
    for index in range(number):
        yield index % 4 in (1, 2)
