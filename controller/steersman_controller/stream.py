"""Which frames of an engine count: each once, in order, of its present boot only."""

from msgspec import Struct

from steersman_controller.events import Received
from steersman_policies.messages import Hello

LEAP = 1_000
"""Frames this far from the place where a stream stands are believed when another one follows them: one
damaged sequence number must not shut an engine out."""

PAST_EPOCHS = 64
"""Boots of an engine that are remembered, so that their late frames are known to be old."""


class Stream(Struct):
    """Where the frames of one engine stand. A boot begins with its first hello."""

    epoch: int = -1
    sequence: int = -1
    past_epochs: dict[int, int] = {}
    """Last sequence number of each earlier boot."""
    boots: int = 0
    booted_s: float = 0.0
    """When the first hello of the present boot arrived."""
    frames: int = 0
    kinds: dict[str, int] = {}
    """Those frames by kind of record."""
    lost: int = 0
    """Missing sequence numbers."""
    duplicate: int = 0
    """Repeated or late ones, not applied."""
    far: int = 0
    """Frames far from where the stream stood, that nothing had confirmed yet: not applied."""
    far_sequence: int = -1
    """The last of them."""
    old_epoch: int = 0
    before_hello: int = 0
    """Frames that came before the first hello of their boot: not applied."""
    dropped_by_engine: int = 0
    """What the engine could not send, by its own count; starts anew with each boot."""

    def accept(self, event: Received) -> bool:
        """Count a frame; whether it is to be applied."""
        if event.epoch != self.epoch:
            if event.epoch in self.past_epochs and not self._revives(event):
                self.old_epoch += 1
                return False
            if not isinstance(event.record, Hello):
                self.before_hello += 1
                return False
            self._boot(event.epoch, event.at_s)
        if not self._is_near(event):
            self.far, self.far_sequence = self.far + 1, event.sequence
            return False
        if event.sequence <= self.sequence:
            self.duplicate += 1
            return False
        if self.sequence >= 0:
            self.lost += event.sequence - self.sequence - 1
        self.sequence = event.sequence
        self.frames += 1
        kind = str(event.record.__struct_config__.tag)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.dropped_by_engine = event.dropped
        return True

    def _is_near(self, event: Received) -> bool:
        """Whether it comes where frames are expected, or follows one that came from as far away.

        Only hellos can prove that the stream stands too far ahead: other records may be old ones again.
        """
        ahead = event.sequence - self.sequence
        if self.sequence < 0 or abs(ahead) <= LEAP or (ahead < 0 and not isinstance(event.record, Hello)):
            return True
        if self.far_sequence < 0 or not 0 < event.sequence - self.far_sequence <= LEAP:
            return False
        if ahead < 0:
            self.sequence = self.far_sequence
        else:
            self.lost -= 1  # the one before it did come
        self.far_sequence = -1
        return True

    def _revives(self, event: Received) -> bool:
        """Whether a boot taken for a past one proves to be alive: it says hello after its last frame.

        Otherwise one hello under a false epoch would shut the engine out until it restarts.
        """
        return isinstance(event.record, Hello) and event.sequence > self.past_epochs[event.epoch]

    def _boot(self, epoch: int, at_s: float) -> None:
        if self.boots:
            self.past_epochs[self.epoch] = self.sequence
            while len(self.past_epochs) > PAST_EPOCHS:
                del self.past_epochs[next(iter(self.past_epochs))]
        self.boots += 1
        self.booted_s = at_s
        self.epoch, self.sequence = epoch, self.past_epochs.pop(epoch, -1)
        self.far_sequence = -1
