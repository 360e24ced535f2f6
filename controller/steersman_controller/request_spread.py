"""How different the requests of a segment are from each other, from sums that can be kept for ever.

With a common acceptance p, a request that had r draft tokens decided and a of them accepted has
E(a - p r)^2 = p (1 - p) E(r): a sum of martingale differences, so where its drafts were cut off does not
matter. What exceeds that is spread between requests, or bursts within them. `dispersion` is the quotient,
and r / dispersion the effective number of decisions (quasi-binomial, McCullagh and Nelder 1989, 4.5).
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import erfc, sqrt

from msgspec import Struct

from steersman_policies.messages import RequestReport

LEAST_REQUESTS = 20
"""Fewer requests say nothing about how they differ."""

SAME_ABOVE = 0.05
"""Two segments cannot be told apart where chance alone makes such a difference that often."""


class RequestSpread(Struct):
    """Grows by `add`."""

    requests: int = 0
    accepted: float = 0.0
    reached: float = 0.0
    accepted_2: float = 0.0
    product: float = 0.0
    reached_2: float = 0.0

    def add(self, accepted: float, reached: float) -> None:
        """A finished request; one without a decided draft says nothing."""
        if reached > 0:
            self.requests += 1
            self.accepted += accepted
            self.reached += reached
            self.accepted_2 += accepted * accepted
            self.product += accepted * reached
            self.reached_2 += reached * reached

    @property
    def acceptance(self) -> float:
        """Accepted / reached; 0 where nothing was reached."""
        return self.accepted / self.reached if self.reached else 0.0

    @property
    def dispersion(self) -> float:
        """1 where requests differ by chance alone, and where there are too few to know."""
        chance = self._chance
        if self.requests < LEAST_REQUESTS or chance <= 0.0:
            return 1.0
        return max(1.0, self._squares / chance * self.requests / (self.requests - 1))

    @property
    def between_sd(self) -> float:
        """Standard deviation of acceptance between requests, beyond chance."""
        pairs = self.reached_2 - self.reached
        if self.requests < LEAST_REQUESTS or pairs <= 0.0:
            return 0.0
        return sqrt(max(0.0, self._squares - self._chance) / pairs)

    @property
    def worth_splitting(self) -> bool:
        """Whether its requests differ by more than chance makes them differ (three standard errors)."""
        return self.requests >= LEAST_REQUESTS and self.dispersion > 1.0 + 3.0 * sqrt(
            2.0 / (self.requests - 1)
        )

    def same_as(self, other: "RequestSpread") -> float:
        """How often chance makes acceptances differ this much, where they are the same.

        >>> one, two = RequestSpread(), RequestSpread()
        >>> for _ in range(50): one.add(5, 10); two.add(9, 10)
        >>> one.same_as(two) < 1e-6, one.same_as(one)
        (True, 1.0)
        """
        if not (self.reached and other.reached):
            return 1.0
        variance = self._variance + other._variance
        difference = abs(self.acceptance - other.acceptance)
        if variance <= 0.0:
            return 1.0 if difference == 0.0 else 0.0
        return erfc(difference / sqrt(2.0 * variance))

    def plus(self, other: "RequestSpread") -> "RequestSpread":
        """Both together."""
        fields = self.__struct_fields__
        return RequestSpread(*(getattr(self, name) + getattr(other, name) for name in fields))

    @property
    def _squares(self) -> float:
        """Sum of (a - p r)^2."""
        p = self.acceptance
        return self.accepted_2 - 2.0 * p * self.product + p * p * self.reached_2

    @property
    def _chance(self) -> float:
        return self.acceptance * (1.0 - self.acceptance) * self.reached

    @property
    def _variance(self) -> float:
        # A share of 0 or 1 is never certain.
        p = (self.accepted + 0.5) / (self.reached + 1.0)
        return p * (1.0 - p) * self.dispersion / self.reached


def is_decided(report: RequestReport) -> bool:
    """Whether a report tells how many of its draft tokens were decided, and does not contradict itself."""
    return report.accepted <= report.reached <= report.drafted and (report.reached > 0 or not report.drafted)


def alike(spreads: Mapping[str, RequestSpread]) -> list[tuple[str, str]]:
    """Pairs of segments whose acceptance cannot be told apart, the most alike first."""
    known = {name: spread for name, spread in spreads.items() if spread.requests >= LEAST_REQUESTS}
    chances = {pair: known[pair[0]].same_as(known[pair[1]]) for pair in combinations(sorted(known), 2)}
    return sorted((pair for pair, p in chances.items() if p > SAME_ABOVE), key=lambda pair: -chances[pair])


def merged(spreads: Mapping[str, RequestSpread]) -> dict[str, str]:
    """For each name the one that stands for it: the most alike pair is merged until all can be told apart.

    The name with most requests stands for the others. Small segments are told apart by nothing, so they
    are merged with what they are closest to; one without any decided draft stays by itself.
    """
    groups = {name: ([name], spread) for name, spread in spreads.items() if spread.reached}
    while len(groups) > 1:
        chances = {
            pair: groups[pair[0]][1].same_as(groups[pair[1]][1]) for pair in combinations(sorted(groups), 2)
        }
        one, two = max(chances, key=lambda pair: chances[pair])
        if chances[one, two] <= SAME_ABOVE:
            break
        names, spread = groups.pop(two)
        groups[one] = (groups[one][0] + names, groups[one][1].plus(spread))
    out = {name: name for name in spreads}
    for names, _ in groups.values():
        first = max(sorted(names), key=lambda name: spreads[name].requests)
        out |= dict.fromkeys(names, first)
    return out


def spread_of(requests: Iterable[tuple[float, float]]) -> RequestSpread:
    """Of (accepted, reached) of each request."""
    found = RequestSpread()
    for accepted, reached in requests:
        found.add(accepted, reached)
    return found
