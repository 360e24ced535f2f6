"""What may be asked of the segments that share a batch, whatever its size.

In a batch of `b` live requests, of which the share `w_s` belongs to segment s, raising K of s from
j - 1 to j adds ``b * w_s * offered_sj`` tokens to the target's forward and commits
``b * w_s * survival_sj`` more tokens on average. Sorted by survival per offered token, the prefixes
of that list are the candidates (survival falls with j, so every prefix is a valid set of K), for every
drafting depth: the list of a depth leaves out what is deeper.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, islice, pairwise
from math import inf
from typing import TypeAlias

from msgspec import Struct

from steersman_policies.view import SegmentBelief, View

Lengths: TypeAlias = tuple[int, ...]
"""K by segment, in the order of a menu."""

ROUNDING = 1e-9
"""Bounds are taken this much wider: the same sums in another order differ in their last digits."""

Rise: TypeAlias = tuple[float, int, int, int, float, float, float]
"""A segment is asked for more: order, K, segment, K below, and what it adds per live request of the batch in
committed tokens, draft tokens and requests asked. The order, in which the best come first, is minus the
tokens committed per draft token; of equals, the one to the smaller K comes first."""


class Ladder(Struct, frozen=True, gc=False):
    """Candidates of one depth, each with the rises of the one before and one more."""

    depth: int
    rises: Sequence[Rise]
    taken: int
    """Rises of the first candidate."""
    orders: Sequence[float]
    """Of the last rise of each candidate: ascending."""
    tokens: Sequence[float]
    """Committed per live request, the bonus token included; by candidate."""
    drafted: Sequence[float]
    asked: Sequence[float]
    """Share of the requests that the drafter is asked about."""


class Menu:
    """The candidates for segments that share a batch."""

    def __init__(self, view: View, segments: Sequence[SegmentBelief], known_weight: float) -> None:
        self.cost = view.cost
        self.reachable = view.hello.reachable_k
        self.names = tuple([s.segment for s in segments])
        self.alike = len(segments) == 1 or len(self.reachable) == 1 or not view.hello.per_request_k
        """Whether all of them get the same K anyway."""
        total = sum([s.share for s in segments])
        self.weights = [s.share / total if total > 0.0 else 1.0 / len(segments) for s in segments]
        # A segment that is hardly known is judged by its lower bound: speculation has to earn it.
        self.tokens = [
            [weight * tokens for tokens in s.gains(low=s.weight < known_weight)]
            for weight, s in zip(self.weights, segments, strict=True)
        ]
        self.drafted = [
            [weight * drafted for drafted in accumulate(s.offered(), initial=0.0)]
            for weight, s in zip(self.weights, segments, strict=True)
        ]
        self.shortest = (self.reachable[0],) * len(segments)
        self.ladders = self._uniform() if self.alike else self._by_depth()

    def totals(self, lengths: Lengths) -> tuple[float, float, float, int]:
        """Of these K: tokens committed, draft tokens and requests asked per live request; and the depth."""
        tokens = drafted = asked = 0.0
        for k, brought, cost, weight in zip(lengths, self.tokens, self.drafted, self.weights, strict=True):
            if k:
                tokens += brought[k]
                drafted += cost[k]
                asked += weight
        return 1.0 + tokens, drafted, min(asked, 1.0), max(lengths)

    def lengths(self, ladder: Ladder, index: int) -> Lengths:
        """K by segment of a candidate."""
        found = list(self.shortest)
        for _, k, segment, *_ in ladder.rises[: ladder.taken + index]:
            found[segment] = k
        return tuple(found)

    def _by_depth(self) -> list[Ladder]:
        """For every depth, the prefixes that no smaller depth has."""
        tokens, drafted, asked, depth = self.totals(self.shortest)
        start = Ladder(depth, (), 0, (-inf,), (tokens,), (drafted,), (asked,))
        each = self._rises()
        hulls = [_hull(rises) for rises in each]
        falls, rises, found = hulls == each, sorted(chain(*hulls)), list[Ladder]()
        for steps in range(len(self.reachable) - 1, 0, -1):
            depth = self.reachable[steps]
            if falls:
                rises = [rise for rise in rises if rise[1] <= depth]
            else:  # what is taken together depends on what there is
                rises = sorted(chain(*[_hull(rises[:steps]) for rises in each]))
            found.append(_ladder(depth, rises, start))
        return [start, *reversed(found)]

    def _uniform(self) -> list[Ladder]:
        """The same K for all of them."""
        found = []
        for k in self.reachable:
            tokens, drafted, asked, _ = self.totals((k,) * len(self.names))
            rises = [(0.0, k, segment, 0, 0.0, 0.0, 0.0) for segment in range(len(self.names))]
            found.append(Ladder(k, rises, len(rises), (-inf,), (tokens,), (drafted,), (asked,)))
        return found

    def _rises(self) -> list[list[Rise]]:
        """By segment, from each reachable K to the next."""
        pairs, found = list(pairwise(self.reachable)), []
        for segment, (tokens, drafted) in enumerate(zip(self.tokens, self.drafted, strict=True)):
            rises: list[Rise] = []
            for below, k in pairs:
                gain, cost = tokens[k] - tokens[below], drafted[k] - drafted[below]
                order = -gain / cost if cost > 0.0 else _free(gain)
                rises.append((order, k, segment, below, gain, cost, 0.0 if below else self.weights[segment]))
            found.append(rises)
        return found


def _ladder(depth: int, rises: list[Rise], start: Ladder) -> Ladder:
    """Of these rises, those candidates that no smaller depth has; `start`: the candidate without any."""
    orders, ks, _, _, tokens, drafted, asked = zip(*rises, strict=True)
    first = ks.index(depth)
    return Ladder(
        depth,
        rises,
        first + 1,
        orders[first:],
        list(islice(accumulate(tokens, initial=start.tokens[0]), first + 1, None)),
        list(islice(accumulate(drafted, initial=start.drafted[0]), first + 1, None)),
        list(islice(accumulate(asked, initial=start.asked[0]), first + 1, None)),
    )


def _free(gain: float) -> float:
    """The order of a rise that costs nothing, since the drafter never offers so much."""
    return -inf if gain > 0.0 else inf if gain < 0.0 else 0.0


def _hull(rises: list[Rise]) -> list[Rise]:
    """Those of one segment. One that brings more per draft token than those before it is taken together with
    these, so that each sorts behind what it stands on."""
    found: list[Rise] = []
    for step in rises:
        rise = step
        while found and rise[0] < (last := found[-1])[0]:
            if rise[0] >= last[0] - ROUNDING * abs(last[0]):
                rise = (last[0], *rise[1:])
                break
            _, k, segment, _, gain, cost, asked = rise
            gain, cost = last[4] + gain, last[5] + cost
            order = -gain / cost if cost > 0.0 else _free(gain)
            rise = (order, k, segment, last[3], gain, cost, last[6] + asked)
            found.pop()
        found.append(rise)
    return found
