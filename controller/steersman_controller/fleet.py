"""All controllers of a sidecar, changed by events and by nothing else."""

import math
from collections.abc import Mapping
from typing import Any

from steersman_controller.belief.prior import choose
from steersman_controller.core import Controller
from steersman_controller.events import (
    Alarmed,
    Event,
    ModeSet,
    PolicySet,
    Received,
    Restored,
    Started,
    Ticked,
)
from steersman_controller.peers import Health, examine
from steersman_controller.stream import Stream
from steersman_policies import policy as policies
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import Hello
from steersman_policies.plan import Plan

LOOK_INTERVAL_S = 1.0
"""Between two comparisons of the engines."""


class Fleet:
    """Controllers by engine id. Raises ValueError where the policy of `started` is none."""

    def __init__(self, started: Started) -> None:
        self.started = started
        self.controllers: dict[str, Controller] = {}
        self.streams: dict[str, Stream] = {}
        policies.load(started.policy, started.params)
        self._policy: tuple[str, Mapping[str, Any]] = (started.policy, started.params)
        self._mode = started.config.mode
        self._just_ticked: Ticked | None = None
        self.health: dict[str, Health] = {}
        """By engine, as of the last look."""
        self._looked_at_s = -math.inf

    @property
    def before_hello(self) -> int:
        """Records that came before their engine's first hello of a boot: not applied."""
        return sum(stream.before_hello for stream in self.streams.values())

    def frames(self, engine_id: str) -> int:
        """Frames of an engine that counted."""
        stream = self.streams.get(engine_id)
        return 0 if stream is None else stream.frames

    def apply(self, event: Event) -> Plan | None:
        """Change what the event changes; the plan that has to be sent because of it, if any.

        Raises ValueError, with nothing changed, where an operator asks for what does not exist.
        """
        match event:
            case Received():
                return self._received(event)
            case Ticked():
                return self._ticked(event)
            case PolicySet():
                self._set_policy(event)
            case ModeSet():
                self._set_mode(event)
            case Restored():
                self._one(event.engine_id).restore(event.snapshot)
            case Alarmed():
                pass  # it says what the fleet found by itself
            case Started():
                raise ValueError("recording: a sidecar starts once, found a second start")
        return None

    def tick(self, engine_id: str, now_s: float) -> Ticked:
        """Ask a controller for a plan: the event to journal, already applied.

        Applying that very object once more does nothing and returns its plan.
        """
        controller = self.controllers.get(engine_id)
        if len(self.controllers) > 1 and now_s - self._looked_at_s >= LOOK_INTERVAL_S:
            self._look(now_s)
        plan = controller.plan(now_s) if controller is not None else None
        self._just_ticked = Ticked(at_s=now_s, engine_id=engine_id, plan=plan)
        return self._just_ticked

    def _look(self, now_s: float) -> None:
        """Compare the engines, and let what is known of the healthy ones be what the others start from."""
        self._looked_at_s = now_s
        self.health = examine(self.controllers)
        for engine_id, health in self.health.items():
            self.controllers[engine_id].fleet_acceptance = health.peers

    def _ticked(self, event: Ticked) -> Plan | None:
        if event is self._just_ticked:
            self._just_ticked = None
            return event.plan
        return self.tick(event.engine_id, event.at_s).plan

    def _received(self, event: Received) -> Plan | None:
        stream = self.streams.get(event.engine_id)
        if stream is None:
            stream = self.streams[event.engine_id] = Stream()
        boots = stream.boots
        if not stream.accept(event):
            return None
        controller = self.controllers.get(event.engine_id)
        if controller is not None and stream.boots > boots:
            controller.restarted()
        if isinstance(event.record, Hello):
            return self._hello(event.engine_id, event.record, event.at_s)
        self.controllers[event.engine_id].observe(event.record, event.at_s)
        return None

    def _hello(self, engine_id: str, hello: Hello, at_s: float) -> Plan | None:
        """The plan that the engine does not have yet, if there is one."""
        fingerprint = fingerprint_digest(hello.fingerprint)
        controller = self.controllers.get(engine_id)
        if controller is None or not _fits(controller, hello, fingerprint):
            controller = self._replace(engine_id, hello, fingerprint)
        controller.observe(hello, at_s)
        plan = controller.plan_in_force
        # A plan of another mode is about to be replaced: a sidecar in shadow never sends one that steers.
        if plan is None or plan.mode != controller.mode or plan.plan_id in controller.acks:
            return None
        return plan

    def _replace(self, engine_id: str, hello: Hello, fingerprint: str) -> Controller:
        """A controller that knows no more than a prior; an operator's choices for this engine stay."""
        old = self.controllers.get(engine_id)
        name, params = self._policy
        planner = policies.load(name, params) if old is None else old.policy
        controller = Controller(
            hello,
            fingerprint,
            planner,
            self.started.config,
            choose(self.started.priors, engine_id, hello.fingerprint),
            policy_name=name if old is None else old.policy_name,
            after_plan_id=0 if old is None else old.last_plan_id,
        )
        controller.mode = self._mode if old is None else old.mode
        self.controllers[engine_id] = controller
        return controller

    def _set_policy(self, event: PolicySet) -> None:
        planner = policies.load(event.policy, event.params)
        for controller in self._chosen(event.engine_id):
            controller.set_policy(planner, event.policy)
        if not event.engine_id:
            self._policy = (event.policy, event.params)

    def _set_mode(self, event: ModeSet) -> None:
        for controller in self._chosen(event.engine_id):
            controller.set_mode(event.mode)
        if not event.engine_id:
            self._mode = event.mode

    def _chosen(self, engine_id: str) -> list[Controller]:
        return [self._one(engine_id)] if engine_id else list(self.controllers.values())

    def _one(self, engine_id: str) -> Controller:
        if engine_id not in self.controllers:
            known = ", ".join(sorted(self.controllers)) or "none"
            hint = policies.did_you_mean(engine_id, self.controllers)
            raise ValueError(f"engine: no {engine_id!r}{hint}; connected: {known}")
        return self.controllers[engine_id]


def _fits(controller: Controller, hello: Hello, fingerprint: str) -> bool:
    """Whether what the controller has learned is about this engine."""
    sizes = (controller.hello.k_max, controller.hello.max_batch)
    return controller.fingerprint == fingerprint and sizes == (hello.k_max, hello.max_batch)
