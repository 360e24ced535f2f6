"""The sidecar on a virtual clock: the real `Fleet` and the real `Executor`, joined without a socket.

Whatever happens here is an event that can also be kept, so a simulated run is a recording like any
other. Nothing of the truth is reachable from here.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from steersman_controller.events import Event, PolicySet, Received, Started
from steersman_controller.fleet import Fleet
from steersman_policies.codec import FromEngine, fingerprint_digest
from steersman_policies.executor import Decision, Executor, Load
from steersman_policies.messages import Hello, Lease
from steersman_policies.plan import Plan

HELLO_INTERVAL_S = 1.0
LEASE_S = 1.0


class Sidecar:
    """One fleet, and every event that changed it, where they are kept."""

    def __init__(self, started: Started, *, keeps_events: bool) -> None:
        self.fleet = Fleet(started)
        self.events: list[Event] = [started]
        self._keeps_events = keeps_events

    def apply(self, event: Event) -> Plan | None:
        """Change the fleet."""
        if self._keeps_events:
            self.events.append(event)
        return self.fleet.apply(event)


class Link(Protocol):
    """What an engine asks for K, and tells its records."""

    wants_reports: bool

    def committed(self, tokens: int, decode_requests: int) -> None:
        """What the last step brought."""
        ...

    def decide(self, load: Load, now_s: float) -> Decision:
        """K by segment."""
        ...

    def send(self, record: FromEngine, now_s: float) -> None:
        """A record of the engine."""
        ...


class Steering:
    """One engine's link to the sidecar."""

    wants_reports = True

    def __init__(self, sidecar: Sidecar, hello: Hello, engine_id: str) -> None:
        self.hello = hello
        self.engine_id = engine_id
        self.sidecar = sidecar
        self.executor = Executor(hello, fingerprint_digest(hello.fingerprint))
        self.committed = self.executor.committed
        self.decide = self.executor.decide
        self._sequence = 0

    def send(self, record: FromEngine, now_s: float) -> None:
        """A record reaches the fleet; a plan that comes back reaches the executor."""
        event = Received(now_s, self.engine_id, 1, self._sequence, 0, record)
        self._sequence += 1
        self._adopt(self.sidecar.apply(event), now_s)

    def tick(self, now_s: float) -> None:
        """The fleet may make a plan."""
        self._adopt(self.sidecar.apply(self.sidecar.fleet.tick(self.engine_id, now_s)), now_s)

    def renew(self, now_s: float) -> None:
        """A lease arrives for the plan that the engine is known to follow."""
        plan_id = self.sidecar.fleet.controllers[self.engine_id].leased_plan_id
        if plan_id is not None:
            self.executor.renew(Lease(plan_id, LEASE_S), now_s)

    def set_policy(self, policy: str, params: Mapping[str, Any], now_s: float) -> None:
        """An operator pushes a policy."""
        self.sidecar.apply(PolicySet(now_s, self.engine_id, policy, dict(params)))

    def _adopt(self, plan: Plan | None, now_s: float) -> None:
        if plan is not None:
            self.send(self.executor.adopt(plan), now_s)


class Launched:
    """No sidecar: the engine drafts as it was launched, and tells nobody."""

    wants_reports = False

    def __init__(self, k: int) -> None:
        self._k = k
        self._decision = Decision({}, 0, "launch", False)

    def committed(self, tokens: int, decode_requests: int) -> None:
        """Nobody asks."""

    def decide(self, load: Load, now_s: float) -> Decision:
        """Always the same K."""
        if self._decision.proposal_length.keys() != load.decode_requests.keys():
            self._decision = Decision(dict.fromkeys(load.decode_requests, self._k), 0, "launch", False)
        return self._decision

    def send(self, record: FromEngine, now_s: float) -> None:
        """Nobody listens."""
