"""The sidecar on a virtual clock: the real `Fleet` and the real `Executor`, joined without a socket.

Whatever happens here is an event that is also logged, so a simulated run is a recording like any
other. Nothing of the truth is reachable from here.
"""

from collections.abc import Mapping
from typing import Any

from steersman_controller.events import Event, PolicySet, Received, Started
from steersman_controller.fleet import Fleet
from steersman_policies.codec import FromEngine, fingerprint_digest
from steersman_policies.executor import Executor
from steersman_policies.messages import Hello, Lease
from steersman_policies.plan import Plan

HELLO_INTERVAL_S = 1.0
LEASE_S = 1.0


class Steering:
    """One engine's link to one fleet."""

    def __init__(self, started: Started, hello: Hello, engine_id: str) -> None:
        self.hello = hello
        self.engine_id = engine_id
        self.fleet = Fleet(started)
        self.executor = Executor(hello, fingerprint_digest(hello.fingerprint))
        self.events: list[Event] = [started]
        self._sequence = 0

    def send(self, record: FromEngine, now_s: float) -> None:
        """A record of the engine reaches the fleet; a plan that comes back reaches the executor."""
        event = Received(now_s, self.engine_id, 1, self._sequence, 0, record)
        self._sequence += 1
        self._adopt(self._apply(event), now_s)

    def tick(self, now_s: float) -> None:
        """The fleet may make a plan."""
        self._adopt(self._apply(self.fleet.tick(self.engine_id, now_s)), now_s)

    def renew(self, now_s: float) -> None:
        """A lease arrives for the plan that the engine is known to follow."""
        plan_id = self.fleet.controllers[self.engine_id].leased_plan_id
        if plan_id is not None:
            self.executor.renew(Lease(plan_id, LEASE_S), now_s)

    def set_policy(self, policy: str, params: Mapping[str, Any], now_s: float) -> None:
        """An operator pushes a policy."""
        self._apply(PolicySet(now_s, self.engine_id, policy, dict(params)))

    def _apply(self, event: Event) -> Plan | None:
        self.events.append(event)
        return self.fleet.apply(event)

    def _adopt(self, plan: Plan | None, now_s: float) -> None:
        if plan is not None:
            self.send(self.executor.adopt(plan), now_s)
