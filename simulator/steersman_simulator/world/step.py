"""A step of a batch as data: what is composed, what it brought, what all of them add up to."""

from msgspec import Struct

from steersman_policies.messages import Group
from steersman_simulator.truths.step_work import VerifyWork
from steersman_simulator.world.requests import Finished, Live


class Forward(Struct, gc=False):
    """One composed step."""

    chunks: list[tuple[Live, int]]
    work: VerifyWork
    target_tokens: int
    """Without what a captured graph adds."""
    started_s: float
    preempted: bool


class Committed(Struct, frozen=True, gc=False):
    """What a step brought."""

    tokens: int
    finished: list[Finished]
    groups: tuple[Group, ...] = ()
    """What was verified, where reports are made."""


class Totals(Struct, gc=False):
    """Sums over the steps of a batch."""

    steps: int = 0
    committed_tokens: int = 0
    prefill_tokens: int = 0
    target_tokens: int = 0
    padding_tokens: int = 0
    busy_s: float = 0.0
    verify_s: float = 0.0
    draft_s: float = 0.0
    decode_request_s: float = 0.0
    """Decode requests x seconds."""
    slot_s: float = 0.0
    """Requests that do not wait x seconds."""


class Coming(Struct, gc=False):
    """The decode requests of the next forward."""

    requests: int = 0
    draft_tokens: int = 0
    cached_tokens: int = 0
    ragged: int = 0
    filling: int = 0
