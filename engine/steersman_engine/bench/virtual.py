"""A transport without sockets and a clock without time, for trials by the thousand."""

from collections import deque

from steersman_policies import codec
from steersman_policies.codec import Envelope, Frame, FromSidecar


class VirtualClock:
    """Monotonic seconds that pass when told to."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """The time."""
        return self.now_s


class VirtualTransport:
    """What is put into `inbox` is received, what is sent is in `sent`; `connected` decides whether."""

    def __init__(self, clock: VirtualClock) -> None:
        self.inbox: deque[list[bytes]] = deque()
        self.sent: list[list[bytes]] = []
        self.connected = True
        self.lease_read_s: float | None = None
        """When the link read the last lease."""
        self._clock = clock
        self._sequence = 0

    def deliver(self, record: FromSidecar, *, epoch: int = 1) -> None:
        """Put a record of a sidecar into the inbox."""
        topic = str(record.__struct_config__.tag).encode()
        envelope = Envelope(codec.SCHEMA, epoch, "sidecar", 0, record)
        self.inbox.append(codec.encode(topic, self._sequence, envelope))
        self._sequence += 1

    def taken(self) -> list[Frame]:
        """Decode and forget what was sent."""
        frames = [codec.decode(frames) for frames in self.sent]
        self.sent.clear()
        return frames

    def wait(self, timeout_s: float) -> None:
        """Nothing to wait for."""

    def receive(self) -> list[bytes] | None:
        """The oldest message in the inbox."""
        if not self.inbox:
            return None
        frames = self.inbox.popleft()
        if frames[:1] == [b"lease"]:
            self.lease_read_s = self._clock()
        return frames

    def send(self, frames: list[bytes]) -> bool:
        """Keep it, when connected."""
        if self.connected:
            self.sent.append(frames)
        return self.connected

    def close(self) -> None:
        """Nobody answers any more."""
        self.connected = False
