"""A policy beside a recorded engine: what the real controller and the real executor would have commanded.

The controller learns from what was recorded, plans on the recorded ticks, and its plans go to an executor
of its own that meets the recorded loads. Nothing that it commands reaches anybody.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from steersman_controller.events import Event, ModeSet, PolicySet, Received, Restored, Started, Ticked
from steersman_controller.fleet import Fleet
from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import Decision, Executor, Load
from steersman_policies.messages import Hello, Lease, PlanAck, StepReport
from steersman_policies.plan import Plan, refusal

_LEASE_S = 1.0


class Shadow:
    """One policy, one engine. Raises ValueError for a policy or a parameter that does not exist."""

    def __init__(self, started: Started, engine_id: str, policy: str, params: Mapping[str, Any]) -> None:
        config = replace(started.config, mode="steer")
        self._fleet = Fleet(replace(started, config=config, policy=policy, params=dict(params)))
        self._engine_id = engine_id
        self._policy = policy
        self._params = dict(params)
        self._executor: Executor | None = None
        self._coming: deque[tuple[float, Plan]] = deque()
        """Plans on their way, with the moment from which the engine has them."""
        self.plans = 0

    def apply(self, event: Event) -> None:
        """Let the recorded event happen; what operators chose for the recorded policy is left out."""
        match event:
            case PolicySet() | ModeSet():
                return
            case Ticked(engine_id=to):
                if to == self._engine_id and to in self._fleet.controllers:
                    self._send(self._fleet.tick(to, event.at_s).plan, event.at_s)
            case Received(engine_id=sender, record=PlanAck()) if sender == self._engine_id:
                return  # it answers a plan of the recorded policy
            case Restored():
                self._fleet.apply(event)
                # What was learned came back, but so did the policy that was steering.
                self._fleet.apply(PolicySet(event.at_s, event.engine_id, self._policy, self._params))
                self._fleet.apply(ModeSet(event.at_s, event.engine_id, "steer"))
            case Received(engine_id=sender, record=record):
                self._send(self._fleet.apply(event), event.at_s)
                if sender == self._engine_id and isinstance(record, Hello):
                    self._greet(record)
            case _:
                self._fleet.apply(event)

    def restarted(self) -> None:
        """The engine booted anew, without a plan."""
        self._executor = None
        self._coming.clear()

    def decide(self, step: StepReport, after: StepReport, ended_s: float) -> Decision | None:
        """What it would have commanded in `step`, for the drafts that `after` verified.

        The requests of the load are those that `after` found: the live ones when `step` had committed.
        None before the engine said hello.
        """
        executor = self._executor
        if executor is None:
            return None
        now_s = ended_s - step.draft_s - step.other_s
        while self._coming and self._coming[0][0] <= now_s:
            executor.adopt(self._coming.popleft()[1])
        if executor.plan is not None:
            executor.renew(Lease(executor.plan.plan_id, _LEASE_S), now_s)
        executor.committed(step.committed_tokens, step.decode_requests)
        return executor.decide(_load(step, after), now_s)

    def _greet(self, hello: Hello) -> None:
        digest = fingerprint_digest(hello.fingerprint)
        # An engine that only watched would not have; the question is what if it had followed.
        hello = replace(hello, observe_only="")
        if self._executor is None or self._executor.fingerprint != digest:
            self._executor = Executor(hello, digest)
        self._executor.hello = hello

    def _send(self, plan: Plan | None, at_s: float) -> None:
        if plan is None:
            return
        controller = self._fleet.controllers[self._engine_id]
        reason = refusal(plan, controller.hello, controller.fingerprint)
        controller.observe(PlanAck(plan.plan_id, reason is None, reason or ""), at_s)
        if reason is None:
            self.plans += 1
            self._coming.append((at_s, plan))


def _load(step: StepReport, after: StepReport) -> Load:
    requests = dict.fromkeys(step.commanded, 0)  # in the order in which the recorded executor met them
    for group in after.groups:
        requests[group.segment] = requests.get(group.segment, 0) + group.requests
    requests = {segment: count for segment, count in requests.items() if count}
    count = sum(requests.values())
    # The cache holds all but the newest token of each.
    mean = after.context_tokens / count + 1.0 if count else 0.0
    return Load(step.step, requests, mean, step.prefill_tokens, step.waiting)
