"""How different the requests of a segment are from each other, from sums that can be kept for ever, or fade.

With a common acceptance p, a request that had r draft tokens decided and a of them accepted has
E(a - p r)^2 = p (1 - p) E(r): a sum of martingale differences, so where its drafts were cut off does not
matter. What exceeds that is spread between requests, or bursts within them. `dispersion` is the quotient,
and r / dispersion the effective number of decisions (quasi-binomial, McCullagh and Nelder 1989, 4.5).
Sums that fade know a little more than the number of requests that is left in them: what is said of them errs
towards chance.
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


class Spread(Struct, frozen=True):
    """What the requests of one segment show."""

    requests: float
    """Number behind it, faded."""
    acceptance: float
    """Accepted / reached."""
    between_sd: float
    """Standard deviation of acceptance between requests, beyond chance."""
    dispersion: float
    """Variance between requests over that of chance; 1 where they are alike."""
    worth_splitting: bool
    """They differ by more than chance."""


class RequestSpread(Struct):
    """Grows by `add`; part of a snapshot."""

    requests: float = 0.0
    accepted: float = 0.0
    reached: float = 0.0
    drafts: float = 0.0
    accepted_2: float = 0.0
    product: float = 0.0
    reached_2: float = 0.0

    def add(self, accepted: float, reached: float, drafts: float, keep: float = 1.0) -> None:
        """A finished request; so much of those before is kept. One without a decided draft says nothing."""
        if reached <= 0:
            return
        self.requests = keep * self.requests + 1.0
        self.accepted = keep * self.accepted + accepted
        self.reached = keep * self.reached + reached
        self.drafts = keep * self.drafts + drafts
        self.accepted_2 = keep * self.accepted_2 + accepted * accepted
        self.product = keep * self.product + accepted * reached
        self.reached_2 = keep * self.reached_2 + reached * reached

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
        """Standard deviation of acceptance between requests, beyond chance; of very few it is too small."""
        pairs = self.reached_2 - self.reached
        if pairs <= 0.0:
            return 0.0
        return sqrt(max(0.0, self._squares - self._chance) / pairs)

    @property
    def wander(self) -> float:
        """Standard deviation between requests of a - p r of one draft, over that by chance."""
        if self.drafts <= 0.0 or self._chance <= 0.0:
            return 0.0
        return self.between_sd * self.reached / sqrt(self._chance * self.drafts)

    @property
    def worth_splitting(self) -> bool:
        """Whether its requests differ by more than chance makes them differ (three standard errors)."""
        return self.requests >= LEAST_REQUESTS and self.dispersion > 1.0 + 3.0 * sqrt(
            2.0 / (self.requests - 1)
        )

    def shown(self) -> Spread | None:
        """All of it; None where there are too few requests to know."""
        if self.requests < LEAST_REQUESTS:
            return None
        return Spread(self.requests, self.acceptance, self.between_sd, self.dispersion, self.worth_splitting)

    def same_as(self, other: "RequestSpread") -> float:
        """How often chance makes acceptances differ this much, where they are the same.

        >>> one, two = RequestSpread(), RequestSpread()
        >>> for _ in range(50): one.add(5, 10, 5); two.add(9, 10, 2)
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


def spread_of(requests: Iterable[tuple[float, float, float]]) -> RequestSpread:
    """Of (accepted, reached, drafts) of each request."""
    found = RequestSpread()
    for accepted, reached, drafts in requests:
        found.add(accepted, reached, drafts)
    return found
