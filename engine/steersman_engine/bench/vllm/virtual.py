"""Sidecars killed by the thousand on a virtual clock, while vLLM's scheduler runs.

What `bench.expiry` does to a link alone is done here to scheduler, hook, reader and link together, and
every record that is sent is compared with what the worker did.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from steersman_engine.adapters.vllm.hook import Hook
from steersman_engine.adapters.vllm.steps import StepReader
from steersman_engine.bench.expiry import DELAY_S, FALLBACK_K, LEASE_S, PLAN_K, Judge, Trial
from steersman_engine.bench.stand_in import LEASE_INTERVAL_S, constant_plan
from steersman_engine.bench.virtual import VirtualClock, VirtualTransport
from steersman_engine.bench.vllm.policy import lengths
from steersman_engine.bench.vllm.sidecars import Frame
from steersman_engine.bench.vllm.watch import Account, Watch, Wire, account, total
from steersman_engine.bench.vllm.worker import Driven, Outcome
from steersman_engine.link import Link
from steersman_policies import codec
from steersman_policies.messages import Hello, Lease, StepReport

OTHER_K = 4
REQUESTS = 4
STEP_S = (0.004, 0.06)
"""The shortest and the longest step."""
DOWN_S = LEASE_S + DELAY_S + 6 * STEP_S[1]
"""The shortest time without a sidecar: the fallback is seen."""


class Trials(Struct, frozen=True):
    """What came of all kills."""

    kills: int
    decisions_after_expiry: int
    without_fallback: int
    without_return: int
    """After which the next sidecar's plan was not followed."""
    over_k: int
    """Steps in which a draft was longer than the worker had been told."""
    reports: int
    """Step reports that were compared with the worker's own count."""
    reports_wrong: int
    errors: int
    """That made the adapter give up."""
    telemetry: Account


class _Killed(Struct, frozen=True):
    """One kill."""

    trial: Trial
    returned: bool
    over_k: int
    reports: int
    reports_wrong: int
    errors: int
    account: Account


def virtual_trials(
    number: int,
    rng: random.Random,
    folder: Path,
    driven: Driven,
    *,
    hello: Hello,
    clamp: bool,
    fill: Callable[[int], None],
) -> Trials:
    """Kill a sidecar at `number` points. `fill` replaces the scheduler's requests by so many others."""
    fill(0)  # what is ahead still belongs to the hook that is there
    killed = [_Trial(rng, folder, driven, hello, clamp).run(fill) for _ in range(number)]
    return Trials(
        kills=number,
        decisions_after_expiry=sum(one.trial.decisions_after_expiry for one in killed),
        without_fallback=sum(one.trial.fallback_after_s is None for one in killed),
        without_return=sum(not one.returned for one in killed),
        over_k=sum(one.over_k for one in killed),
        reports=sum(one.reports for one in killed),
        reports_wrong=sum(one.reports_wrong for one in killed),
        errors=sum(one.errors for one in killed),
        telemetry=total(one.account for one in killed),
    )


class _Trial:
    """One sidecar, its death, and its successor."""

    def __init__(self, rng: random.Random, folder: Path, driven: Driven, hello: Hello, clamp: bool) -> None:
        self.rng, self.driven = rng, driven
        self.clock = VirtualClock(rng.uniform(0.0, 1e6))
        self.peer = VirtualTransport(self.clock)
        self.wire = Wire(self.peer, self.clock)
        self.faults: list[Exception] = []
        self.link = Link(
            "virtual",
            hello,
            "",
            state_dir=folder,
            clock=self.clock,
            transport=self.peer,
            epoch=1,
            read=StepReader(driven.scheduler.get_kv_cache_usage, self.faults.append),
        )
        self.hook = Hook(
            self.link,
            clamp=clamp,
            reachable_k=hello.reachable_k,
            clock=self.clock,
        )
        driven.scheduler._hook = self.hook
        driven.work = self._work
        self.watch = Watch(self.hook, lambda: self.wire.lease_read_s, self.clock)
        self.watch.judge = self.judge = Judge(LEASE_S)
        self.received: list[list[bytes]] = []

    def run(self, fill: Callable[[int], None]) -> _Killed:
        """From the first plan over the kill to the successor's plan."""
        fill(REQUESTS)
        outcomes: list[Outcome] = []
        self.driven.worker.outcomes = outcomes
        kill_s = self.clock() + self.rng.uniform(0.2, 0.2 + LEASE_S)
        self._serve(epoch=1, until_s=kill_s)
        self.peer.connected = False
        self.peer.sent.clear()  # what was on its way to the dead
        self.judge.killed(kill_s)
        self._step_until(kill_s + DOWN_S + self.rng.uniform(0.0, LEASE_INTERVAL_S))
        fallback_after_s = self.judge.verdict(0).fallback_after_s  # later, a new sidecar may bring it about
        self.peer.connected = True
        back_s = self.clock()
        self._serve(epoch=2, until_s=self.clock() + LEASE_S / 2)
        returned = self.watch.planned_s > back_s
        fill(0)
        self.link.publisher.finish()
        self._take()
        reports = list(self._reports())
        wrong = sum(outcomes[report.step] != _as_outcome(report) for report in reports)
        return _Killed(
            trial=msgspec.structs.replace(
                self.judge.verdict(self.link.hook.decisions_after_expiry), fallback_after_s=fallback_after_s
            ),
            returned=returned,
            over_k=self.watch.over_k,
            reports=len(reports),
            reports_wrong=wrong,
            errors=len(self.faults) + (self.driven.scheduler._hook is not self.hook),
            account=self._account(len(outcomes) + REQUESTS),
        )

    def _serve(self, epoch: int, until_s: float) -> None:
        """A plan, and leases that take a while to arrive; the last ones arrive after `until_s`."""
        now_s = self.clock()
        plan = constant_plan(self.link.executor.fingerprint, PLAN_K, FALLBACK_K)
        plan = msgspec.structs.replace(plan, proposal_length=lengths(PLAN_K, OTHER_K))
        self.peer.deliver(plan, epoch=epoch)
        sent = [now_s + n * LEASE_INTERVAL_S for n in range(int((until_s - now_s) / LEASE_INTERVAL_S) + 1)]
        self._due = sorted((sent_s + self.rng.uniform(0.0, DELAY_S), epoch) for sent_s in sent)
        self._step_until(until_s)

    def _step_until(self, until_s: float) -> None:
        while self.clock() < until_s:
            self._turn()
            self.driven.step()
            self.clock.now_s = self._next_s()

    def _work(self) -> None:
        """The worker is busy: time passes, and the link's thread may run."""
        self.clock.now_s = self._next_s()
        self._turn()

    def _turn(self) -> None:
        while self._due and self._due[0][0] <= self.clock():
            _, epoch = self._due.pop(0)
            self.peer.deliver(Lease(plan_id=1, lease_s=LEASE_S), epoch=epoch)
        if self.rng.random() < 0.6:
            self.link.publisher.turn()
        if self.rng.random() < 0.6:
            self._take()

    def _take(self) -> None:
        self.received += self.peer.sent
        self.peer.sent.clear()

    def _next_s(self) -> float:
        """Later; the very moment in which a lease ends is never stepped over."""
        now_s, read_s = self.clock(), self.wire.lease_read_s
        next_s = now_s + self.rng.uniform(*STEP_S) / 2
        if read_s is not None and now_s < read_s + LEASE_S < next_s:
            return read_s + LEASE_S
        return next_s

    def _reports(self) -> Iterator[StepReport]:
        records = (codec.decode(frames).envelope.body for frames in self.received)
        return (record for record in records if isinstance(record, StepReport))

    def _account(self, produced: int) -> Account:
        frames = (Frame(int.from_bytes(frames[1], "big"), frames[0].decode()) for frames in self.received)
        talk = self.wire.sent["hello"] + self.wire.acks
        return account(produced + talk, frames, self.link.publisher.all_counters()["dropped"])


def _as_outcome(report: StepReport) -> Outcome:
    outcomes: dict[tuple[int, int], int] = {}
    for group in report.groups:
        for drafted, accepted, count in group.outcomes:
            outcomes[drafted, accepted] = outcomes.get((drafted, accepted), 0) + count
    return Outcome(report.decode_requests, report.committed_tokens, outcomes)
