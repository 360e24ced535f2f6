"""A run along its time axis, in at most so many equal bins, however long it lasts."""

from msgspec import Struct

from steersman_policies.messages import StepReport

MAX_BINS = 240
_FIRST_WIDTH_S = 1.0 / 64.0


class Bin(Struct):
    """Sums over the steps that began in one bin."""

    steps: int = 0
    running: int = 0
    waiting: int = 0
    kv_used_fraction: float = 0.0
    committed_tokens: int = 0
    k: dict[str, tuple[int, int]] = {}
    """By segment: (commanded K over request-steps, request-steps)."""

    def add(self, other: "Bin") -> None:
        """The steps of another bin, too."""
        self.steps += other.steps
        self.running += other.running
        self.waiting += other.waiting
        self.kv_used_fraction += other.kv_used_fraction
        self.committed_tokens += other.committed_tokens
        for segment, (k, requests) in other.k.items():
            had = self.k.get(segment, (0, 0))
            self.k[segment] = (had[0] + k, had[1] + requests)


class Timeline:
    """Where a run grows beyond its bins, two become one, so it needs to know no end."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.start_s = start_s
        self.width_s = _FIRST_WIDTH_S
        self.bins: list[Bin] = []

    def add(self, step: StepReport) -> None:
        """One more step."""
        at = max(0, int((step.started_s - self.start_s) / self.width_s))
        while at >= MAX_BINS:
            self._halve()
            at = int((step.started_s - self.start_s) / self.width_s)
        while len(self.bins) <= at:
            self.bins.append(Bin())
        found = self.bins[at]
        found.steps += 1
        found.running += step.decode_requests
        found.waiting += step.waiting
        found.kv_used_fraction += step.kv_used_fraction
        found.committed_tokens += step.committed_tokens
        for group in step.groups:
            k, requests = found.k.get(group.segment, (0, 0))
            found.k[group.segment] = (k + group.commanded_k * group.requests, requests + group.requests)

    def mean(self, name: str) -> list[float | None]:
        """`running`, `waiting` or `kv_used_fraction` over the steps of each bin; None without steps."""
        return [getattr(each, name) / each.steps if each.steps else None for each in self.bins]

    def tokens_per_s(self) -> list[float]:
        """Committed tokens over the width of each bin."""
        return [each.committed_tokens / self.width_s for each in self.bins]

    def k_by_segment(self) -> dict[str, list[float | None]]:
        """Mean commanded K over the requests verified under it; None where the segment was absent."""
        names = sorted({segment for each in self.bins for segment in each.k})
        return {name: [_mean(each.k.get(name)) for each in self.bins] for name in names}

    def _halve(self) -> None:
        merged = self.bins[::2]
        for at, right in enumerate(self.bins[1::2]):
            merged[at].add(right)
        self.bins, self.width_s = merged, self.width_s * 2.0


def coarse(values: list[float | None], bins: int) -> list[float | None]:
    """Fewer bins: means over neighbours, without those that are None.

    >>> coarse([1.0, 3.0, None, 4.0], 2)
    [2.0, 4.0]
    """
    width = max(1, -(-len(values) // bins))
    parts = ([v for v in values[at : at + width] if v is not None] for at in range(0, len(values), width))
    return [sum(part) / len(part) if part else None for part in parts]


def _mean(pair: tuple[int, int] | None) -> float | None:
    return pair[0] / pair[1] if pair and pair[1] else None
