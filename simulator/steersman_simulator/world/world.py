"""A serving system on a virtual clock: arrivals, the engines' steps, the sidecar's ticks.

The truth decides how long a step takes and what is accepted; the real controller learns from the
reports alone, and the real executor obeys the plan. Same inputs, same seed: same outcome, to the
last bit, whatever the process or the hash seed.

An experiment is a sequence of arms in one world with one controller: the next arm starts when the
one before has drained, and what was learned carries over, as in a live run.

Arrivals, ticks, leases, hellos and changes are events of SimPy. Steps are not: an engine has a local clock
and takes steps as long as they end before the next event; then it waits for that event. So every event
meets every step in order, as if each step were an event, too.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import simpy
from msgspec import Struct
from simpy.events import ProcessGenerator

from steersman_controller.events import Started
from steersman_controller.sidecar.peer import LEASE_INTERVAL_S
from steersman_policies.executor import mix
from steersman_policies.messages import Hello
from steersman_policies.units import Name, Seconds
from steersman_simulator.acceptance.draft_table import Acceptance, DraftTable
from steersman_simulator.truths.step_work import Truth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.batch import Batch
from steersman_simulator.world.chance import stream
from steersman_simulator.world.cluster import Cluster, engine_ids, route
from steersman_simulator.world.engine import Engine, Ranks, Steps
from steersman_simulator.world.outcome import Collector, Observer, Outcome, Rejected, Served, Step
from steersman_simulator.world.requests import Live
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.steering import HELLO_INTERVAL_S, Launched, Link, Sidecar, Steering

__all__ = ["Arm", "Change", "Outcome", "Served", "Step", "World"]


class Change(Struct, frozen=True):
    """From `at_s` after the start of its arm on, this policy plans."""

    at_s: Seconds
    policy: Name
    params: dict[str, Any] = {}


class Arm(Struct, frozen=True):
    """A workload and the policies that serve it; the first change is at 0.

    Arrivals come in order of time and are taken one by one, so they need not fit into memory.
    """

    name: Name
    arrivals: Iterable[Arrival]
    changes: tuple[Change, ...] = ()


class World:
    """Engines, one sidecar, one clock that starts at `started.at_s`.

    Without `started` there is no controller: every engine drafts to `fixed_k`. `truth` may be a sequence of
    (seconds of the arm, truth), the first at 0, and `acceptance` one for each
    engine. Without an `observer` everything is kept in the `Outcome`.
    """

    def __init__(
        self,
        *,
        started: Started | None,
        hello: Hello,
        shape: Shape,
        truth: Truth | Sequence[tuple[float, Truth]],
        acceptance: Acceptance | Sequence[Acceptance],
        seed: int = 0,
        settle_s: float = 0.0,
        cluster: Cluster = Cluster(),  # noqa: B008 - frozen
        fixed_k: int = 0,
        observer: Observer | None = None,
        keeps_events: bool = True,
    ) -> None:
        self.env = simpy.Environment(initial_time=started.at_s if started is not None else 0.0)
        self._truths = tuple(truth) if isinstance(truth, Sequence) else ((0.0, truth),)
        if [at_s for at_s, _ in self._truths] != sorted({0.0, *(at_s for at_s, _ in self._truths)}):
            raise ValueError("truth: the moments of its changes must begin at 0 and ascend")
        own = tuple(acceptance) if isinstance(acceptance, Sequence) else (acceptance,) * cluster.engines
        if len(own) != cluster.engines:
            raise ValueError(f"acceptance: {len(own)} of them for {cluster.engines} engines")
        self._acceptance = own
        self._random, self._seed = seed, mix(seed, 2)
        self._cluster = cluster
        self._settle_s = settle_s
        self._collector = Collector()
        self._observer: Observer = self._collector if observer is None else observer
        self.sidecar: Sidecar | None = None
        self.links: list[Steering] = []
        if started is not None:
            self.sidecar = Sidecar(started, keeps_events=keeps_events)
            self._interval_s = started.config.plan_interval_s
        self.engines = [self._engine(number, hello, shape, fixed_k) for number in range(cluster.engines)]
        self._steps: list[Steps] = [Ranks(self.engines)] if cluster.lockstep else [*self.engines]
        self._work = [self.env.event() for _ in self._steps]
        self._drained = self.env.event()
        self._arm, self._arm_start_s = 0, self.env.now
        self._arrived = self._in_arm = self._unfinished = self._finished = 0
        self._all_came = True
        self._rejected: list[Rejected] = []
        self._started_s: list[float] = []
        self._ended_s: list[float] = []

    def _engine(self, number: int, hello: Hello, shape: Shape, fixed_k: int) -> Engine:
        engine_id = engine_ids(self._cluster)[number]
        link: Link = Launched(fixed_k)
        if self.sidecar is not None:
            link = Steering(self.sidecar, hello, engine_id)
            self.links.append(link)
        batch = Batch(
            shape,
            partial(self._drafts, self._acceptance[number]),
            k_max=hello.k_max,
            keeps_deliveries=self._observer.wants_deliveries,
            makes_reports=link.wants_reports or self._observer.wants_steps,
        )
        words = (1, number) if number else (1,)
        seconds = self._truths[0][1].sampler(stream(self._random, *words))
        return Engine(number, batch, link, seconds, self._observer)

    def _drafts(self, acceptance: Acceptance, live: Live, now_s: float) -> DraftTable | None:
        # Drafts depend on the place in the arm, so that every arm meets the same requests.
        return acceptance.table(live.arrival, live.place, self._seed, now_s - self._arm_start_s)

    def run(self, arms: Sequence[Arm], *, horizon_s: float | None = None) -> Outcome:
        """Serve every arm; a world is run once. With a horizon, stop there whatever is unfinished."""
        for link in self.links:
            for process in (self._greet(link), self._tick(link), self._renew(link)):
                self.env.process(process)
        for number, steps in enumerate(self._steps):
            self.env.process(self._serve(number, steps))
        done = self.env.process(self._experiment(arms))
        if horizon_s is None:
            self.env.run(until=done)
        else:
            self.env.run(until=self.env.any_of([done, self.env.timeout(horizon_s)]))
        running = sorted(live.ordinal for engine in self.engines for live in engine.batch.requests)
        self._check(len(running))
        return Outcome(
            served=tuple(self._collector.served),
            running=tuple(running),
            steps=tuple(self._collector.steps),
            spans=tuple(zip(self._started_s, [*self._ended_s, self.env.now], strict=False)),
            events=tuple(self.sidecar.events) if self.sidecar is not None else (),
            rejected=tuple(self._rejected),
            arrived=self._arrived,
        )

    def _check(self, running: int) -> None:
        """Conservation: nobody got lost or was invented, and no slot or block leaked."""
        known = self._finished + len(self._rejected) + running
        assert known == self._arrived, f"{self._arrived} requests arrived, {known} are accounted for"
        for engine in self.engines:
            engine.batch.check()

    def _experiment(self, arms: Sequence[Arm]) -> ProcessGenerator:
        for index, arm in enumerate(arms):
            self._arm, self._arm_start_s = index, self.env.now
            self._started_s.append(self.env.now)
            self._observer.on_arm(index)
            self._all_came, self._in_arm = False, 0
            self._drained = self.env.event()
            self.env.process(self._change(arm.changes))
            self.env.process(self._vary())
            self.env.process(self._arrive(arm.arrivals))
            yield self._drained
            self._ended_s.append(self.env.now)
            yield self.env.timeout(self._settle_s)

    def _change(self, changes: Sequence[Change]) -> ProcessGenerator:
        start_s = self.env.now
        if changes and not self.links:
            raise ValueError("arm: changes of the policy need a controller")
        for change in sorted(changes, key=lambda c: c.at_s):
            if change.at_s:
                yield self.env.timeout(max(0.0, start_s + change.at_s - self.env.now))
            for link in self.links:
                link.set_policy(change.policy, change.params, self.env.now)
            # A push is answered by a plan at once, so that no step of the arm runs under the old one.
            for link in self.links:
                link.tick(self.env.now)
        yield self.env.timeout(0.0)

    def _vary(self) -> ProcessGenerator:
        """Let the truth change as time goes by; an arm that has drained is varied no more."""
        start_s, arm = self.env.now, self._arm
        several = len(self._truths) > 1
        moments = [(at_s, index) for index, (at_s, _) in enumerate(self._truths) if several]
        redrafts = dict.fromkeys(at_s for own in self._acceptance for at_s in own.changes())
        moments += [(at_s, -1) for at_s in redrafts]
        for at_s, index in sorted(moments):
            if start_s + at_s > self.env.now:
                yield self.env.timeout(start_s + at_s - self.env.now)
            if self._arm != arm:
                return
            for engine in self.engines:
                if index < 0:
                    engine.batch.redraft(self.env.now)
                else:
                    words = (1, engine.number, arm, index)
                    engine.seconds = self._truths[index][1].sampler(stream(self._random, *words))
        yield self.env.timeout(0.0)

    def _arrive(self, arrivals: Iterable[Arrival]) -> ProcessGenerator:
        start_s = self.env.now
        for arrival in arrivals:
            wait_s = start_s + arrival.at_s - self.env.now
            if wait_s > 0.0:
                yield self.env.timeout(wait_s)
            self._take(arrival)
        self._all_came = True
        if not self._unfinished:
            self._drained.succeed()
        yield self.env.timeout(0.0)

    def _take(self, arrival: Arrival) -> None:
        """A request comes: it is refused, or waits at the engine that the router chose."""
        ordinal, place = self._arrived, self._in_arm
        self._arrived, self._in_arm = ordinal + 1, place + 1
        batches = [engine.batch for engine in self.engines]
        number = route(self._cluster, batches, place) if len(batches) > 1 else 0
        reason = batches[number].refusal(arrival)
        if reason:
            self._rejected.append(Rejected(self._arm, ordinal, reason))
            self._observer.on_reject(ordinal, reason)
            return
        self._unfinished += 1
        batches[number].arrive(Live(ordinal, self._arm, arrival, self.env.now, place))
        work = self._work[0 if self._cluster.lockstep else number]
        if not work.triggered:
            work.succeed()

    def _serve(self, number: int, steps: Steps) -> ProcessGenerator:
        env, now_s = self.env, self.env.now
        while True:
            if steps.idle:
                self._work[number] = env.event()
                yield self._work[number]
                now_s = env.now
            verify_s = steps.verify(now_s)
            now_s += verify_s
            if now_s >= env.peek():
                yield env.timeout(now_s - env.now)
                now_s = env.now
            done = steps.commit(now_s, verify_s)
            self._finished += done
            draft_s, other_s = steps.draft()
            now_s += draft_s + other_s
            if now_s >= env.peek():
                yield env.timeout(now_s - env.now)
                now_s = env.now
            steps.end(now_s, draft_s, other_s)
            self._unfinished -= done
            if done and not self._unfinished and self._all_came:
                # Others are woken by this, and must find the clock where this engine is.
                yield env.timeout(max(0.0, now_s - env.now))
                now_s = env.now
                self._drained.succeed()

    def _greet(self, link: Steering) -> ProcessGenerator:
        while True:
            link.send(link.hello, self.env.now)
            yield self.env.timeout(HELLO_INTERVAL_S)

    def _tick(self, link: Steering) -> ProcessGenerator:
        while True:
            link.tick(self.env.now)
            yield self.env.timeout(self._interval_s)

    def _renew(self, link: Steering) -> ProcessGenerator:
        while True:
            link.renew(self.env.now)
            yield self.env.timeout(LEASE_INTERVAL_S)
