"""The engine's link to the sidecar. Installed inside other people's engines: it must never hurt.

Rules of this file:

- The engine's thread looks a plan up, appends references to a bounded queue and counts. It takes no
  lock, makes no system call and waits for nobody, whether the sidecar is alive, dead, stopped or was
  never there.
- A daemon thread does the rest (`publisher.py`).
- Nothing is raised into the decode loop.
"""

import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from steersman_engine.fallback import load_fallback
from steersman_engine.publisher import HookCounters, Publisher, Reader, StateFiles, is_paused
from steersman_engine.rows import StepRows
from steersman_engine.telemetry import is_segment
from steersman_engine.transport import Transport, ZmqTransport, check_endpoint
from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import Decision, Executor, Load
from steersman_policies.messages import Hello, RequestReport
from steersman_policies.prompt_statistics import PromptStatistics
from steersman_policies.segmenter import Segmenter
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT

log = logging.getLogger(__name__)

OUTBOX_ITEMS = 2_048
"""Steps and finished requests that wait for the publisher; further ones are dropped and counted."""

POLL_S = 0.03
"""How long a step waits for the publisher at most. Plans and leases wake it at once. Every waking takes
the interpreter and its caches from the engine's thread, so steps are published a few at a time."""

IDLE_POLL_S = 0.05
"""The same for the first step after a pause."""

CLOSE_S = 2.0

_ENGINE_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,127}")
_NO_RULES = Segmenter()


class Link:
    """Steers an engine by what a sidecar says; the engine never asks, it holds a plan.

    `decide`, `record`, `finished` and `segment_of` belong to the engine's thread. `clock` is
    monotonic seconds. `state_dir` holds `<engine_id>.pause`, which an operator may create to put the
    launch setting back, and `<engine_id>.fallback.json`, the table for the time without a lease.
    With a `transport` of the caller's own, `endpoint` is not used. `read` makes records of what
    `hand_over` was given, on the other thread.

    Raises ValueError for an engine id that is no file name, and for an endpoint that another machine
    or user could answer from.
    """

    def __init__(
        self,
        engine_id: str,
        hello: Hello,
        endpoint: str,
        *,
        state_dir: Path,
        clock: Callable[[], float] = time.monotonic,
        insecure: bool = False,
        transport: Transport | None = None,
        epoch: int | None = None,
        read: Reader | None = None,
    ) -> None:
        if not _ENGINE_ID.fullmatch(engine_id):
            raise ValueError(f"engine_id: {engine_id!r}; allowed are 1 to 128 of A-Z a-z 0-9 _ . : -")
        if transport is None:
            check_endpoint(endpoint, insecure=insecure)
            transport = ZmqTransport(engine_id, endpoint)
        files = StateFiles(state_dir / f"{engine_id}.pause", state_dir / f"{engine_id}.fallback.json")
        digest = fingerprint_digest(hello.fingerprint)
        fallback, corrupt = load_fallback(files.fallback, hello, digest)
        self.executor = Executor(hello, digest, fallback)
        self.executor.paused = is_paused(files.pause)
        self.hook = HookCounters()
        self._clock = clock
        self._outbox: deque[Any] = deque()
        self._segments: set[str] = {UNKNOWN_SEGMENT}
        self._transport = transport
        self.publisher = Publisher(
            engine_id,
            self.executor,
            transport,
            outbox=self._outbox,
            read=read,
            hook=self.hook,
            files=files,
            clock=clock,
            epoch=secrets.randbits(52) if epoch is None else epoch,
        )
        self.publisher.counters["fallback_refused"] = int(corrupt)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"steersman-{engine_id}", daemon=True)

    def start(self) -> None:
        """Start talking to the sidecar. Returns at once, whether there is one or not."""
        self._thread.start()

    def close(self) -> None:
        """Send what is left and stop. Takes about a quarter of a second at most."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        elif self._thread.ident is None:
            self._transport.close()

    def decide(self, load: Load) -> Decision:
        """K by segment for the drafts made in this step. Never raises, never waits."""
        executor = self.executor
        try:
            now_s = self._clock()
            until_s = executor.lease_until_s
            decision = executor.decide(load, now_s)
        except Exception as error:
            return self._launch(load, error)
        # The publisher may renew or drop the lease meanwhile: it counts if it was valid on either side.
        if decision.plan_id and until_s <= now_s and executor.lease_until_s <= now_s:
            self.hook.decisions_after_expiry += 1
        return decision

    def record(self, rows: StepRows) -> None:
        """Hand a step over: two appends' worth of work. The caller leaves the lists alone from now on."""
        try:
            self.executor.committed(rows.first_tokens or any(rows.committed), len(rows.segments))
        except Exception as error:
            self._failed(error)
        self.hand_over(rows)

    def finished(self, report: RequestReport) -> None:
        """Hand over how a request went."""
        self.hand_over(report)

    def hand_over(self, item: Any, *, droppable: bool = True) -> None:
        """Leave something to the other thread: a record, or what this link's reader makes one of.

        The caller leaves alone from now on what the item refers to. Not `droppable` is what later items
        need to be understood, and what cannot come in any number.
        """
        if droppable and len(self._outbox) >= OUTBOX_ITEMS:
            self.hook.dropped += 1
        else:
            self._outbox.append(item)

    def segment_of(
        self, tag: str, attributes: Mapping[str, str], statistics: PromptStatistics | None = None
    ) -> str:
        """The segment for a new request, which keeps it for life.

        At most 16 names, `unknown` among them, for as long as this link lives: the first ones win and
        no name is freed, so that a segment means the same from the first report to the last. Further
        names, and tags that are not fit to be a segment, become `unknown` and are counted.
        """
        try:
            plan = self.executor.plan
            segmenter = _NO_RULES if plan is None else plan.segmenter
            segment = segmenter.segment_of(tag, attributes, statistics)
            if segment in self._segments:
                return segment
            if is_segment(segment) and len(self._segments) < MAX_SEGMENTS:
                self._segments.add(segment)
                return segment
        except Exception as error:
            self._failed(error)
        self.hook.refused_segments += 1
        return UNKNOWN_SEGMENT

    def stop_following(self, reason: str) -> None:
        """Report from now on only why no plan is followed any more."""
        hello = self.executor.hello
        self.executor.hello = msgspec.structs.replace(hello, observe_only=reason[:200])
        self.publisher.hello_soon()

    def _launch(self, load: Load, error: Exception) -> Decision:
        self._failed(error)
        launch_k = self.executor.hello.launch_k
        return Decision(dict.fromkeys(load.decode_requests, launch_k), 0, "error", False)

    def _failed(self, error: Exception) -> None:
        self.hook.errors += 1
        if self.hook.errors == 1:
            log.error("link: %s: %s", type(error).__name__, error, exc_info=error)

    def _run(self) -> None:
        busy = True
        while not self._stop.is_set():
            try:
                self._transport.wait(POLL_S if busy else IDLE_POLL_S)
                busy = self.publisher.turn()
            except Exception as error:
                self.publisher.failed(error)
                self._stop.wait(POLL_S)
        try:
            self.publisher.finish()
        except Exception as error:
            self.publisher.failed(error)
