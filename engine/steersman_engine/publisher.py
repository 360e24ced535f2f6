"""The half of the link that talks: takes plans and leases in, sends what the engine handed over.

Everything here runs on one thread, never the engine's; `turn` does what is due and returns. The
engine's thread shares three things with it, none behind a lock: the outbox (one appends, the other
pops), the executor (which publishes by replacing references), and counters that only one side writes.
"""

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from steersman_engine.fallback import save_fallback
from steersman_engine.rows import StepRows
from steersman_engine.signals import Signals
from steersman_engine.telemetry import aggregate
from steersman_engine.transport import Transport
from steersman_policies import codec
from steersman_policies.codec import Envelope, FromEngine, WireError
from steersman_policies.executor import Executor
from steersman_policies.messages import Lease, PlanAck, RequestReport, StepReport
from steersman_policies.plan import Plan

log = logging.getLogger(__name__)

HELLO_S = 1.0
HELLO_RETRY_S = 0.05
"""While nobody listens."""
PAUSE_CHECK_S = 0.1
ITEMS_PER_TURN = 64
"""Then plans and leases are looked at again."""
READY_ITEMS = 2_048
"""Records that wait to be sent; older ones go."""
FRAMES_PER_TURN = 256
HELD_ITEMS = 256
"""The newest rows wait for a sidecar that is not there, about a second's worth; older ones go."""

Item: TypeAlias = StepRows | RequestReport

Reader: TypeAlias = Callable[[Any], Iterable[Item]]
"""Makes items of what an engine handed over as it was, because even columns cost its thread too much."""


class HookCounters(Struct, gc=False):
    """What the engine's thread counts; nobody else writes here."""

    dropped: int = 0
    refused_segments: int = 0
    decisions_after_expiry: int = 0
    errors: int = 0


class StateFiles(Struct, frozen=True):
    """The files that an engine and its operator share."""

    pause: Path
    fallback: Path


def is_paused(file: Path) -> bool:
    """Whether the operator's file is there. Unlike `Path.exists` this never raises."""
    return os.path.exists(file)


class Publisher:
    """Owns the transport, adopts plans, renews leases, sends reports."""

    def __init__(
        self,
        engine_id: str,
        executor: Executor,
        transport: Transport,
        *,
        outbox: deque[Any],
        read: Reader | None,
        hook: HookCounters,
        files: StateFiles,
        clock: Callable[[], float],
        epoch: int,
    ) -> None:
        self.counters: Counter[str] = Counter()
        """Monotone since boot; `dropped` and `refused.*` of this thread only."""
        self._engine_id = engine_id
        self._executor = executor
        self._transport = transport
        self._outbox = outbox
        self._read = read
        self._ready: deque[Item] = deque()
        """Read, and not sent yet."""
        self._signals = Signals()
        self._hook = hook
        self._files = files
        self._clock = clock
        self._epoch = epoch
        self._sequence = 0
        self._sidecar_epoch: int | None = None
        self._greeted = False
        self._hello_due_s = 0.0
        self._pause_due_s = 0.0
        self._saved_fallback = executor.fallback
        self._last_step = (-1, False)
        self._seen_errors: set[str] = set()

    def turn(self) -> bool:
        """Do what is due; whether the engine had handed something over."""
        self._receive()
        now_s = self._clock()
        if now_s >= self._pause_due_s:
            self._pause_due_s = now_s + PAUSE_CHECK_S
            self._executor.paused = is_paused(self._files.pause)
        if now_s >= self._hello_due_s:
            self._greet(now_s)
        worked = bool(self._outbox)
        for _ in range(0, len(self._outbox), ITEMS_PER_TURN):
            self._take(ITEMS_PER_TURN)
            self._receive()
        self._hold(READY_ITEMS if self._greeted else HELD_ITEMS)
        if not self._greeted:
            return worked
        for _ in range(min(ITEMS_PER_TURN, len(self._ready))):
            self._publish(self._ready.popleft())
        return worked or bool(self._ready)

    def finish(self) -> None:
        """Send and save what is left, then close the transport."""
        if not self._greeted:
            self._greet(self._clock())
        self._take(len(self._outbox))
        while self._ready and self._greeted:
            self._publish(self._ready.popleft())
        self._save_fallback()
        self._transport.close()

    def failed(self, error: Exception) -> None:
        """Count an error of ours, and log each kind of it once."""
        self.counters["publisher_errors"] += 1
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._seen_errors and len(self._seen_errors) < 16:
            self._seen_errors.add(kind)
            log.error("link of %s: %s", self._engine_id, kind, exc_info=error)

    def hello_soon(self) -> None:
        """Say again who we are, since something about it has changed."""
        self._hello_due_s = 0.0

    def all_counters(self) -> dict[str, int]:
        """The counters of both threads, as they go into a Hello."""
        hook = self._hook
        counters = dict(self.counters)
        counters["dropped"] = self._dropped()
        counters["refused.segment"] = counters.get("refused.segment", 0) + hook.refused_segments
        counters["decisions_after_expiry"] = hook.decisions_after_expiry
        counters["hook_errors"] = hook.errors
        for always in ("plans_refused", "publisher_errors"):
            counters.setdefault(always, 0)
        return counters

    def _dropped(self) -> int:
        return self.counters["dropped"] + self._hook.dropped

    def _receive(self) -> None:
        for _ in range(FRAMES_PER_TURN):
            # Stamped before it is read: a lease may end too early by this much, never too late.
            arrived_s = self._clock()
            frames = self._transport.receive()
            if frames is None:
                return
            try:
                envelope = codec.decode(frames).envelope
            except WireError as error:
                self.counters[f"wire.{error.reason}"] += 1
                continue
            self._obey(envelope, arrived_s)

    def _obey(self, envelope: Envelope, arrived_s: float) -> None:
        record = envelope.body
        if not isinstance(record, Plan | Lease):
            self.counters["wire.direction"] += 1
            return
        if envelope.epoch != self._sidecar_epoch:
            if self._sidecar_epoch is not None:
                self._executor.forget()
                self._hello_due_s = 0.0
            self._sidecar_epoch = envelope.epoch
        if isinstance(record, Lease):
            if not self._executor.renew(record, arrived_s):
                self.counters["leases_refused"] += 1
            return
        ack = self._executor.adopt(record)
        if not ack.applied:
            self.counters["plans_refused"] += 1
        self._send_or_count(ack)

    def _greet(self, now_s: float) -> None:
        """Say who we are. Until somebody has heard it, nothing else is sent."""
        self._save_fallback()
        hello = msgspec.structs.replace(self._executor.hello, counters=self.all_counters())
        self._greeted = self._send(hello)
        self._hello_due_s = now_s + (HELLO_S if self._greeted else HELLO_RETRY_S)

    def _take(self, items: int) -> None:
        """Read what was handed over, also while nobody listens: readers must see every step."""
        for _ in range(min(items, len(self._outbox))):
            item = self._outbox.popleft()
            if self._read is None:
                self._ready.append(item)
                continue
            try:
                self._ready.extend(self._read(item))
            except Exception as error:
                self.counters["dropped"] += 1
                self.failed(error)

    def _hold(self, items: int) -> None:
        while len(self._ready) > items:
            self._ready.popleft()
            self.counters["dropped"] += 1

    def _publish(self, item: Item) -> None:
        if isinstance(item, StepRows):
            step, switched = self._last_step
            after_switch = switched and item.step == step + 1
            self._last_step = (item.step, item.decision.switched)
            report, refused = aggregate(item, first_after_switch=after_switch, signals=self._signals)
            for reason, count in refused.items():
                self.counters[f"refused.{reason}"] += count
            if report is not None:
                self._send_or_count(report)
        else:
            self._signals.forget(item.request)
            self._send_or_count(item)

    def _send_or_count(self, record: PlanAck | StepReport | RequestReport) -> None:
        if not self._send(record):
            self.counters["dropped"] += 1
            self._greeted = False  # whoever listens next may be a new sidecar
            self._hello_due_s = 0.0

    def _send(self, record: FromEngine) -> bool:
        topic = str(record.__struct_config__.tag).encode()
        envelope = Envelope(codec.SCHEMA, self._epoch, self._engine_id, self._dropped(), record)
        frames = codec.encode(topic, self._sequence, envelope)
        if isinstance(record, RequestReport) and not self._fits(frames[2]):
            return True
        if len(frames[2]) > codec.MAX_FRAME_BYTES or not self._transport.send(frames):
            return False
        self._sequence += 1  # of frames sent: what the sidecar misses in it was lost on the way
        return True

    def _fits(self, payload: bytes) -> bool:
        """Whether the peer will understand it; the engine filled this record in by itself."""
        try:
            codec.decode_payload(payload)
        except WireError:
            self.counters["refused.request"] += 1
            return False
        return True

    def _save_fallback(self) -> None:
        fallback = self._executor.fallback
        if fallback is None or fallback == self._saved_fallback:
            return
        self._saved_fallback = fallback  # also where it fails: a full disk is not tried every turn
        try:
            save_fallback(self._files.fallback, fallback)
        except OSError as error:
            self.failed(error)
