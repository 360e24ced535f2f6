"""How operators talk to a running sidecar: one typed JSON request, one typed JSON reply."""

from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import zmq
from msgspec import Struct

from steersman_controller.restart import Restart
from steersman_controller.sidecar.endpoints import IPC
from steersman_controller.status import Variation
from steersman_policies.units import Name

MAX_REQUEST_BYTES = 1 << 16

_ADVICE = "start one with `steersman serve` or name its --admin endpoint"


class StatusRequest(Struct, frozen=True, forbid_unknown_fields=True, tag="status"):
    """Asks for a `Status`."""


class PolicyRequest(Struct, frozen=True, forbid_unknown_fields=True, tag="policy_set"):
    """Asks for another policy on one engine; empty: on all, and on those that come later."""

    policy: Name
    params: dict[str, Any] = {}
    engine_id: Name = ""


class ModeRequest(Struct, frozen=True, forbid_unknown_fields=True, tag="mode_set"):
    """`pause`: the launch setting, at once. `resume`: the mode that the sidecar was started in."""

    action: Literal["pause", "resume"]
    engine_id: Name = ""


Request: TypeAlias = StatusRequest | PolicyRequest | ModeRequest


class About(Struct, frozen=True):
    """What an engine last said of itself."""

    engine: str
    engine_version: str
    target: str
    drafter: str
    method: str
    fingerprint: str
    """Digest of the above and more: what plans and snapshots are made for."""
    runner: str
    observe_only: str
    """Why it follows no plan; empty where it does."""
    k_max: int
    launch_k: int
    reachable_k: tuple[int, ...]
    counters: dict[str, int]
    """Monotone since it booted."""


class EngineStatus(Struct, frozen=True):
    """One engine as the sidecar sees it."""

    engine_id: str
    about: About
    mode: str
    policy: str
    policy_version: str
    params: dict[str, Any]
    plan_id: int | None
    """The newest plan."""
    plan_policy: str
    """The policy that made it."""
    acked_plan_id: int | None
    """The newest plan that the engine put in force; what leases are given for."""
    refused_plan_id: int | None
    refusal: str
    """Why the engine refused that plan; empty where it refused none."""
    lease_age_s: float | None
    """Since the last lease was sent; None: none was."""
    lease_s: float
    """For how long a lease holds."""
    attached_s: float
    """Since the first hello of its present boot."""
    silent_s: float
    """Since the last frame."""
    reports: int
    """Step reports learned from, those before a restored snapshot included."""
    reason: str
    """Why its executor decided as it did in the last step; empty before the first."""
    proposal_length: dict[str, int]
    """K by segment in force, as last reported."""
    would_be: dict[str, int]
    segments: dict[str, float]
    """Share of each segment that was seen among the live decode requests."""
    variation: dict[str, Variation]
    """How the drafts of each segment vary, where anything of it was measured."""
    alike: list[tuple[str, str]]
    """Pairs of segments whose acceptance cannot be told apart by their requests, the most alike first."""
    frames: int
    frames_lost: int
    frames_duplicate: int
    prior: str = ""
    """What its belief began with, and why; empty where the sidecar was given nothing."""
    restart: Restart | None = None
    """Against an engine launched without any drafter; None where nobody measured one."""


class Status(Struct, frozen=True, tag="status"):
    """A sidecar and its engines."""

    version: str
    epoch: int
    pid: int
    mode: str
    policy: str
    params: dict[str, Any]
    telemetry: str
    recording: str
    engines: list[EngineStatus]
    refused_frames: dict[str, int]


class Accepted(Struct, frozen=True, tag="accepted"):
    """The request holds. For each engine: the plan that carries it out, to be ACKed by the engine."""

    plan_ids: dict[str, int]
    mode: str = ""
    """The mode after a `ModeRequest`."""


class Rejected(Struct, frozen=True, tag="rejected"):
    """Nothing was changed, and why."""

    reason: str


Reply: TypeAlias = Status | Accepted | Rejected

_encoder = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def decode_request(payload: bytes) -> Request | Rejected:
    """The request in a frame, or the answer to what is none."""
    try:
        return _requests.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Rejected(f"request: {error}")


def encode_reply(reply: Reply) -> bytes:
    """The frame that carries a reply."""
    return _encoder.encode(reply)


class NoSidecar(ValueError):  # noqa: N818 - to most who ask this is wrong input like any other
    """Nobody answers at an endpoint, or not as a sidecar of this version does."""


def ask(endpoint: str, request: Request, timeout_s: float) -> Reply:
    """The sidecar's reply.

    Raises `NoSidecar` in one line where none answers in time, ValueError for what is no endpoint.
    """
    if endpoint.startswith(IPC) and not Path(endpoint.removeprefix(IPC)).exists():
        raise NoSidecar(f"--admin: no sidecar at {endpoint}; {_ADVICE}")
    context = zmq.Context()
    socket = context.socket(zmq.REQ)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        socket.send(_encoder.encode(request))
        if not socket.poll(round(timeout_s * 1000.0)):
            raise NoSidecar(f"--admin: no sidecar answers at {endpoint} within {timeout_s:g} s; {_ADVICE}")
        return _replies.decode(socket.recv())
    except zmq.ZMQError as error:
        raise ValueError(f"--admin: cannot reach {endpoint}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise NoSidecar(f"--admin: {endpoint} answers like no sidecar of this version ({error})") from None
    finally:
        socket.close()
        context.term()
