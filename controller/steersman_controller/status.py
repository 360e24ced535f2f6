"""What a controller shows of itself to metrics and reports."""

from typing import Any, Literal

from msgspec import Struct

from steersman_controller.belief.cost import Phase, PredictionError
from steersman_policies.messages import PlanAck
from steersman_policies.plan import Plan
from steersman_policies.view import SegmentBelief


class PhaseError(Struct, frozen=True):
    """Predicted against actual seconds of one phase: of the newest step, and the mean relative error."""

    predicted_s: float
    actual_s: float
    relative_error: float


class Status(Struct, frozen=True):
    """One controller at one moment."""

    mode: Literal["shadow", "steer"]
    policy: str
    policy_version: str
    params: dict[str, Any]
    fingerprint: str
    plan: Plan | None
    """The newest plan."""
    leased_plan_id: int | None
    last_ack: PlanAck | None
    errors: dict[Phase, PhaseError]
    first_after_switch_s: float
    segments: tuple[SegmentBelief, ...]
    """Position acceptance, coverage and share of each known segment."""
    mean_requests: float
    mean_context_tokens: float
    silent_s: float | None
    """Since the last record; None before the first."""
    counters: dict[str, int]
    """Monotone: reports, requests, trained_steps, groups_refused, acks, nacks, plans, planner_errors, ..."""


def phase_error(error: PredictionError) -> PhaseError:
    """A frozen copy."""
    return PhaseError(error.predicted_s, error.actual_s, error.relative)
