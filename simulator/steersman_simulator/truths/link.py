"""What cards that share a model spend on talking to each other."""

from msgspec import Struct

from steersman_controller.train.roofline import ACTIVATION_BYTES


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """Between the cards of one engine."""

    tensor_parallel: int
    hidden_size: int
    bytes_per_s: float
    """One direction, as reached."""
    latency_s: float = 0.0
    """Of one message."""

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "hidden_size", "bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"link: {name} is {getattr(self, name)}, must be above 0")

    def allreduce_s(self, tokens: int) -> float:
        """Ring: 2 (n - 1) messages, each the n-th part of what is reduced (Patarasuk and Yuan 2009).

        >>> Link(tensor_parallel=2, hidden_size=1000, bytes_per_s=1e9, latency_s=1e-5).allreduce_s(50)
        0.00012
        """
        part = tokens * self.hidden_size * ACTIVATION_BYTES / self.tensor_parallel
        return 2 * (self.tensor_parallel - 1) * (self.latency_s + part / self.bytes_per_s)
