"""The best K by segment in one cell of a plan: committed tokens per busy second.

Step costs are stepped and not convex, so the global maximum over *all* candidates wins, for every drafting
depth (papers: SmartSpec, arXiv 2406.14066; DSpark, arXiv 2607.05147). What they are is in
`steersman_policies.candidates`; everything about one but its seconds is proportional to the batch, so they
are the same in all cells of a plan.

In a cell they come in blocks, within which seconds of the forward are linear in draft tokens. Of two
neighbours in a block the longer is worth more than it costs, at a given rate of tokens per second, as long as
its last rise brings more tokens per draft token than so many seconds are worth: the one after which this ends
is the best that the block can offer. Where even that one, with the least that drafting can take, falls short
of the rate that was found elsewhere, or that has to be exceeded, the block is passed over.
"""

from bisect import bisect_left, bisect_right
from math import inf
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from steersman_policies.candidates import ROUNDING, Ladder, Lengths, Menu
from steersman_policies.view import Row, interpolate

SHORTEST_S = 1e-9
"""No step takes less."""


Block: TypeAlias = tuple[Ladder, int, int, int, int, float, float, float, float, float]
"""Candidates of a ladder in one batch, over which all seconds are linear: the ladder, the first and the end;
the point of the grid of tokens before them and the one after, the draft tokens per live request with which
the forward would be at the former, and by what the difference of the two is to be multiplied for one; then
seconds of all but the forward: the least of them, those without any request that is asked, and those by share
of the requests asked."""


class Outcome(NamedTuple):
    """What is expected of a step."""

    tokens: float
    """Committed per live request."""
    target_tokens: float
    seconds: float


class Batch:
    """A menu at a batch size, with some prefill in the forward."""

    def __init__(self, menu: Menu, batch: int, prefill_tokens: float) -> None:
        self.menu = menu
        self.batch = batch
        self.anchors = batch + prefill_tokens
        self.other_s = menu.cost.other_at(batch)
        self._blocks = self._cut()

    def best(self, row: Row, tie: float, more_than: float) -> Lengths:
        """K by segment of the best candidate, or of the one with fewest draft tokens among those within the
        fraction `tie` of it; empty where none makes more than `more_than` tokens per second and request.

        `row`: seconds of the forward by the grid of tokens.
        """
        best, rate, found = more_than, more_than * (1.0 - ROUNDING), list[tuple[Block, list[float]]]()
        for block in self._blocks:
            ladder, first, end, point, after, offset, per_width, least_s, _, _ = block
            slope = (row[after] - row[point]) * per_width
            start_s = row[point] - slope * offset
            ablest = bisect_left(ladder.orders, -rate * slope, first + 1, end) - 1
            if ladder.tokens[ablest] < rate * (start_s + slope * ladder.drafted[ablest] + least_s):
                continue
            scores = _scores(block, start_s, slope)
            top = max(scores)
            if top > more_than:
                found.append((block, scores))
            if top > best:
                best = top
                rate = max(best * (1.0 - tie), more_than) * (1.0 - ROUNDING)
        enough = best * (1.0 - tie)
        choices: list[tuple[float, Ladder, int]] = []
        for (ladder, first, *_), scores in found:
            index = next((i for i, score in enumerate(scores, first) if score >= enough), -1)
            if index >= 0:
                choices.append((ladder.drafted[index], ladder, index))
        if not choices:
            return ()
        _, ladder, index = min(choices, key=itemgetter(0))
        return self.menu.lengths(ladder, index)

    def outcome(self, lengths: Lengths, row: Row) -> Outcome:
        """What a step with these K brings."""
        tokens, drafted, asked, depth = self.menu.totals(lengths)
        target_tokens = self.anchors + self.batch * drafted
        verify_s = interpolate(self.menu.cost.tokens_grid, row, target_tokens)
        seconds = verify_s + self._draft_s(depth, asked) + self.other_s
        return Outcome(tokens, target_tokens, max(seconds, SHORTEST_S))

    def _draft_s(self, depth: int, asked: float) -> float:
        return self.menu.cost.draft_at(depth, self.batch * asked) if depth else 0.0

    def _cut(self) -> list[Block]:
        """The candidates, cut where the forward or drafting begins another line."""
        batch, anchors, grid, ladders = (
            self.batch,
            self.anchors,
            self.menu.cost.tokens_grid,
            self.menu.ladders,
        )
        # Before the first point seconds are flat: then it is -1.
        start, stop = (
            min(bisect_right(grid, anchors + batch * drafted), len(grid) - 1) - 1
            for drafted in (ladders[0].drafted[0], ladders[-1].drafted[-1])
        )
        ends = [*[(grid[point + 1] - anchors) / batch for point in range(start, stop)], inf]
        lines = [
            (point, point + 1, (grid[point] - anchors) / batch, batch / (grid[point + 1] - grid[point]))
            if point >= 0
            else (0, 0, 0.0, 0.0)
            for point in range(start, stop + 1)
        ]
        blocks = list[Block]()
        for ladder in ladders:
            drafted, asked, first, asked_at_most = ladder.drafted, ladder.asked, 0, -inf
            line = bisect_right(ends, drafted[0])
            while first < len(drafted):
                end = bisect_right(drafted, ends[line], first)
                if end == first:
                    line += 1
                    continue
                if asked[first] > asked_at_most:
                    fixed_s, asked_s, asked_at_most = self._draft_line(ladder.depth, asked[first])
                if asked_at_most < inf:
                    end = bisect_right(asked, asked_at_most, first + 1, end)
                least_s = fixed_s + asked_s * asked[first if asked_s > 0.0 else end - 1]
                blocks.append((ladder, first, end, *lines[line], least_s, fixed_s, asked_s))
                first = end
        return blocks

    def _draft_line(self, depth: int, asked: float) -> tuple[float, float, float]:
        """Seconds of all but the forward: at 0 and by share of the requests asked; and up to which share."""
        if not depth:
            return self.other_s, 0.0, inf
        grid, row, batch = self.menu.cost.requests_grid, self.menu.cost.draft_s[depth], self.batch
        right = min(bisect_right(grid, batch * asked), len(grid) - 1)  # as `interpolate` sees it
        until = grid[right] / batch if right < len(grid) - 1 else inf
        if right == 0:
            return self.other_s + row[0], 0.0, until
        slope = (row[right] - row[right - 1]) / (grid[right] - grid[right - 1])
        return self.other_s + row[right] - slope * grid[right], slope * batch, until


def _scores(block: Block, start_s: float, slope: float) -> list[float]:
    """Tokens per second and request of each candidate of a block: as `outcome` says, in one go."""
    ladder, first, end, *_, fixed_s, asked_s = block
    part, start_s = slice(first, end), start_s + fixed_s
    columns = zip(ladder.tokens[part], ladder.drafted[part], ladder.asked[part], strict=True)
    return [
        tokens / max(start_s + slope * drafted + asked_s * asked, SHORTEST_S)
        for tokens, drafted, asked in columns
    ]
