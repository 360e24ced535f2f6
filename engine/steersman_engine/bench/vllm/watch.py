"""What can be seen of steering from outside the adapter: drafts, leases, frames, and what became of them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from steersman_engine.bench.expiry import FALLBACK_K, PLAN_K, Judge
from steersman_engine.bench.vllm.sidecars import Frame


class Watch:
    """Looks at each step that a hook is asked about, and shows its judge the drafts that came of it.

    A decision shows in the drafts that the next step verifies. `lease_read_s` says when the last lease
    was read from the network.
    """

    def __init__(
        self, hook: Any, lease_read_s: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.judge: Judge | None = None
        self.steps = 0
        """That carried anything."""
        self.drafted_k = 0
        """`PLAN_K` or `FALLBACK_K` by the newest drafts; 0 or vLLM's own where it was neither."""
        self.planned_s = float("-inf")
        """When drafts were last as long as only the plan asks for; a drafter may find none for a while."""
        self.over_k = 0
        """Steps in which a draft was longer than the worker had been told."""
        self._lease_read_s = lease_read_s
        self._clock = clock
        self._decided: tuple[int, float, float | None] | None = None
        self._choose = hook.choose
        hook.choose = self._watched

    def _watched(self, scheduler: Any, output: Any) -> None:
        if not output.num_scheduled_tokens:
            self._choose(scheduler, output)
            return
        self.steps += 1
        self._look(output.scheduled_spec_decode_tokens)
        asked_s = self._clock()
        self._choose(scheduler, output)
        # Read afterwards: a lease that came in between is to the engine's credit.
        self._decided = (output.num_spec_tokens_to_schedule, asked_s, self._lease_read_s())

    def _look(self, drafts: dict[str, Sequence[int]]) -> None:
        if self._decided is None:
            return
        depth = max(map(len, drafts.values()), default=0)
        told, asked_s, lease_read_s = self._decided
        self.over_k += depth > told
        # A drafter may find less than it is asked for; what is longer than the fallback's K is the plan's.
        self.drafted_k = PLAN_K if FALLBACK_K < depth <= PLAN_K else depth
        if self.drafted_k == PLAN_K:
            self.planned_s = self._clock()
        if self.judge is not None:
            self.judge.see(self.drafted_k, asked_s, lease_read_s)


class Wire:
    """Counts what a link sends, and notes when it reads a lease."""

    def __init__(self, transport: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_read_s: float | None = None
        self.sent: Counter[str] = Counter()
        """Frames by kind that the network took."""
        self.acks = 0
        """Those that it did not take, too."""
        self._clock = clock
        self._send, self._receive = transport.send, transport.receive
        transport.send, transport.receive = self._counted, self._stamped

    def _counted(self, frames: list[bytes]) -> bool:
        kind = frames[0].decode()
        taken: bool = self._send(frames)
        self.acks += kind == "ack"
        self.sent[kind] += taken
        return taken

    def _stamped(self) -> list[bytes] | None:
        frames: list[bytes] | None = self._receive()
        if frames is not None and frames[:1] == [b"lease"]:
            self.lease_read_s = self._clock()
        return frames


class Account(Struct, frozen=True):
    """What became of every record of an engine."""

    produced: int
    """Steps and requests by the scheduler's own count; hellos that the network took; acknowledgements."""
    received: int
    """Frames in the recordings of all sidecars."""
    lost: int
    """Gaps in the sequence numbers of those frames."""
    dropped: int
    """By the engine's count."""
    unaccounted: int
    """Must be 0."""
    gaps: int
    """Runs of lost frames."""


def account(produced: int, frames: Iterable[Frame], dropped: int) -> Account:
    """Balance what was produced against what arrived, was missed by number, and was dropped.

    >>> account(6, [Frame(0, "hello"), Frame(1, "step"), Frame(4, "step")], dropped=1).unaccounted
    0
    """
    sequences = [frame.sequence for frame in frames]
    lost = gaps = 0
    last = -1
    for sequence in sequences:
        lost += sequence - last - 1
        gaps += sequence > last + 1
        last = sequence
    return Account(produced, len(sequences), lost, dropped, produced - len(sequences) - lost - dropped, gaps)


def total(accounts: Iterable[Account]) -> Account:
    """The sum over several engines; what one has too much does not make up for what another lacks."""
    every = list(accounts)

    def summed(name: str) -> int:
        return sum(getattr(one, name) for one in every)

    return Account(
        produced=summed("produced"),
        received=summed("received"),
        lost=summed("lost"),
        dropped=summed("dropped"),
        unaccounted=sum(abs(one.unaccounted) for one in every),
        gaps=summed("gaps"),
    )
