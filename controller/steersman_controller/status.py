"""What a controller shows of itself to metrics and reports."""

from typing import Any, Literal

from msgspec import Struct

from steersman_controller.belief.steps import Phase, PredictionError
from steersman_controller.request_spread import Spread
from steersman_controller.restart import Restart
from steersman_policies.messages import PlanAck
from steersman_policies.plan import Plan
from steersman_policies.view import SegmentBelief


class Variation(Struct, frozen=True):
    """How the drafts of one segment vary: what an estimate of its acceptance has to live with."""

    autocorrelation: float | None = None
    """Lag-1, of the residuals of acceptance step by step; None before it was measured, like the next."""
    dispersion: float | None = None
    """Variance of those residuals over that of independent drafts."""
    between_requests: Spread | None = None
    """None while too few requests are over, or where the engine does not tell decided draft tokens."""


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
    errors: dict[Phase, PredictionError]
    first_after_switch_s: float
    segments: tuple[SegmentBelief, ...]
    """Position acceptance, coverage and share of each known segment."""
    variation: dict[str, Variation]
    """By segment, where anything of it was measured."""
    alike: list[tuple[str, str]]
    """Pairs of segments whose acceptance cannot be told apart by their requests, the most alike first."""
    mean_requests: float
    mean_context_tokens: float
    silent_s: float | None
    """Since the last record; None before the first."""
    counters: dict[str, int]
    """Monotone: reports, reports_refused, clock_steps, requests, acks, nacks, plans, planner_errors, ..."""
    prior: str = ""
    """What the belief began with, and why; empty where it was given nothing."""
    restart: Restart | None = None
    """Against an engine launched without any drafter; None where nobody measured one."""
