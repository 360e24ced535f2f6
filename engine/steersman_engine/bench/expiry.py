"""Promise 2: no decision after the lease. Sidecars are killed, and the drafts asked for are watched.

The judge knows nothing of the executor's bookkeeping: it sees when a lease was read from the network
and which K the engine was given, and plan and fallback never ask for the same K.
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from steersman_engine.bench.driven import sample_hello
from steersman_engine.bench.stand_in import LEASE_INTERVAL_S, constant_plan
from steersman_engine.bench.virtual import VirtualClock, VirtualTransport
from steersman_engine.link import Link
from steersman_engine.transport import ZmqTransport
from steersman_policies.executor import Load
from steersman_policies.messages import Lease

PLAN_K = 6
FALLBACK_K = 1
SEGMENT = "chat"
LEASE_S = 1.0

DELAY_S = 0.03
"""The longest way of a virtual frame; what was sent before the kill still arrives after it."""

ATTACH_S = 30.0
"""How long a real stand-in may take to start."""


class Trial(Struct, frozen=True):
    """What came of one kill."""

    decisions_after_expiry: int
    """By the judge and, where it saw more, by the link's own counter."""
    fallback_after_s: float | None
    """From the kill to the first decision with the fallback's K; None: it never came."""


class Judge:
    """Watches the K of one engine and when its leases were read."""

    def __init__(self, lease_s: float) -> None:
        self.followed = False
        """The plan was in force when the sidecar was killed."""
        self.fallback_at_s: float | None = None
        self._lease_s = lease_s
        self._after_expiry = 0
        self._killed_s: float | None = None

    def killed(self, now_s: float) -> None:
        """The sidecar is dead from now on."""
        self._killed_s = now_s

    def see(self, k: int, now_s: float, lease_read_s: float | None) -> None:
        """A decision that was asked for at `now_s`."""
        if k == PLAN_K:
            if lease_read_s is None or now_s >= lease_read_s + self._lease_s:
                self._after_expiry += 1
            self.followed = self.followed or self._killed_s is None
        elif self._killed_s is not None and self.fallback_at_s is None and k == FALLBACK_K:
            self.fallback_at_s = now_s

    def verdict(self, counted_by_link: int) -> Trial:
        """The outcome."""
        after_s = None
        if self.followed and self.fallback_at_s is not None and self._killed_s is not None:
            after_s = self.fallback_at_s - self._killed_s
        return Trial(max(self._after_expiry, counted_by_link), after_s)


def virtual_trials(number: int, rng: random.Random, state_dir: Path, lease_s: float = LEASE_S) -> list[Trial]:
    """Kill a sidecar at `number` points on a virtual clock."""
    return [_virtual_trial(rng, state_dir, lease_s) for _ in range(number)]


def _virtual_trial(rng: random.Random, state_dir: Path, lease_s: float) -> Trial:
    clock = VirtualClock(rng.uniform(0.0, 1e6))
    peer = VirtualTransport(clock)
    link = Link("virtual", sample_hello(), "", state_dir=state_dir, clock=clock, transport=peer, epoch=1)
    judge = Judge(lease_s)
    start_s = clock.now_s
    kill_s = start_s + rng.uniform(0.2, 0.2 + lease_s)
    plan = constant_plan(link.executor.fingerprint, PLAN_K, FALLBACK_K)
    peer.deliver(plan)
    due = [start_s + n * LEASE_INTERVAL_S for n in range(int((kill_s - start_s) / LEASE_INTERVAL_S) + 1)]
    due = sorted(sent_s + rng.uniform(0.0, DELAY_S) for sent_s in due)
    killed = False
    while clock.now_s < kill_s + lease_s + 2 * DELAY_S:
        if not killed and clock.now_s >= kill_s:
            killed = True
            peer.connected = False
            judge.killed(kill_s)
        while due and due[0] <= clock.now_s:
            due.pop(0)
            peer.deliver(Lease(plan_id=plan.plan_id, lease_s=lease_s))
        if rng.random() < 0.6:
            link.publisher.turn()
            peer.sent.clear()
        judge.see(_k_of(link), clock.now_s, peer.lease_read_s)
        clock.now_s = _next_s(rng, clock.now_s, peer.lease_read_s, lease_s)
    return judge.verdict(link.hook.decisions_after_expiry)


def _next_s(rng: random.Random, now_s: float, lease_read_s: float | None, lease_s: float) -> float:
    """The next step; the very moment in which a lease ends is never stepped over."""
    next_s = now_s + rng.uniform(0.0005, 0.008)
    if lease_read_s is not None and now_s < lease_read_s + lease_s < next_s:
        return lease_read_s + lease_s
    return next_s


class _StampedTransport(ZmqTransport):
    """Real sockets; notes when the last lease was read."""

    lease_read_s: float | None = None

    def receive(self) -> list[bytes] | None:
        """The next message; None when there is none."""
        frames = super().receive()
        if frames is not None and frames[:1] == [b"lease"]:
            self.lease_read_s = time.monotonic()
        return frames


class _Subject:
    """One engine with a stand-in sidecar of its own, to be killed."""

    def __init__(
        self, name: str, folder: Path, command: Callable[[str], Sequence[str]], lease_s: float
    ) -> None:
        endpoint = f"ipc://{folder / name}.ipc"
        self.judge = Judge(lease_s)
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            command(endpoint), stdout=subprocess.DEVNULL
        )
        self.transport = _StampedTransport(name, endpoint)
        self.link = Link(name, sample_hello(), endpoint, state_dir=folder, transport=self.transport)
        self.link.start()
        self.kill_due_s: float | None = None
        self.killed = False

    def step(self) -> None:
        """Ask for K once, and let the judge see it."""
        now_s = time.monotonic()
        k = _k_of(self.link)
        # Read afterwards: a lease that came in between is to the engine's credit.
        self.judge.see(k, now_s, self.transport.lease_read_s)

    def kill(self) -> None:
        """SIGKILL."""
        self.judge.killed(time.monotonic())
        self.process.kill()
        self.killed = True

    def close(self) -> Trial:
        """End what is left; the verdict."""
        self.process.kill()
        self.process.wait()
        self.link.close()
        return self.judge.verdict(self.link.hook.decisions_after_expiry)


def stand_in_command(lease_s: float = LEASE_S) -> Callable[[str], list[str]]:
    """How to start a stand-in at an endpoint."""

    def command(endpoint: str) -> list[str]:
        module = "steersman_engine.bench.stand_in"
        return [sys.executable, "-m", module, endpoint, str(PLAN_K), str(FALLBACK_K), str(lease_s)]

    return command


def real_trials(
    number: int,
    rng: random.Random,
    folder: Path,
    *,
    together: int = 10,
    lease_s: float = LEASE_S,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """SIGKILL `number` stand-in processes, `together` at a time, at random points of the lease."""
    trials: list[Trial] = []
    command = stand_in_command(lease_s)
    while len(trials) < number:
        names = [f"s{n}" for n in range(len(trials), min(number, len(trials) + together))]
        subjects = [_Subject(name, folder, command, lease_s) for name in names]
        try:
            _wave(subjects, rng, lease_s)
        finally:
            trials += [subject.close() for subject in subjects]
        progress(f"killed {len(trials)} of {number} processes")
    return trials


def _wave(subjects: Sequence[_Subject], rng: random.Random, lease_s: float) -> None:
    deadline_s = time.monotonic() + ATTACH_S
    while not all(subject.judge.followed for subject in subjects) and time.monotonic() < deadline_s:
        _round(subjects)
    now_s = time.monotonic()
    for subject in subjects:
        subject.kill_due_s = now_s + rng.uniform(0.0, 3 * LEASE_INTERVAL_S)
    deadline_s = now_s + 3 * lease_s + 2.0
    while any(subject.judge.fallback_at_s is None for subject in subjects) and time.monotonic() < deadline_s:
        _round(subjects)
    # A while longer: a plan that came back would be seen.
    deadline_s = time.monotonic() + lease_s / 4
    while time.monotonic() < deadline_s:
        _round(subjects)


def _round(subjects: Sequence[_Subject]) -> None:
    for subject in subjects:
        due_s = subject.kill_due_s
        if due_s is not None and not subject.killed and time.monotonic() >= due_s:
            subject.kill()
        subject.step()
    time.sleep(0.001)


def _k_of(link: Link) -> int:
    counts = {SEGMENT: 4}
    load = Load(step=0, decode_requests=counts, mean_context_tokens=100.0, prefill_tokens=0, waiting=0)
    return link.decide(load).proposal_length[SEGMENT]
