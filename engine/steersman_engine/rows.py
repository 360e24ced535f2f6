"""What the engine's thread hands over per step: references to lists it already has.

Nothing is computed here. The publisher thread validates the rows, aggregates them into a
`StepReport` and sends it.
"""

from collections.abc import Sequence

from msgspec import Struct

from steersman_policies.executor import Decision


class StepRows(Struct, frozen=True, gc=False):
    """One step as parallel columns, one entry per decode request that was verified in it."""

    step: int
    started_s: float
    draft_s: float
    verify_s: float
    other_s: float
    segments: Sequence[str]
    context_tokens: Sequence[int]
    """Before this step's tokens."""
    commanded_k: Sequence[int]
    """The K under which the drafts verified in this step were made."""
    drafted: Sequence[int]
    accepted: Sequence[int]
    committed: Sequence[int]
    not_drafted: Sequence[str]
    """Why there was no draft although K was above 0; empty where there was one, or K was 0."""
    prefill_tokens: int
    first_tokens: int
    """Tokens committed by requests whose prefill ended in this step."""
    requests_drafting: int
    waiting: int
    kv_used_fraction: float
    decision: Decision
    """What was commanded for the drafts made in this step."""
    warm_up: bool = False
    graph_capture: bool = False
    preemption: bool = False
    requests: Sequence[int] = ()
    """Ordinal of each request; empty where the engine does not say."""
    confidence: Sequence[Sequence[float]] = ()
    """Per request the probability that the drafter gave to each draft token, or nothing where it gave none;
    empty where no request has any."""
