"""One controller for one engine: what it tells goes in, plans come out.

No clock, no thread, no socket and no chance of its own in here: time is an argument, and what looks
like chance is a hash of the seed and a count. The sidecar and the simulator run this same object.
"""

from collections import Counter
from functools import lru_cache
from typing import Literal

import msgspec

from steersman_controller.belief.belief import Belief
from steersman_controller.belief.clock import EngineClock
from steersman_controller.belief.estimate import PRIOR, Estimate
from steersman_controller.belief.prior import NOTHING, Chosen
from steersman_controller.belief.requests import Requests
from steersman_controller.events import ControllerConfig
from steersman_controller.request_spread import RequestSpread, alike, is_decided
from steersman_controller.restart import Restart, compare
from steersman_controller.snapshot import Contents, same_shape, seal, unseal
from steersman_controller.status import Status, Variation
from steersman_policies import policy as policies
from steersman_policies.codec import FromEngine
from steersman_policies.executor import mix
from steersman_policies.messages import Hello, PlanAck, RequestReport, StepReport
from steersman_policies.plan import Plan, refusal
from steersman_policies.policy import Memory, Planner
from steersman_policies.view import SegmentBelief, View

CLOCK_GRAIN_S = 1e-6
"""Two clock readings that differ by one interval may fall short of it by rounding."""


class Controller:
    """Learns in every mode; plans at most every `config.plan_interval_s`."""

    def __init__(
        self,
        hello: Hello,
        fingerprint: str,
        policy: Planner,
        config: ControllerConfig,
        chosen: Chosen = NOTHING,
        *,
        policy_name: str = "",
        after_plan_id: int = 0,
    ) -> None:
        self.hello = hello
        self.fingerprint = fingerprint
        self.config = config
        self.mode: Literal["shadow", "steer"] = config.mode
        self.policy = policy
        self.policy_name = policy_name or type(policy).__module__.rpartition(".")[2]
        self.memory: Memory = {}
        self.plan_in_force: Plan | None = None
        """The newest plan; the engine may not have acknowledged it yet."""
        self.acks: dict[int, PlanAck] = {}
        """Last answer of the engine, by plan id; only the newest few are kept."""
        self.leased_plan_id: int | None = None
        """The last plan that the engine put in force: the one to lease."""
        self.counters: Counter[str] = Counter()
        self.chosen = chosen
        """The prior that the belief began with, and why that one."""
        self.belief = Belief(hello, chosen.prior)
        self.requests = Requests()
        self.fleet_acceptance: Estimate = PRIOR
        """What the beliefs about this engine lean on."""
        self.last_report: StepReport | None = None
        self.last_plan_id = after_plan_id
        self._plans = 0
        self._planned_at_s: float | None = None
        self._heard_at_s: float | None = None
        self._reissue = False
        self._checked_for: Hello | None = None
        """As which the engine can follow the plan in force."""
        self._afresh = True
        self._alarms = 0
        """Alarms of the belief that a plan has taken note of."""
        self._clock = EngineClock()

    def observe(self, record: FromEngine, now_s: float) -> None:
        """Learn from a record of the engine. Reports that contradict themselves are counted and ignored."""
        self._heard_at_s = now_s
        match record:
            case StepReport():
                self._observe_step(record, now_s)
            case PlanAck():
                self._observe_ack(record)
            case RequestReport():
                self._observe_request(record)
            case Hello():
                self.hello = record

    def due(self, now_s: float) -> bool:
        """Whether it is time to plan: `plan` changes nothing before."""
        planned_at_s = self._planned_at_s
        return planned_at_s is None or now_s - planned_at_s >= self.config.plan_interval_s - CLOCK_GRAIN_S

    def plan(self, now_s: float) -> Plan | None:
        """The next plan; None when none is due or the plan in force says the same."""
        if not self.due(now_s):
            return None
        self._planned_at_s = now_s
        self._plans += 1
        asked = self._ask(now_s)
        if asked is None:
            return None
        plan, self.memory = asked
        old = self.plan_in_force
        if old is not None and not self._reissue and _same(plan, old):
            return None
        self._reissue = False
        self.last_plan_id = plan.plan_id
        self.plan_in_force = plan
        self.counters["plans"] += 1
        return plan

    def set_policy(self, policy: Planner, name: str) -> None:
        """Plan with another policy from the next `plan` on, which is due at once."""
        self.policy, self.policy_name = policy, name
        self.memory = {}
        self._decide_afresh()

    def set_mode(self, mode: Literal["shadow", "steer"]) -> None:
        """Only watch, or act, from the next `plan` on, which is due at once."""
        self.mode = mode
        self._decide_afresh()

    def restarted(self) -> None:
        """The same engine booted again: what was learned stays, its clock and its plan are gone."""
        self.belief.restarted()
        self._clock = EngineClock()
        self.acks.clear()
        self.leased_plan_id = None
        self.last_report = None
        self.counters["restarts"] += 1

    def counted(self) -> Counter[str]:
        """The counters, up to the newest report."""
        self.belief.fold()
        self.counters["reports_refused"] += self.belief.refused
        self.belief.refused = 0
        return self.counters

    def view(self, now_s: float) -> View:
        """What a planner may know now."""
        load, hello = self.belief.load, self.hello
        return View(
            now_s=now_s,
            hello=hello,
            fingerprint=self.fingerprint,
            mode=self.mode,
            next_plan_id=self.last_plan_id + 1,
            seed=self.config.seed,
            cost=self.belief.cost.compile(load.prefill_tokens),
            segments=self.segments(),
            mean_requests=load.mean_requests,
            mean_context_tokens=load.mean_context_tokens,
            prefill_tokens=load.prefill_tokens,
            afresh=self._afresh or self.belief.alarms.total() > self._alarms,
            batch_edges=batch_edges(hello.max_batch),
            context_edges=self.config.context_edges,
            previous=self.plan_in_force,
            segmenter=self.config.segmenter,
            slo=self.config.slo,
        )

    def segments(self) -> tuple[SegmentBelief, ...]:
        """Belief about each known segment, `unknown` included, by name."""
        return self.belief.segments(self.fleet_acceptance)

    def restart(self) -> Restart | None:
        """How a launch without any drafter would do at the present load; None where nobody measured one."""
        prior = self.chosen.prior
        load = self.belief.load
        if prior is None or load.mean_requests <= 0.0:
            return None
        cost = self.belief.cost.compile(load.prefill_tokens)
        return compare(prior, cost, self.segments(), self.hello.reachable_k, load)

    def variation(self) -> dict[str, Variation]:
        """How drafts vary, by segment, where anything of it was measured."""
        bursts = self.belief.bursts()
        spreads = {name: shown for name, sums in self._spreads().items() if (shown := sums.shown())}
        found: dict[str, Variation] = {}
        for name in sorted(bursts.keys() | spreads.keys()):
            autocorrelation, dispersion = bursts.get(name, (None, None))
            found[name] = Variation(autocorrelation, dispersion, spreads.get(name))
        return found

    def _spreads(self) -> dict[str, RequestSpread]:
        """How requests differ, by segment that is known to the belief."""
        rows = self.belief.load.rows
        return {name: sums for name, sums in self.requests.spreads.items() if name in rows}

    def status(self, now_s: float) -> Status:
        """What to show."""
        return Status(
            mode=self.mode,
            policy=self.policy_name,
            policy_version=self.policy.version,
            params=msgspec.to_builtins(self.policy),
            fingerprint=self.fingerprint,
            plan=self.plan_in_force,
            leased_plan_id=self.leased_plan_id,
            last_ack=next(reversed(self.acks.values()), None),
            errors=self.belief.cost.errors(),
            first_after_switch_s=self.belief.cost.first_after_switch_s,
            segments=self.segments(),
            variation=self.variation(),
            alike=alike(self._spreads()),
            mean_requests=self.belief.load.mean_requests,
            mean_context_tokens=self.belief.load.mean_context_tokens,
            prior=self.chosen.text,
            restart=self.restart(),
            silent_s=None if self._heard_at_s is None else now_s - self._heard_at_s,
            counters=dict(self.counted()),
        )

    def snapshot(self) -> bytes:
        """Everything learned, as bytes that `restore` checks. Equal controllers, equal bytes."""
        belief = self.belief.state()
        contents = Contents(
            hello=self.hello,
            mode=self.mode,
            policy=self.policy_name,
            params=msgspec.to_builtins(self.policy),
            memory=dict(self.memory),
            plan=self.plan_in_force,
            plan_id=self.last_plan_id,
            plans=self._plans,
            chosen=self.chosen,
            belief=belief,
            requests=self.requests.spreads,
            counters=dict(self.counted()),
        )
        return seal(contents, self.fingerprint)

    def restore(self, snapshot: bytes) -> None:
        """Continue where a snapshot was taken; the next plan is due at once and is issued anew.

        A pause survives; but a controller configured for shadow never inherits steering. Raises
        ValueError in one line, before anything changes, where the snapshot is damaged, of another
        engine, or names a policy that is not installed.
        """
        contents = unseal(snapshot, self.fingerprint)
        policy = policies.load(contents.policy, contents.params)
        if contents.hello.k_max != self.hello.k_max:
            raise ValueError(f"snapshot: k_max {contents.hello.k_max}, this engine has {self.hello.k_max}")
        belief = Belief(self.hello, contents.chosen.prior)
        if not same_shape(contents.belief, belief.state()):
            raise ValueError(
                f"snapshot: max_batch {contents.hello.max_batch}, this engine has {self.hello.max_batch}"
            )
        # What was learned leans on the prior that it began with, whatever this sidecar was given.
        self.chosen, self.belief = contents.chosen, belief
        self.belief.restore(contents.belief)
        self.requests.spreads = contents.requests
        self.policy, self.policy_name, self.memory = policy, contents.policy, contents.memory
        self.mode = contents.mode if self.config.mode == "steer" else "shadow"
        self.plan_in_force = contents.plan
        self.last_plan_id, self._plans = max(contents.plan_id, self.last_plan_id), contents.plans
        self.counters = Counter(contents.counters)
        self._decide_afresh()
        self._reissue = True

    def _ask(self, now_s: float) -> tuple[Plan, Memory] | None:
        """What the planner says; None, counted, where an installed policy of others fails."""
        chance = min(mix(self.config.seed, self._plans) * 2.0**-64, 1.0 - 2.0**-53)
        # Now, when all reports are learned from anyway: it takes that, which is too dear for every request.
        for segment, spread in self.requests.spreads.items():
            self.belief.differ(segment, spread.wander)
        view = self.view(now_s)
        try:
            plan, memory = self.policy.plan(view, self.memory, chance)
            known = (
                self._checked_for is self.hello and view.previous is not None and _same(plan, view.previous)
            )
            reason = None if known else refusal(plan, self.hello, self.fingerprint)
        except Exception:  # whatever it is, the plan in force stays
            self.counters["planner_errors"] += 1
            return None
        if reason is not None or plan.plan_id != view.next_plan_id:
            self.counters["plans_unfit"] += 1
            return None
        self._checked_for = self.hello
        self._afresh, self._alarms = False, self.belief.alarms.total()
        return plan, memory

    def _decide_afresh(self) -> None:
        self._planned_at_s = self._checked_for = None
        self._afresh = True

    def _observe_step(self, report: StepReport, now_s: float) -> None:
        self.counters["reports"] += 1
        self.last_report = report
        match self._clock.read(report.started_s, report.busy_s, now_s):
            case "impossible":
                self.counters["reports_refused"] += 1
                return
            case "stepped":
                self.counters["clock_steps"] += 1
                self.belief.restarted()
        self.belief.observe(report)

    def _observe_request(self, report: RequestReport) -> None:
        if not self.requests.learn(report):
            self.counters["reports_refused"] += 1
            return
        self.counters["requests"] += 1
        if not is_decided(report):
            self.counters["requests_undecided"] += 1

    def _observe_ack(self, ack: PlanAck) -> None:
        self.counters["acks" if ack.applied else "nacks"] += 1
        self.acks.pop(ack.plan_id, None)
        self.acks[ack.plan_id] = ack
        while len(self.acks) > 16:
            del self.acks[next(iter(self.acks))]
        if ack.applied:
            self.leased_plan_id = ack.plan_id
        elif self.plan_in_force is not None and ack.plan_id == self.plan_in_force.plan_id:
            self._reissue = True


@lru_cache(maxsize=16)
def batch_edges(max_batch: int) -> tuple[int, ...]:
    """Right ends of the batch buckets of a plan, finer where batches are small.

    >>> batch_edges(16), batch_edges(1)
    ((1, 2, 3, 4, 6, 8, 12), ())
    """
    edges, power = [1, 2], 2
    while edges[-1] < max_batch:
        edges += [power + power // 2, power * 2]
        power *= 2
    return tuple(edge for edge in edges if edge < max_batch)


def _same(plan: Plan, other: Plan) -> bool:
    return msgspec.structs.replace(plan, plan_id=other.plan_id) == other
