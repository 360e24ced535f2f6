"""A serving system on a virtual clock: arrivals, the engine's steps, the sidecar's ticks.

The truth decides how long a step takes and what is accepted; the real controller learns from the
reports alone, and the real executor obeys the plan. Same inputs, same seed: same outcome, to the
last bit, whatever the process or the hash seed.

An experiment is a sequence of arms in one world with one controller: the next arm starts when the
one before has drained, and what was learned carries over, as in a live run.
"""

from collections.abc import Sequence
from typing import Any

import simpy
from msgspec import Struct
from simpy.events import ProcessGenerator

from steersman_controller.events import Event, Started
from steersman_controller.sidecar.peer import LEASE_INTERVAL_S
from steersman_policies.executor import mix
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_policies.units import Count, Name, Seconds
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.truths.step_work import DraftWork, Truth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.batch import Batch, Live, finished_report
from steersman_simulator.world.chance import stream
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.steering import HELLO_INTERVAL_S, Steering

ENGINE_ID = "simulated"


class Change(Struct, frozen=True):
    """From `at_s` after the start of its arm on, this policy plans."""

    at_s: Seconds
    policy: Name
    params: dict[str, Any] = {}


class Arm(Struct, frozen=True):
    """A workload and the policies that serve it; the first change is at 0."""

    name: Name
    arrivals: tuple[Arrival, ...]
    changes: tuple[Change, ...]


class Served(Struct, frozen=True):
    """A finished request, and every delivery to its client as (moment, tokens)."""

    arm: Count
    report: RequestReport
    deliveries: tuple[tuple[float, int], ...]


class Step(Struct, frozen=True):
    """A step of the simulated engine."""

    arm: Count
    report: StepReport


class Outcome(Struct, frozen=True):
    """Everything that happened in a world."""

    served: tuple[Served, ...]
    running: tuple[int, ...]
    """Ordinals of the requests still in the engine at the end, waiting ones included."""
    steps: tuple[Step, ...]
    spans: tuple[tuple[float, float], ...]
    """Start and end of each arm."""
    events: tuple[Event, ...]
    """What a recorder beside the sidecar would have written."""


class World:
    """One engine, one sidecar, one clock that starts at `started.at_s`."""

    def __init__(
        self,
        *,
        started: Started,
        hello: Hello,
        shape: Shape,
        truth: Truth,
        acceptance: Acceptance,
        seed: int = 0,
        settle_s: float = 0.0,
    ) -> None:
        self.env = simpy.Environment(initial_time=started.at_s)
        self.steering = Steering(started, hello, ENGINE_ID)
        self.batch = Batch(shape)
        self._seconds = truth.sampler(stream(seed, 1))
        self._acceptance = acceptance
        self._seed = mix(seed, 2)
        self._interval_s = started.config.plan_interval_s
        self._settle_s = settle_s
        self._work = self.env.event()
        self._drained = self.env.event()
        self._arm = 0
        self._arrived = 0
        self._to_come = 0
        self._served: list[Served] = []
        self._steps: list[Step] = []
        self._started_s: list[float] = []
        self._ended_s: list[float] = []

    def run(self, arms: Sequence[Arm], *, horizon_s: float | None = None) -> Outcome:
        """Serve every arm; a world is run once. With a horizon, stop there whatever is unfinished."""
        for process in (self._greet(), self._tick(), self._renew(), self._serve()):
            self.env.process(process)
        done = self.env.process(self._experiment(arms))
        if horizon_s is None:
            self.env.run(until=done)
        else:
            self.env.run(until=self.env.any_of([done, self.env.timeout(horizon_s)]))
        live = [*self.batch.slots, *self.batch.waiting]
        return Outcome(
            served=tuple(self._served),
            running=tuple(sorted(request.ordinal for request in live)),
            steps=tuple(self._steps),
            spans=tuple(zip(self._started_s, [*self._ended_s, self.env.now], strict=False)),
            events=tuple(self.steering.events),
        )

    def _experiment(self, arms: Sequence[Arm]) -> ProcessGenerator:
        for index, arm in enumerate(arms):
            self._arm = index
            self._started_s.append(self.env.now)
            if arm.arrivals:
                self._to_come = len(arm.arrivals)
                self._drained = self.env.event()
                self.env.process(self._change(arm.changes))
                self.env.process(self._arrive(arm.arrivals))
                yield self._drained
            self._ended_s.append(self.env.now)
            yield self.env.timeout(self._settle_s)

    def _change(self, changes: Sequence[Change]) -> ProcessGenerator:
        start_s = self.env.now
        for change in sorted(changes, key=lambda c: c.at_s):
            if change.at_s:
                yield self.env.timeout(max(0.0, start_s + change.at_s - self.env.now))
            self.steering.set_policy(change.policy, change.params, self.env.now)
            # A push is answered by a plan at once, so that no step of the arm runs under the old one.
            self.steering.tick(self.env.now)
        yield self.env.timeout(0.0)

    def _arrive(self, arrivals: Sequence[Arrival]) -> ProcessGenerator:
        start_s = self.env.now
        for ordinal, arrival in enumerate(arrivals):
            wait_s = start_s + arrival.at_s - self.env.now
            if wait_s > 0.0:
                yield self.env.timeout(wait_s)
            # Drafts depend on the place in the arm, so that every arm meets the same requests.
            drafts = self._acceptance.table(arrival, ordinal, self._seed, arrival.at_s)
            live = Live(self._arrived, self._arm, arrival, drafts, self.env.now)
            self._arrived += 1
            self.batch.waiting.append(live)
            if not self._work.triggered:
                self._work.succeed()
        yield self.env.timeout(0.0)

    def _serve(self) -> ProcessGenerator:
        env, batch, executor = self.env, self.batch, self.steering.executor
        while True:
            if batch.idle:
                self._work = env.event()
                yield self._work
            forward = batch.compose(env.now)
            verify_s = self._seconds.verify_s(forward.work)
            yield env.timeout(verify_s)
            committed = batch.commit(forward, env.now)
            self._finish(committed.finished)
            executor.committed(committed.tokens, len(forward.decode))
            decision = executor.decide(batch.load(forward), env.now)
            drafting = batch.draft(decision.proposal_length)
            depth, requests, context = drafting
            draft_s = self._seconds.draft_s(DraftWork(depth, requests, context))
            other_s = self._seconds.other_s(
                decode_requests=len(forward.decode), committed_tokens=committed.tokens
            )
            yield env.timeout(draft_s + other_s)
            report = batch.report(forward, committed, decision, drafting, (draft_s, verify_s, other_s))
            self._steps.append(Step(self._arm, report))
            self.steering.send(report, env.now)
            self._leave(len(committed.finished))

    def _finish(self, finished: Sequence[Live]) -> None:
        for live in finished:
            report = finished_report(live)
            self._served.append(Served(self._arm, report, tuple(live.deliveries)))
            self.steering.send(report, self.env.now)

    def _leave(self, requests: int) -> None:
        self._to_come -= requests
        if not self._to_come and not self._drained.triggered:
            self._drained.succeed()

    def _greet(self) -> ProcessGenerator:
        while True:
            self.steering.send(self.steering.hello, self.env.now)
            yield self.env.timeout(HELLO_INTERVAL_S)

    def _tick(self) -> ProcessGenerator:
        while True:
            self.steering.tick(self.env.now)
            yield self.env.timeout(self._interval_s)

    def _renew(self) -> ProcessGenerator:
        while True:
            self.steering.renew(self.env.now)
            yield self.env.timeout(LEASE_INTERVAL_S)
