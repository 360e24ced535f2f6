"""The sidecar's end of the telemetry socket. It never blocks, and a bad frame is counted and dropped."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import zmq

from steersman_controller.sidecar.admin import MAX_REQUEST_BYTES
from steersman_policies.codec import (
    MAX_FRAME_BYTES,
    SCHEMA,
    Envelope,
    Frame,
    FromSidecar,
    WireError,
    WireReason,
    decode,
    encode,
)
from steersman_policies.messages import Hello, Lease
from steersman_policies.plan import Plan

_ENGINE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""What may stand in a log line and a label."""

RECEIVE_FRAMES = 20_000
SEND_FRAMES = 256
"""What may wait for one engine; leases stop long before, when it falls silent."""

MAX_ENGINES = 64
"""One sidecar serves at most this many engines; it also bounds what metrics can grow to."""

Refusal: TypeAlias = WireReason | Literal["sender", "direction", "engines"]
REFUSALS: tuple[str, ...] = (*get_args(WireReason), "sender", "direction", "engines")


class TelemetrySocket:
    """A ROUTER: an engine is known by its routing id, which is its engine id."""

    def __init__(self, context: zmq.Context, endpoint: str, epoch: int) -> None:
        self.socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, RECEIVE_FRAMES),
            (zmq.SNDHWM, SEND_FRAMES),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            # A restarted engine takes its id over from its dead connection.
            (zmq.ROUTER_HANDOVER, 1),
            # An engine that is gone or full shows as an error, to be counted.
            (zmq.ROUTER_MANDATORY, 1),
        ):
            self.socket.setsockopt(option, value)
        self.engines: set[str] = set()
        self._epoch = epoch
        self._sequence: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        _bind(self.socket, endpoint, "--telemetry")

    def receive(self) -> Frame | None:
        """The next frame of an engine; None when none waits. Raises `Refused`."""
        try:
            parts: Sequence[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            frame = decode(parts[1:])
        except WireError as error:
            raise Refused(error.reason, str(error)) from None
        envelope = frame.envelope
        if isinstance(envelope.body, Plan | Lease):
            raise Refused("direction", "an engine sends no plan or lease")
        if not _ENGINE_ID.fullmatch(envelope.sender) or envelope.sender.encode() != parts[0]:
            raise Refused("sender", f"{envelope.sender!r} is no engine id, or not the one it came from")
        if isinstance(envelope.body, Hello) and (problem := _unsound(envelope.body)):
            raise Refused("contract", problem)
        if envelope.sender not in self.engines:
            if len(self.engines) >= MAX_ENGINES:
                raise Refused("engines", f"at most {MAX_ENGINES} engines")
            self.engines.add(envelope.sender)
        return frame

    def send(self, engine_id: str, record: FromSidecar) -> bool:
        """Hand a record to the network; False (and counted) where the engine is gone or full."""
        sequence = self._sequence.get(engine_id, 0)
        dropped = self._dropped.get(engine_id, 0)
        topic = b"plan" if isinstance(record, Plan) else b"lease"
        envelope = Envelope(SCHEMA, self._epoch, "steersman", dropped, record)
        try:
            self.socket.send_multipart([engine_id.encode(), *encode(topic, sequence, envelope)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._dropped[engine_id] = dropped + 1
            return False
        self._sequence[engine_id] = sequence + 1
        return True

    def dropped(self, engine_id: str) -> int:
        """Records that could not be sent to this engine."""
        return self._dropped.get(engine_id, 0)


def _unsound(hello: Hello) -> str:
    """What no policy could plan for; empty where nothing is. Recordings are not checked again."""
    ks = hello.reachable_k
    if not ks or sorted(set(ks)) != list(ks):
        return f"reachable_k: {ks}, must ascend and not be empty"
    if max(ks[-1], hello.launch_k, hello.k_floor) > hello.k_max:
        return f"reachable_k, launch_k, k_floor: at most k_max {hello.k_max}"
    return ""


class Refused(Exception):  # noqa: N818 - the peer's error, counted under its reason
    """A frame that no controller gets to see."""

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def admin_socket(context: zmq.Context, endpoint: str) -> zmq.Socket:
    """Where operators ask. Raises ValueError where it cannot listen."""
    socket = context.socket(zmq.ROUTER)  # a REP would be stuck with an operator who left
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, SEND_FRAMES),
        (zmq.SNDHWM, SEND_FRAMES),
        (zmq.MAXMSGSIZE, MAX_REQUEST_BYTES),
        (zmq.ROUTER_MANDATORY, 1),
    ):
        socket.setsockopt(option, value)
    _bind(socket, endpoint, "--admin")
    return socket


def _bind(socket: zmq.Socket, endpoint: str, flag: str) -> None:
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"{flag}: cannot listen on {endpoint}: {error.strerror}") from None
