"""How frames travel: a ZeroMQ socket that never blocks, and where it may connect."""

import ipaddress
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import zmq

from steersman_policies.codec import MAX_FRAME_BYTES

HIGH_WATER_FRAMES = 1_000
"""Frames that wait in a socket before further ones are dropped: five seconds of steps."""

RECONNECT_MS = 100

CLOSING_MS = 200
"""How long an orderly close waits for the last frames to leave."""

MAX_IPC_BYTES = 107
"""The kernel's limit on the path of a Unix socket."""

_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\]")


class Transport(Protocol):
    """Frames to and from the sidecar. Nothing but `wait` takes any time."""

    def wait(self, timeout_s: float) -> None:
        """Return when a frame has arrived, at the latest after `timeout_s`."""
        ...

    def receive(self) -> list[bytes] | None:
        """The next message; None when there is none."""
        ...

    def send(self, frames: list[bytes]) -> bool:
        """Hand a message over; False when it cannot be sent now."""
        ...

    def close(self) -> None:
        """Give up the connection; what was just sent still has a moment to leave."""
        ...


class ZmqTransport:
    """A DEALER whose routing id is the engine's. Belongs to one thread."""

    def __init__(self, engine_id: str, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        options = {
            zmq.SNDHWM: HIGH_WATER_FRAMES,
            zmq.RCVHWM: HIGH_WATER_FRAMES,
            zmq.IMMEDIATE: 1,  # no queue for a sidecar that is not there
            zmq.LINGER: 0,
            zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
            zmq.RECONNECT_IVL: RECONNECT_MS,
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IDENTITY, engine_id.encode())
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Return when a frame has arrived, at the latest after `timeout_s`."""
        self._poller.poll(timeout_s * 1_000.0)

    def receive(self) -> list[bytes] | None:
        """The next message; None when there is none."""
        try:
            frames: list[bytes] = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frames

    def send(self, frames: list[bytes]) -> bool:
        """Hand a message over; False when nobody is connected or the queue is full."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the socket, at most `CLOSING_MS` later."""
        self._socket.close(CLOSING_MS)
        self._context.term()


def default_endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """Where the sidecar of this user listens, in a folder (mode 0700) that is made when missing.

    Raises ValueError when somebody else could have put a socket there.
    """
    given = environment.get("XDG_RUNTIME_DIR")
    if given and not os.path.isabs(given):
        given = None  # not valid: the XDG base directory specification demands an absolute path
    folder = Path(given) / "steersman" if given else Path(tempfile.gettempdir()) / f"steersman-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(
            f"endpoint: {folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; "
            f"it must be yours with mode 700"
        )
    return f"ipc://{folder / 'telemetry.ipc'}"


def check_endpoint(endpoint: str, *, insecure: bool = False) -> None:
    """Raise ValueError for an endpoint where another machine or user could answer.

    >>> check_endpoint("ipc:///run/user/1/steersman/telemetry.ipc")
    >>> check_endpoint("tcp://10.0.0.1:5557")
    Traceback (most recent call last):
    ...
    ValueError: endpoint: 'tcp://10.0.0.1:5557' is on another machine and carries no keys; allowed are ...
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc" and rest.startswith("/"):
        if len(os.fsencode(rest)) > MAX_IPC_BYTES:
            raise ValueError(f"endpoint: the path of {endpoint!r} is longer than {MAX_IPC_BYTES} bytes")
        return
    host, _, port = rest.rpartition(":")
    if (
        scheme != "tcp"
        or not _HOST.fullmatch(host)
        or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)
    ):
        raise ValueError(f"endpoint: {endpoint!r}; allowed are ipc:///PATH and tcp://127.0.0.1:PORT")
    if not insecure and not _is_loopback(host.strip("[]")):
        raise ValueError(
            f"endpoint: {endpoint!r} is on another machine and carries no keys; "
            "allowed are ipc:///PATH and tcp://127.0.0.1:PORT (insecure connects all the same)"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
