"""Everything that can happen to a fleet of controllers, as data.

The sidecar turns sockets and clocks into these events and applies them one by one; the recorder
writes the same events down; a replay applies them again. That is why a recording replays exactly:
there is no other way to change a controller.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from steersman_controller.belief.prior import Prior
from steersman_policies.codec import FromEngine
from steersman_policies.plan import Plan, Slo
from steersman_policies.segmenter import Segmenter
from steersman_policies.units import Count, Name, Seconds, Segment


class ControllerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How a controller learns and plans. The same in the sidecar and in the simulator."""

    mode: Literal["shadow", "steer"] = "shadow"
    plan_interval_s: Seconds = 0.5
    context_edges: tuple[Count, ...] = (512, 2048)
    seed: Count = 0
    segmenter: Segmenter = Segmenter()
    slo: dict[Segment, Slo] = {}


class Started(Struct, frozen=True, tag="started"):
    """The sidecar began: first event of every recording."""

    at_s: Seconds
    schema: Count
    version: Name
    epoch: Count
    config: ControllerConfig
    policy: Name
    params: dict[str, Any]
    priors: tuple[Prior, ...] = ()
    """What is believed of engines before they have taken a step; each uses what fits it."""


class Received(Struct, frozen=True, tag="received", gc=False):
    """A valid record arrived. `at_s` is the sidecar's monotonic clock."""

    at_s: Seconds
    engine_id: Name
    epoch: Count
    sequence: Count
    dropped: Count
    record: FromEngine


class Ticked(Struct, frozen=True, tag="ticked"):
    """A controller was asked for a plan; None: the plan in force stays."""

    at_s: Seconds
    engine_id: Name
    plan: Plan | None


class PolicySet(Struct, frozen=True, tag="policy_set"):
    """An operator chose another policy; it takes effect at the next tick."""

    at_s: Seconds
    engine_id: Name
    """Empty: every engine, and those that say hello later."""
    policy: Name
    params: dict[str, Any]


class ModeSet(Struct, frozen=True, tag="mode_set"):
    """An operator paused an engine (shadow) or let it be steered again."""

    at_s: Seconds
    engine_id: Name
    """Empty: every engine, and those that say hello later."""
    mode: Literal["shadow", "steer"]


class Restored(Struct, frozen=True, tag="restored"):
    """What an earlier sidecar had learned about this engine came back, right after its first hello."""

    at_s: Seconds
    engine_id: Name
    snapshot: bytes


class Alarmed(Struct, frozen=True, tag="alarmed"):
    """What a controller noticed by itself: written down for people, and changes nothing when applied."""

    at_s: Seconds
    engine_id: Name
    kind: Name
    """acceptance, coverage, cost: left its level; decay: sank slowly."""
    segment: Name
    """Empty where it concerns the whole engine."""
    step: Count
    """Of those that were learned from."""


Event: TypeAlias = Started | Received | Ticked | PolicySet | ModeSet | Restored | Alarmed
