"""What an engine tells the sidecar, and the lease it gets back. `Plan` has a file of its own.

Rules of this file:

- A wire record is also the trace record and the simulator's input, so it holds no prompt text and
  its size is bounded whatever the batch.
- Records are positional arrays on the wire. Fields are only ever appended, with a default: then a
  peer one schema version older or newer still understands the frame.
- One step has two depths. The engine verifies the drafts that it made in the step before, commits
  tokens, then drafts for the next step. `Group` describes what was *verified*;
  `StepReport.drafting_depth` is what was *drafted* in this step.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from steersman_policies.prompt_statistics import PromptStatistics
from steersman_policies.units import (
    K_LIMIT,
    SIGNAL_BINS,
    Count,
    Fraction,
    Name,
    Position,
    ProposalLength,
    Seconds,
    Segment,
    SignalBin,
    TaggedSegment,
)

CONTEXT_EDGES_TOKENS = (256, 1024, 4096, 16384)
"""Right-closed edges of the context buckets in `Group.context_bucket`; the last one is open."""

NO_SPECULATION = "launched without speculation"
"""The one reason in `Hello.observe_only` that is nobody's fault."""

NotDrafted: TypeAlias = Literal["no_match", "grammar", "length_limit", "invalid_state"]

Signal: TypeAlias = Literal["state", "confidence"]
"""What is known about a request before its draft is verified: how its own last drafts went, and how sure the
drafter is. `signals` says what the bins of each are."""


class Fingerprint(Struct, frozen=True, array_like=True):
    """What the learned numbers belong to: another fingerprint turns a model into a prior."""

    engine: Name
    engine_version: Name
    target: Name
    drafter: Name
    drafter_version: Name
    method: Name
    quantisation: Name
    dtype: Name
    device: Name
    graph_mode: Name
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    data_parallel: Count = 1


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """Sent on connect, every second, and when the sidecar turns out to be a new one."""

    fingerprint: Fingerprint
    k_max: ProposalLength
    reachable_k: tuple[ProposalLength, ...]
    """Ascending; every K that the engine can be asked for."""
    k_floor: ProposalLength
    launch_k: ProposalLength
    """The setting the engine was started with: what `pause` puts back."""
    max_batch: Count
    per_request_k: bool
    draft_timing: bool
    confidence: bool
    drafter_state_survives_off: bool
    lockstep_group: Name = ""
    """Ranks that must use the same K in the same step share this name; empty when there is none."""
    counters: dict[str, Count] = {}
    """Monotone since boot: frames dropped, rows refused by reason, plans refused."""
    observe_only: Name = ""
    """Why this engine reports but follows no plan; empty where it follows them."""
    runner: Name = ""
    """How the engine executes steps, where one engine knows several ways."""


class SignalCounts(Struct, frozen=True, array_like=True, gc=False):
    """The drafts of a group by what one signal said of them."""

    signal: Signal
    counts: Annotated[
        tuple[tuple[SignalBin, Position, Count, Count, Count], ...], Meta(max_length=SIGNAL_BINS * K_LIMIT)
    ]
    """Sparse: (bin, position, offered, verified, accepted), numbers of drafts. Offered had a token at this
    position, or would have had one but for a trim that the signal may have decided; verified kept it;
    accepted were accepted up to and with it."""


class Group(Struct, frozen=True, array_like=True, gc=False):
    """What one segment in one context bucket verified in one step."""

    segment: TaggedSegment
    context_bucket: Count
    requests: Count
    commanded_k: ProposalLength
    """The K under which the drafts verified here were made."""
    requests_drafted: Count
    """Requests that had at least one draft token to verify."""
    outcomes: tuple[tuple[ProposalLength, ProposalLength, Count], ...] = ()
    """Sparse counts: (draft tokens verified, accepted, number of requests)."""
    requests_empty: Count = 0
    """Requests that committed nothing."""
    not_drafted: dict[NotDrafted, Count] = {}
    """Why a request in the batch had no draft although K was above 0."""
    signals: tuple[SignalCounts, ...] = ()
    """At most one of each signal; a draft that a signal says nothing of is not in its counts."""


class StepReport(Struct, frozen=True, array_like=True, tag="step", gc=False):
    """One propose-verify-accept round of the whole batch."""

    step: Count
    started_s: Seconds
    """The engine's monotonic clock; only differences mean anything."""
    draft_s: Seconds
    verify_s: Seconds
    other_s: Seconds
    decode_requests: Count
    prefill_tokens: Count
    target_tokens: Count
    """Tokens in the target's forward: decode anchors, draft tokens and prefill tokens."""
    context_tokens: Count
    """Summed over the decode requests."""
    drafting_depth: ProposalLength
    """The longest proposal asked of the drafter in this step; verified in the next one."""
    requests_drafting: Count
    """Requests that the drafter was asked about in this step."""
    waiting: Count
    kv_used_fraction: Fraction
    committed_tokens: Count
    plan_id: Count
    groups: tuple[Group, ...] = ()
    warm_up: bool = False
    graph_capture: bool = False
    preemption: bool = False
    first_after_switch: bool = False
    explored: bool = False
    probability: Fraction = 1.0
    """P(the K commanded in this step | load, plan): makes a recording usable off line."""
    reason: Name = ""
    """Why the executor decided as it did in this step."""
    commanded: dict[TaggedSegment, ProposalLength] = {}
    """The K in force at the end of this step, by segment."""
    would_be: dict[TaggedSegment, ProposalLength] = {}
    """In shadow mode: what the plan would have asked for."""

    @property
    def busy_s(self) -> float:
        """Seconds the engine was occupied by this step."""
        return self.draft_s + self.verify_s + self.other_s

    @property
    def trains(self) -> bool:
        """Whether estimators may learn from this step: a stalled or a special one teaches nothing."""
        special = self.warm_up or self.graph_capture or self.preemption
        return not special and (self.committed_tokens > 0 or self.prefill_tokens > 0)


class RequestReport(Struct, frozen=True, array_like=True, tag="request"):
    """One finished request. TPOT is 0 where there is only one output token."""

    request: Count
    """Ordinal of the request within this boot of the engine."""
    segment: Segment
    arrived_s: Seconds
    prompt_tokens: Count
    output_tokens: Count
    queue_s: Seconds
    ttft_s: Seconds
    tpot_s: Seconds
    e2e_s: Seconds
    steps: Count
    drafted: Count
    accepted: Count
    finish_reason: Name
    reached: Count = 0
    """Draft tokens whose acceptance was decided: those accepted, and the first that was not of each draft.
    accepted / reached does not depend on K as accepted / drafted does. 0 with drafts: not told."""
    steps_drafted: Count = 0
    """Steps in which it had a draft to verify."""
    statistics: PromptStatistics | None = None
    """None where the engine tells none."""


class PlanAck(Struct, frozen=True, array_like=True, tag="ack"):
    """Whether the engine applied a plan; a refused one leaves the last good plan in force."""

    plan_id: Count
    applied: bool
    reason: Name = ""


class Lease(Struct, frozen=True, array_like=True, tag="lease"):
    """Permission to follow a plan for `lease_s` from the moment of arrival (the engine's clock)."""

    plan_id: Count
    lease_s: Seconds = 1.0


def context_bucket(context_tokens: int) -> int:
    """Index into the buckets of `CONTEXT_EDGES_TOKENS` (right-closed).

    >>> [context_bucket(n) for n in (1, 256, 257, 20000)]
    [0, 0, 1, 4]
    """
    for index, edge in enumerate(CONTEXT_EDGES_TOKENS):
        if context_tokens <= edge:
            return index
    return len(CONTEXT_EDGES_TOKENS)
