"""How much requests of one segment differ from each other, beyond what chance does.

From reports of finished requests alone: how many draft tokens each had, and how many were accepted. Such a
ratio falls with K and is no estimate of acceptance; but how it spreads over requests under one K says whether
they are alike.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array
from steersman_policies.messages import RequestReport
from steersman_policies.units import MAX_SEGMENTS

FEWEST_DRAFTED = 8
"""A request with fewer draft tokens says nothing about its own acceptance."""

FEWEST_REQUESTS = 3

KEEP = 0.99
"""Kept of the sums of a segment when another of its requests is over."""


class RequestSums(Struct):
    """Over the requests of one segment; part of a snapshot."""

    number: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    squares: float = 0.0
    """accepted^2 / drafted"""

    def add(self, report: RequestReport, keep: float = 1.0) -> None:
        """Count a request, unless it had too few drafts, and keep so much of those before."""
        if report.drafted < FEWEST_DRAFTED:
            return
        self.number = keep * self.number + 1.0
        self.drafted = keep * self.drafted + report.drafted
        self.accepted = keep * self.accepted + report.accepted
        self.squares = keep * self.squares + report.accepted**2 / report.drafted


class Draft(Struct, frozen=True):
    """Moments of one draft: how long it is, and how its accepted tokens vary."""

    length: float
    variance: float
    """Of accepted - c x drafted, where c is accepted / drafted of all: a ratio varies by what its numerator
    does beyond its denominator."""


class Spread(Struct, frozen=True):
    """Of accepted / drafted between requests."""

    requests: float
    """Number behind it, faded."""
    deviation: float
    """Standard deviation beyond chance; 0 where chance explains it all."""
    overdispersion: float
    """Variance over what chance alone would show; 1 where requests are alike."""
    wander: float
    """Standard deviation between requests of the accepted tokens of a draft, over that by chance."""


class Requests:
    """Learns from reports of finished requests, by segment."""

    def __init__(self) -> None:
        self.sums: dict[str, RequestSums] = {}

    def learn(self, report: RequestReport) -> bool:
        """Count a request; False for a report that cannot be true, which is not counted."""
        if not 0 <= report.accepted <= report.drafted <= 2**53:
            return False
        sums = self.sums.pop(report.segment, None) or RequestSums()
        sums.add(report, KEEP)
        # The one unheard of for longest makes room.
        self.sums[report.segment] = sums
        while len(self.sums) > MAX_SEGMENTS:
            del self.sums[next(iter(self.sums))]
        return True

    def spreads(self, drafts: Mapping[str, Draft]) -> dict[str, Spread]:
        """By segment, where there are requests enough; `drafts`: moments of its drafts."""
        found = {name: spread(sums, drafts[name]) for name, sums in self.sums.items() if name in drafts}
        return {name: one for name, one in sorted(found.items()) if one is not None}


def spread(sums: RequestSums, draft: Draft) -> Spread | None:
    """How requests spread, by moments; None where too little is known.

    Accepted / drafted of a request with n drafts of length l varies by chance by variance / (n l^2).
    """
    if sums.number < FEWEST_REQUESTS or draft.length <= 0.0 or draft.variance <= 0.0:
        return None
    found = max(sums.squares / sums.drafted - (sums.accepted / sums.drafted) ** 2, 0.0)
    chance = sums.number * draft.variance / (draft.length * sums.drafted)
    deviation = max(found - chance, 0.0) ** 0.5
    return Spread(sums.number, deviation, found / chance, deviation * draft.length / draft.variance**0.5)


def draft_of(outcomes: Iterable[tuple[int, int, float]]) -> Draft:
    """Moments of drafts given as (drafted, accepted, how many).

    >>> draft_of([(2, 2, 1.0), (2, 0, 1.0)])
    Draft(length=2.0, variance=1.0)
    """
    drafted, accepted, number = np.array(list(outcomes), np.float64).reshape(-1, 3).T
    total = max(number.sum(), 1e-300)
    length, mean = (drafted * number).sum() / total, (accepted * number).sum() / total
    off = accepted - mean / max(length, 1e-300) * drafted
    return Draft(float(length), float((off * off * number).sum() / total))


def draft_from(lengths: Array, acceptance: Array) -> Draft:
    """The same from how many drafts had 1, 2, ... tokens or more, and position acceptance.

    >>> draft_from(np.array([4.0, 4.0]), np.array([0.5, 1.0]))
    Draft(length=2.0, variance=1.0)
    """
    exactly = lengths - np.append(lengths[1:], 0.0)
    survival = np.append(1.0, np.cumprod(acceptance))
    positions = range(1, len(lengths) + 1)
    return draft_of(
        (drafted, accepted, exactly[drafted - 1] * survival[accepted] * _ends(acceptance, accepted, drafted))
        for drafted in positions
        for accepted in range(drafted + 1)
    )


def _ends(acceptance: Array, accepted: int, drafted: int) -> float:
    return 1.0 if accepted == drafted else float(1.0 - acceptance[accepted])
