"""The best K by segment in one cell of a plan: committed tokens per busy second.

In a batch of `b` live requests, of which the share `w_s` belongs to segment s, raising K of s from
j - 1 to j adds ``b * w_s * offered_sj`` tokens to the target's forward and commits
``b * w_s * survival_sj`` more tokens on average. Sorted by survival per offered token, the prefixes
of that list are the candidates (survival falls with j, so every prefix is a valid set of K). Step
costs are stepped and not convex, so the global maximum over *all* prefixes wins, for every drafting
depth (papers: SmartSpec, arXiv 2406.14066; DSpark, arXiv 2607.05147).

Everything about a candidate but its seconds is proportional to the batch. So the candidates of a plan
are made once. In a cell they come in blocks, within which seconds of the forward are linear in draft tokens.
Of two neighbours in a block the longer is worth more than it costs, at a given rate of tokens per second,
as long as its last rise brings more tokens per draft token than so many seconds are worth: the one after
which this ends is the best that the block can offer. Where even that one, with the least that drafting
can take, falls short of the rate that was found elsewhere, the block is passed over.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import getitem, itemgetter
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from steersman_policies.view import Row, SegmentBelief, View, interpolate

Lengths: TypeAlias = tuple[int, ...]
"""K by segment, in the order of a menu."""

SHORTEST_S = 1e-9
"""No step takes less."""

ROUNDING = 1e-9
"""Bounds are taken this much wider: the same sums in another order differ in their last digits."""


Rise: TypeAlias = tuple[float, int, int, int, float, float, float]
"""A segment is asked for more: order, K, segment, K below, and what it adds per live request of the batch in
committed tokens, draft tokens and requests asked. The order, in which the best come first, is minus the
tokens committed per draft token."""


class Ladder(Struct, frozen=True, gc=False):
    """Candidates of one depth, each with the rises of the one before and one more."""

    depth: int
    rises: Sequence[Rise]
    taken: int
    """Rises of the first candidate."""
    orders: Sequence[float]
    """Of the last rise of each candidate: ascending."""
    tokens: list[float]
    """Committed per live request, the bonus token included; by candidate."""
    drafted: list[float]
    asked: list[float]
    """Share of the requests that the drafter is asked about."""


class Block(Struct, frozen=True, gc=False):
    """Candidates of a ladder in one batch, over which all seconds are linear."""

    ladder: Ladder
    first: int
    end: int
    point: int
    """Between this point of the grid of tokens and `after`."""
    after: int
    offset: float
    """Draft tokens per live request, negative, with which the forward would be at `point`."""
    per_width: float
    """By what the difference between the two points is to be multiplied, for a draft token per request."""
    fixed_s: float
    """Of all but the forward, without any request that is asked."""
    asked_s: float
    """By share of the requests that is asked."""
    least_s: float
    """Of all but the forward, for the candidate that needs least."""


class Outcome(NamedTuple):
    """What is expected of a step."""

    tokens: float
    """Committed per live request."""
    target_tokens: float
    seconds: float


class Menu:
    """The candidates for segments that share a batch."""

    def __init__(self, view: View, segments: Sequence[SegmentBelief], known_weight: float) -> None:
        self.cost = view.cost
        self.reachable = view.hello.reachable_k
        self.names = tuple(s.segment for s in segments)
        total = sum(s.share for s in segments)
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
        self.ladders = self._by_depth() if view.hello.per_request_k else self._uniform()

    def totals(self, lengths: Lengths) -> tuple[float, float, float, int]:
        """Of these K: tokens committed, draft tokens and requests asked per live request; and the depth."""
        asked = sum(weight for weight, k in zip(self.weights, lengths, strict=True) if k)
        drafted = sum(map(getitem, self.drafted, lengths))
        return 1.0 + sum(map(getitem, self.tokens, lengths)), drafted, min(asked, 1.0), max(lengths)

    def lengths(self, ladder: Ladder, index: int) -> Lengths:
        """K by segment of a candidate."""
        found = [self.reachable[0]] * len(self.names)
        for _, k, segment, *_ in ladder.rises[: ladder.taken + index]:
            found[segment] = k
        return tuple(found)

    def _uniform(self) -> list[Ladder]:
        ladders = []
        for k in self.reachable:
            rises = [(0.0, k, s, 0, 0.0, 0.0, 0.0) for s in range(len(self.names))]
            tokens, drafted, asked, _ = self.totals((k,) * len(self.names))
            ladders.append(Ladder(k, rises, len(rises), (0.0,), [tokens], [drafted], [asked]))
        return ladders

    def _by_depth(self) -> list[Ladder]:
        """For every depth, the prefixes that no smaller depth has."""
        tokens, drafted, asked, depth = self.totals((self.reachable[0],) * len(self.names))
        ladders = [Ladder(depth, (), 0, (0.0,), [tokens], [drafted], [asked])]
        stairs: list[list[Rise]] = [[] for _ in self.names]
        rises: list[Rise] = []
        for below, k in pairwise(self.reachable):
            for segment, stair in enumerate(stairs):
                rise = self._rise(segment, below, k)
                if stair and rise[0] < stair[-1][0]:
                    rise, replaced = self._merged(stair, rise)
                    rises = [old for old in rises if old not in replaced]
                stair.append(rise)
                rises.append(rise)
            rises.sort(key=itemgetter(0))  # of equals, the one to the smaller K stays in front
            orders, ks, _, _, *more = zip(*rises, strict=True)
            first = ks.index(k) + 1
            by_tokens, by_drafted, by_asked = (
                list(accumulate(column, initial=start))[first:]
                for column, start in zip(more, (tokens, drafted, asked), strict=True)
            )
            ladders.append(
                Ladder(k, tuple(rises), first, orders[first - 1 :], by_tokens, by_drafted, by_asked)
            )
        return ladders

    def _merged(self, stair: list[Rise], rise: Rise) -> tuple[Rise, list[Rise]]:
        """A rise that brings more per draft token than those before it is taken together with these, so that
        each sorts behind what it stands on; and what it replaces."""
        replaced: list[Rise] = []
        while stair and rise[0] < (order := stair[-1][0]):
            if rise[0] >= order - ROUNDING * abs(order):
                return (order, *rise[1:]), replaced
            replaced.append(stair.pop())
            rise = self._rise(rise[2], replaced[-1][3], rise[1])
        return rise, replaced

    def _rise(self, segment: int, below: int, k: int) -> Rise:
        tokens, drafted = self.tokens[segment], self.drafted[segment]
        gain, cost = tokens[k] - tokens[below], drafted[k] - drafted[below]
        asked = 0.0 if below else self.weights[segment]
        # A drafter that never offers so much costs nothing more: what it brings is judged by its sign alone.
        order = -gain / cost if cost > 0.0 else -inf if gain > 0.0 else inf if gain < 0.0 else 0.0
        return order, k, segment, below, gain, cost, asked


class Batch:
    """A menu at a batch size, with some prefill in the forward."""

    def __init__(self, menu: Menu, batch: int, prefill_tokens: float) -> None:
        self.menu = menu
        self.batch = batch
        self.anchors = batch + prefill_tokens
        self.other_s = menu.cost.other_at(batch)
        grid = menu.cost.tokens_grid
        self.offsets = [(point - self.anchors) / batch for point in grid]
        """Draft tokens per live request with which the forward is at each point of the grid."""
        # Before the first point seconds are flat: index -1 says so.
        self.per_width = [*(batch / (right - left) for left, right in pairwise(grid)), 0.0]
        self.blocks = [block for ladder in menu.ladders for block in self._blocks(ladder)]

    def best(self, row: Row, tie: float, more_than: float) -> Lengths:
        """K by segment of the best candidate, or of the one with fewest draft tokens among those within the
        fraction `tie` of it; empty where none makes more than `more_than` tokens per second and request.

        `row`: seconds of the forward by the grid of tokens.
        """
        best, found = more_than, list[tuple[Block, list[float]]]()
        enough = best * (1.0 - tie)
        rate = enough * (1.0 - ROUNDING)
        for block in self.blocks:
            ladder, start_s = block.ladder, row[block.point]
            slope = (row[block.after] - start_s) * block.per_width
            start_s -= slope * block.offset
            ablest = bisect_left(ladder.orders, -rate * slope, block.first + 1, block.end) - 1
            least_s = start_s + slope * ladder.drafted[ablest] + block.least_s
            if ladder.tokens[ablest] < rate * least_s:
                continue
            scores = self._scores(block, start_s, slope)
            top = max(scores)
            if top > more_than:
                found.append((block, scores))
            if top > best:
                best, enough = top, top * (1.0 - tie)
                rate = enough * (1.0 - ROUNDING)
        choices: list[tuple[float, Ladder, int]] = []
        for block, scores in found:
            index = next((i for i, score in enumerate(scores, block.first) if score >= enough), -1)
            if index >= 0:
                choices.append((block.ladder.drafted[index], block.ladder, index))
        if not choices:
            return ()
        _, ladder, index = min(choices, key=itemgetter(0))
        return self.menu.lengths(ladder, index)

    def outcome(self, lengths: Lengths, row: Row) -> Outcome:
        """What a step with these K brings."""
        cost, batch = self.menu.cost, self.batch
        tokens, drafted, asked, depth = self.menu.totals(lengths)
        target_tokens = self.anchors + batch * drafted
        verify_s = interpolate(cost.tokens_grid, row, target_tokens)
        seconds = verify_s + self._draft_s(depth, asked) + self.other_s
        return Outcome(tokens, target_tokens, max(seconds, SHORTEST_S))

    def _scores(self, block: Block, start_s: float, slope: float) -> list[float]:
        """Tokens per second and request of each candidate of a block: as `outcome` says, in one go."""
        ladder, part, asked_s = block.ladder, slice(block.first, block.end), block.asked_s
        start_s += block.fixed_s
        columns = zip(ladder.tokens[part], ladder.drafted[part], ladder.asked[part], strict=True)
        return [
            tokens / max(start_s + slope * drafted + asked_s * asked, SHORTEST_S)
            for tokens, drafted, asked in columns
        ]

    def _draft_s(self, depth: int, asked: float) -> float:
        return self.menu.cost.draft_at(depth, self.batch * min(asked, 1.0)) if depth else 0.0

    def _blocks(self, ladder: Ladder) -> list[Block]:
        drafted, asked, offsets = ladder.drafted, ladder.asked, self.offsets
        last = len(offsets) - 2
        blocks, first, same_line = [], 0, -inf
        while first < len(drafted):
            if asked[first] > same_line:
                fixed_s, asked_s, same_line = self._draft_line(ladder.depth, asked[first])
            left = bisect_right(offsets, drafted[first], 0, last + 1) - 1
            end = bisect_right(drafted, offsets[left + 1], first + 1) if left < last else len(drafted)
            if same_line < inf:
                end = bisect_right(asked, same_line, first + 1, end)
            point, after = (left, left + 1) if left >= 0 else (0, 0)
            least = first if asked_s > 0.0 else end - 1
            blocks.append(
                Block(
                    ladder,
                    first,
                    end,
                    point,
                    after,
                    offsets[point],
                    self.per_width[left],
                    fixed_s,
                    asked_s,
                    fixed_s + asked_s * asked[least],
                )
            )
            first = end
        return blocks

    def _draft_line(self, depth: int, asked: float) -> tuple[float, float, float]:
        """Seconds of all but the forward: at 0 and by share of the requests asked; and up to which share."""
        if not depth:
            return self.other_s, 0.0, inf
        grid, row = self.menu.cost.requests_grid, self.menu.cost.draft_s[depth]
        point, until = _interval(grid, self.batch * asked)
        if point < 0:
            return self.other_s + row[0], 0.0, until / self.batch
        slope = (row[point + 1] - row[point]) / (grid[point + 1] - grid[point])
        return self.other_s + row[point] - slope * grid[point], slope * self.batch, until / self.batch


def _interval(grid: Sequence[int], at: float) -> tuple[int, float]:
    """As `interpolate` sees it: the point on the left, -1 where it is flat; and where the next one begins.

    >>> [_interval((2, 4, 8), at) for at in (1, 3, 5, 9)], _interval((2,), 3)
    ([(-1, 2), (0, 4), (1, inf), (1, inf)], (-1, inf))
    """
    last = len(grid) - 2
    point = min(bisect_right(grid, at) - 1, last)
    return point, grid[point + 1] if point < last else inf
