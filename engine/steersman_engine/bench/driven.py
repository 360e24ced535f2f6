"""A decode loop without a model: it waits as long as a step takes and does to the link what an engine
does, with batches that look like real ones."""

import hashlib
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

SPIN_S = 0.0005
_SPIN_BYTES = bytes(1 << 19)
"""What takes about that long to hash."""

MAX_TOKENS = 1_000
"""Of a request; then it begins anew."""


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
    requests: list[int]


def batches(requests: int, rng: random.Random, number: int = 64) -> list[Batch]:
    """Different batches of `requests` over all segments. Acceptance is a fair coin per position.

    All segments are in all of them and the mean context hardly differs, as in an engine, where a batch
    changes little by little.
    """
    made = []
    for _ in range(number):
        segments = [*SEGMENTS, *rng.choices(SEGMENTS, k=requests - len(SEGMENTS))]
        contexts = [rng.randrange(50, 2_500) for _ in range(requests)]
        drafted = [0 if rng.random() < 0.2 else K_MAX - (rng.random() < 0.1) for _ in range(requests)]
        accepted = [next(n for n in range(99) if rng.random() < 0.5) for _ in range(requests)]
        made.append(
            Batch(segments, dict(Counter(segments)), contexts, drafted, accepted, list(range(requests)))
        )
    return made


class _Columns(Struct, frozen=True):
    """What a step committed, per request."""

    commanded_k: list[int]
    drafted: list[int]
    accepted: list[int]
    committed: list[int]
    not_drafted: list[str]


class DrivenEngine:
    """Steps through batches; `step` says how long steering's calls and the whole step took."""

    def __init__(self, requests: int, rng: random.Random, step_s: float) -> None:
        self._batches = batches(requests, rng)
        self._step_s = step_s
        self._step = 0
        self._tokens: list[list[int]] = [[] for _ in range(requests)]
        self._decision = Decision(dict.fromkeys(SEGMENTS, LAUNCH_K), 0, "launch", False)

    @property
    def steered(self) -> bool:
        """Whether the last decision followed a plan."""
        return self._decision.plan_id > 0

    def step(self, steering: Steering | None) -> tuple[float, float]:
        """One step: seconds in steering's two calls, seconds of the whole step. None: nobody steers."""
        started_s = time.perf_counter()
        wait(self._step_s)
        batch = self._batches[self._step % len(self._batches)]
        columns = self._commit(batch)
        added_s = 0.0 if steering is None else self._hook(steering, batch, columns, started_s)
        self._step += 1
        return added_s, time.perf_counter() - started_s

    def _commit(self, batch: Batch) -> _Columns:
        """Give every request its tokens and note what became of its drafts, one by one as engines do."""
        columns = _Columns([], [], [], [], [])
        commanded = self._decision.proposal_length
        for index, segment in enumerate(batch.segments):
            k = commanded.get(segment, 0)
            drafted = min(k, batch.drafted_up_to[index])
            accepted = min(drafted, batch.accept_up_to[index])
            tokens = self._tokens[index]
            tokens.extend(range(accepted + 1))
            if len(tokens) > MAX_TOKENS:
                del tokens[:-1]
            columns.commanded_k.append(k)
            columns.drafted.append(drafted)
            columns.accepted.append(accepted)
            columns.committed.append(accepted + 1)
            columns.not_drafted.append("no_match" if k and not drafted else "")
        return columns

    def _hook(
        self,
        steering: Steering,
        batch: Batch,
        columns: _Columns,
        started_s: float,
    ) -> float:
        """Describe the batch, ask, and hand the step over; seconds spent in steering's two calls.

        The description is the engine's own work: it shows in the whole step, not in these seconds.
        """
        mean_context = sum(batch.context_tokens) / len(batch.segments)
        load = Load(self._step, batch.decode_requests, mean_context, 0, 0)
        asked_s = time.perf_counter()
        self._decision = steering.decide(load)
        added_s = time.perf_counter() - asked_s
        rows = StepRows(
            step=self._step,
            started_s=started_s,
            draft_s=self._step_s * 0.2,
            verify_s=self._step_s * 0.7,
            other_s=self._step_s * 0.1,
            segments=batch.segments,
            context_tokens=batch.context_tokens,
            commanded_k=columns.commanded_k,
            drafted=columns.drafted,
            accepted=columns.accepted,
            committed=columns.committed,
            not_drafted=columns.not_drafted,
            prefill_tokens=0,
            first_tokens=0,
            requests_drafting=len(batch.segments),
            waiting=0,
            kv_used_fraction=0.5,
            decision=self._decision,
            requests=batch.requests,
        )
        recorded_s = time.perf_counter()
        steering.record(rows)
        return added_s + time.perf_counter() - recorded_s


def wait(step_s: float) -> None:
    """As for an accelerator: the interpreter is free, and at the end the core is awake: drivers spin."""
    time.sleep(max(0.0, step_s - SPIN_S))
    hashlib.sha256(_SPIN_BYTES)


def paired(number: int) -> Iterator[bool]:
    """Whether each of `number` blocks is steered: A B B A, so that a drift cancels out.

    >>> list(paired(8))
    [False, True, True, False, False, True, True, False]
    """
    for index in range(number):
        yield index % 4 in (1, 2)
