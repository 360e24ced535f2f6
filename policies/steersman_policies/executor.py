"""The inner loop: which K each segment gets in this step. Runs inside the engine, in microseconds.

The order of the rules is fixed, and the first three bypass dwell:

1. guard    nothing was committed for a while: K = the engine's floor
2. pause    an operator said so: the launch setting
3. lease    no valid lease: the fallback table (the launch setting where there is none)
4. deficit  a segment behind its SLO uses the deficit table
5. dwell    a K that was changed a moment ago stays (not as long against lowering as against raising)
6. explore  with a small, replayable probability one segment tries another K (all of them together where
            the engine has one K for a whole step)
7. table    what the plan says

Threads: `decide` and `committed` belong to the engine's thread; `adopt`, `renew` and `pause` may be
called from another one. They publish by replacing one reference, so a decision sees either the old
state or the new one, never a mixture.
"""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from steersman_policies.messages import Hello, Lease, PlanAck
from steersman_policies.plan import Explore, KTable, Plan, bucket, refusal
from steersman_policies.units import UNKNOWN_SEGMENT, Count, Name, ProposalLength

BARREN_STEPS = 32
"""After this many steps in which live requests committed nothing, the guard switches drafting off."""


class Load(Struct, frozen=True, gc=False):
    """How busy the engine is, taken after the batch was composed."""

    step: int
    decode_requests: Mapping[str, int]
    """Live decode requests by segment."""
    mean_context_tokens: float
    prefill_tokens: int
    waiting: int
    deficit: Mapping[str, int] = {}
    """Requests behind their SLO by segment."""
    launch_k: int | None = None
    """What the engine would do by itself in this step; None: what its `Hello` says."""


class Decision(Struct, frozen=True, gc=False):
    """K by segment, for every segment in the load."""

    proposal_length: dict[str, int]
    """Not to be changed: the next decision may be the same object."""
    plan_id: int
    reason: str
    switched: bool
    """Some segment's K differs from its K in the step before."""
    explored: bool = False
    probability: float = 1.0
    """P(this decision | load, plan)."""
    would_be: dict[str, int] = {}
    """In shadow mode: what steering would have chosen."""


class Fallback(Struct, frozen=True):
    """The table an engine keeps for the time without a lease; also what it writes to disk."""

    fingerprint: Name
    batch_edges: tuple[Count, ...]
    proposal_length: tuple[ProposalLength, ...]

    def at(self, batch: int) -> int:
        """K for this many live decode requests."""
        return self.proposal_length[bucket(self.batch_edges, batch)]


_Place: TypeAlias = tuple[int, int, bool]
"""Batch bucket, context bucket, and whether the step carries prefill: which cell speaks."""


class _LookedUp(Struct, frozen=True, gc=False):
    """What a plan says, by place, for the segments that were live there the last time."""

    plan: Plan | None = None
    chance: int = 0
    """The plan's share of the hash that exploration draws from."""
    decisions: dict[_Place, Decision] = {}
    """As if every K were in force already."""


class Executor:
    """Follows a plan under a lease. Never raises for anything the sidecar sent."""

    def __init__(self, hello: Hello, fingerprint: str, fallback: Fallback | None = None) -> None:
        self.hello = hello
        self.fingerprint = fingerprint
        self.fallback = fallback
        self.plan: Plan | None = None
        self.paused = False
        self.lease_until_s = 0.0
        """From this moment on the plan may not be followed."""
        self._barren_steps = 0
        self._held: dict[str, int] = {}
        """The K that each segment has now."""
        self._since: dict[str, tuple[int, float]] = {}
        """Step and seconds of its last change."""
        self._looked_up = _LookedUp()

    def adopt(self, plan: Plan) -> PlanAck:
        """Put a plan in force, or refuse it and keep the last good one.

        It is followed under a lease only; one still running for the plan before covers it, too.
        """
        reason = refusal(plan, self.hello, self.fingerprint)
        if reason is None and self.plan is not None and plan.plan_id < self.plan.plan_id:
            reason = f"plan_id: {plan.plan_id} is older than {self.plan.plan_id}"
        if reason is not None:
            return PlanAck(plan_id=plan.plan_id, applied=False, reason=reason[:256])
        if plan.mode == "steer":
            self.fallback = Fallback(self.fingerprint, plan.batch_edges, plan.fallback)
        self.plan = plan
        return PlanAck(plan_id=plan.plan_id, applied=True)

    def forget(self) -> None:
        """Drop the plan and its lease: a new sidecar counts its plans from the start.

        A plan in shadow takes the fallback with it, so that the launch setting stays until the new
        sidecar says what it is here for.
        """
        self.lease_until_s = 0.0
        if self.plan is not None and self.plan.mode == "shadow":
            self.fallback = None
        self.plan = None

    def renew(self, lease: Lease, now_s: float) -> bool:
        """Extend the permission from `now_s`, the local moment of arrival; False for another plan."""
        plan = self.plan
        if plan is None or lease.plan_id != plan.plan_id:
            return False
        self.lease_until_s = now_s + lease.lease_s
        return True

    def lease_left_s(self, now_s: float) -> float:
        """Seconds for which the plan may still be followed."""
        return max(0.0, self.lease_until_s - now_s)

    def committed(self, tokens: int, decode_requests: int) -> None:
        """Tell the guard what the step brought."""
        if tokens > 0:
            self._barren_steps = 0
        elif decode_requests > 0:
            self._barren_steps += 1

    def decide(self, load: Load, now_s: float) -> Decision:
        """K by segment for the drafts made in this step."""
        # The lease first: one that belongs to a later plan must not cover an earlier one.
        until_s, plan = self.lease_until_s, self.plan
        if self._barren_steps >= BARREN_STEPS and not self._is_shadow(plan):
            return self._uniform(load, self.hello.k_floor, 0, "guard", now_s)
        if self.paused:
            return self._uniform(load, self._launch_k(load), 0, "pause", now_s)
        if plan is None or now_s >= until_s:
            return self._without_lease(load, plan, now_s)
        if self._is_shadow(plan):
            return self._shadow(load, plan, now_s)
        return self._steer(load, plan, now_s)

    def _without_lease(self, load: Load, plan: Plan | None, now_s: float) -> Decision:
        # A sidecar in shadow touches nothing, and so does one that died in shadow.
        if self.fallback is None or self._is_shadow(plan):
            return self._uniform(load, self._launch_k(load), 0, "launch", now_s)
        batch = sum(load.decode_requests.values())
        return self._uniform(load, self.fallback.at(batch), 0, "lease", now_s)

    def _is_shadow(self, plan: Plan | None) -> bool:
        return bool(self.hello.observe_only) or (plan is not None and plan.mode == "shadow")

    def _launch_k(self, load: Load) -> int:
        return self.hello.launch_k if load.launch_k is None else load.launch_k

    def _uniform(self, load: Load, k: int, plan_id: int, reason: str, now_s: float) -> Decision:
        lengths = dict.fromkeys(load.decode_requests, k)
        switched = self._hold(lengths, load.step, now_s)
        return Decision(lengths, plan_id, reason, switched)

    def _shadow(self, load: Load, plan: Plan, now_s: float) -> Decision:
        would_be, _ = self._look_up(plan, load)
        lengths = dict.fromkeys(load.decode_requests, self._launch_k(load))
        switched = self._hold(lengths, load.step, now_s)
        return Decision(lengths, plan.plan_id, "shadow", switched, would_be=would_be)

    def _steer(self, load: Load, plan: Plan, now_s: float) -> Decision:
        said = self._said(load, plan)
        wanted = said.proposal_length
        if wanted.items() <= self._held.items():  # all of them are in force
            return self._explore(said, plan, load.step)
        lengths, reason = wanted.copy(), said.reason
        if self._dwell(lengths, load.step, plan, now_s):
            lengths, reason = self._together(lengths), "dwell"
        switched = self._hold(lengths, load.step, now_s)
        stay = _stay(lengths, plan.explore)
        decision = Decision(lengths, plan.plan_id, reason, switched, probability=stay)
        return self._explore(decision, plan, load.step)

    def _said(self, load: Load, plan: Plan) -> Decision:
        """What the plan says here."""
        looked_up = self._looked_up
        if looked_up.plan is not plan:
            chance = 0 if plan.explore is None else mix(plan.explore.seed, plan.plan_id)
            looked_up = self._looked_up = _LookedUp(plan, chance)
        place = _place(plan, load)
        said = looked_up.decisions.get(place)
        if (
            said is None
            or load.deficit
            or said.reason != "table"
            or said.proposal_length.keys() != load.decode_requests.keys()
        ):
            lengths, reason = self._look_up(plan, load)
            stay = _stay(lengths, plan.explore)
            said = Decision(lengths, plan.plan_id, reason, False, probability=stay)
            looked_up.decisions[place] = said
        return said

    def _look_up(self, plan: Plan, load: Load) -> tuple[dict[str, int], str]:
        lengths, reason = table_lookup(plan, load)
        return self._together(lengths), reason

    def _together(self, lengths: dict[str, int]) -> dict[str, int]:
        """What an engine with one K for all requests of a step makes of these: the longest."""
        if self.hello.per_request_k or not lengths:
            return lengths
        return dict.fromkeys(lengths, max(lengths.values()))

    def _explore(self, decision: Decision, plan: Plan, step: int) -> Decision:
        """Perhaps another K: on one segment, each as likely, or on all where they share one."""
        explore = plan.explore
        if explore is None or decision.probability >= 1.0:
            return decision
        draw = mix(self._looked_up.chance + step)
        if (draw >> 11) * 2.0**-53 >= explore.epsilon:
            return decision
        draw = mix(draw)
        lengths = decision.proposal_length
        segment = list(lengths)[draw % len(lengths)]
        others = [k for k in explore.k_set if k != lengths[segment]]
        if not others:
            return decision
        k = others[(draw >> 32) % len(others)]
        probability = explore.epsilon * others.count(k) / len(others)
        if self.hello.per_request_k:
            tried = {**lengths, segment: k}
            probability /= len(lengths)
        else:
            tried = dict.fromkeys(lengths, k)
        return Decision(tried, plan.plan_id, "explore", decision.switched, True, probability)

    def _dwell(self, lengths: dict[str, int], step: int, plan: Plan, now_s: float) -> bool:
        """Put back every K whose dwell has not passed; whether there was one."""
        dwell, held_back = plan.dwell, False
        for segment, k in lengths.items():
            held = self._held.get(segment)
            if held is None or held == k:
                continue
            since_step, since_s = self._since[segment]
            waited = step - since_step
            if k < held:
                too_soon = waited < min(dwell.lower_steps, dwell.steps)
            else:
                too_soon = waited < dwell.steps or now_s - since_s < dwell.seconds
            if too_soon:
                lengths[segment] = held
                held_back = True
        return held_back

    def _hold(self, lengths: dict[str, int], step: int, now_s: float) -> bool:
        """Remember the K of each segment; whether any changed."""
        switched = False
        for segment, k in lengths.items():
            held = self._held.get(segment)
            if held != k:
                switched = switched or held is not None
                self._held[segment] = k
                self._since[segment] = (step, now_s)
        return switched


def _stay(lengths: Mapping[str, int], explore: Explore | None) -> float:
    """P(no exploration): a segment whose K is all there is to try cannot be moved."""
    if explore is None or not lengths:
        return 1.0
    only = {*explore.k_set}
    movable = sum([not only <= {k} for k in lengths.values()])
    return 1.0 - explore.epsilon * movable / len(lengths)


def _place(plan: Plan, load: Load) -> _Place:
    """Where a step lies in the tables of a plan."""
    batch = bucket(plan.batch_edges, sum(load.decode_requests.values()))
    return batch, bucket(plan.context_edges, load.mean_context_tokens), load.prefill_tokens > 0


def table_lookup(plan: Plan, load: Load) -> tuple[dict[str, int], str]:
    """K by segment as the tables say, and which kind of table spoke."""
    batch, context, has_prefill = _place(plan, load)
    tables, unknown = plan.proposal_length, plan.proposal_length[UNKNOWN_SEGMENT]
    prefill = plan.prefill_proposal_length if has_prefill else {}
    lengths: dict[str, int] = {}
    reason = "table"
    for segment in load.decode_requests:
        table: KTable | None = None
        if load.deficit.get(segment):
            table = plan.deficit_proposal_length.get(segment)
            if table is not None:
                reason = "deficit"
        if table is None:
            table = prefill.get(segment) or tables.get(segment)
        if table is None:
            table = prefill.get(UNKNOWN_SEGMENT) or unknown
        lengths[segment] = table[batch][context]
    return lengths, reason


def mix(*words: int) -> int:
    """A 64-bit hash of integers (splitmix64 finaliser): chance that replays.

    >>> mix(1, 2, 3) == mix(1, 2, 3), mix(1, 2, 3) == mix(1, 2, 4)
    (True, False)
    """
    state = 0
    for word in words:
        state = (state + word + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state
