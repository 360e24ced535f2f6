"""What an engine at a fixed K would have done with an acceptance trace, step by step, and in sum."""

from collections.abc import Iterator, Sequence
from operator import mul

from msgspec import Struct

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.units import K_LIMIT

Taken = tuple[int, int, int]
"""(output tokens that were there, draft tokens verified, of those accepted)."""


def walk(
    accepted: Sequence[int],
    offered: Sequence[int] | None,
    k: int,
    *,
    first: int = 1,
    length_known: bool = True,
) -> Iterator[Taken]:
    """The steps of one request at K = `k`: each commits the accepted tokens and a bonus token.

    `first`: output tokens before the first step; 1, as the prefill brings one. Where the length is
    known in advance, the last token is never drafted. `offered` None: a full draft everywhere.

    >>> list(walk([0, 2, 1, 0, 3, 0, 0, 0], None, 2))
    [(1, 2, 2), (4, 2, 2), (7, 0, 0)]
    """
    tokens, at = len(accepted), first
    while at < tokens:
        drafted = min(k, K_LIMIT if offered is None else offered[at])
        if length_known:
            drafted = min(drafted, tokens - at - 1)
        kept = min(drafted, accepted[at])
        yield at, drafted, kept
        at += kept + 1


class WalkFacts(Struct, frozen=True):
    """Accepted lengths of all steps of many requests at one K."""

    k: int
    requests: int
    steps: int
    tokens_per_step: float
    """With the bonus token; what of the last step would be beyond the end counts too."""
    coverage: float
    """Share of the steps that had a draft."""
    autocorrelation: tuple[float, ...]
    """Lag 1, 2, ... of the accepted length within a request, about the request's own mean."""
    between_request_share: float
    """Share of the variance of accepted length that is between the requests' means, chance included."""


class WalkTally:
    """Grows by one request at a time. `first` and `length_known` as in `walk`.

    >>> tally = WalkTally(3, lags=1, length_known=False)
    >>> for i in (0, 1): tally.add(AcceptanceRecord(i, 5, 6, (i, i, i, i, i, i)))
    >>> found = tally.facts()
    >>> found.steps, found.tokens_per_step, found.between_request_share
    (8, 1.375, 1.0)
    """

    def __init__(self, k: int, *, lags: int = 5, first: int = 1, length_known: bool = True) -> None:
        self.k, self.first, self.length_known = k, first, length_known
        self.requests = self.steps = self.covered = 0
        self.total = self.squares = self.of_means = 0.0
        self.products = [0.0] * lags

    def add(self, record: AcceptanceRecord) -> None:
        """A request. One that ended by a stop token had no length that anybody knew."""
        offered = record.offered_by_position or None
        known = self.length_known and not record.stops
        steps = walk(record.accepted_by_position, offered, self.k, first=self.first, length_known=known)
        drafted, kept = 0, []
        for _, length, accepted in steps:
            drafted += length > 0
            kept.append(accepted)
        if not kept:
            return
        mean = sum(kept) / len(kept)
        off = [number - mean for number in kept]
        self.requests += 1
        self.steps += len(kept)
        self.covered += drafted
        self.total += sum(kept)
        self.squares += sum(number * number for number in kept)
        self.of_means += mean * mean * len(kept)
        for lag in range(1, len(self.products) + 1):
            self.products[lag - 1] += sum(map(mul, off, off[lag:]))

    def facts(self) -> WalkFacts:
        """Of everything so far."""
        mean = self.total / self.steps if self.steps else 0.0
        within = self.squares - self.of_means
        all_of_it = self.squares - mean * mean * self.steps
        return WalkFacts(
            k=self.k,
            requests=self.requests,
            steps=self.steps,
            tokens_per_step=1.0 + mean,
            coverage=self.covered / self.steps if self.steps else 0.0,
            autocorrelation=tuple(p / within if within > 1e-12 else 0.0 for p in self.products),
            between_request_share=1.0 - within / all_of_it if all_of_it > 1e-12 else 0.0,
        )
