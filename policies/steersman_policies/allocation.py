"""The best K by segment in one cell of a plan: committed tokens per busy second.

In a cell of `b` live requests, of which the share `w_s` belongs to segment s, raising K of s from
j - 1 to j adds ``b * w_s * offered_sj`` tokens to the target's forward and commits
``b * w_s * survival_sj`` more tokens on average. Sorted by survival per offered token, the prefixes
of that list are the candidates (survival falls with j, so every prefix is a valid set of K). Step
costs are stepped and not convex, so *all* prefixes are scored, for every drafting depth, and the
global maximum wins (papers: SmartSpec, arXiv 2406.14066; DSpark, arXiv 2607.05147).

Everything about a candidate but its seconds is proportional to the batch. So the candidates of a plan
are made once, and a cell only walks through their numbers.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import Row, SegmentBelief, View, interpolate

Lengths: TypeAlias = Mapping[str, int]
"""K by segment."""


class Candidate(Struct, frozen=True, gc=False):
    """K by segment, and what it means per live request of the batch."""

    lengths: Lengths
    tokens: float
    """Committed, the bonus token included."""
    drafted: float
    asked: float
    """Share of the requests that the drafter is asked about."""
    depth: int


class Menu:
    """The candidates for a group of segments that share a batch, those with fewest draft tokens first."""

    def __init__(self, view: View, segments: Sequence[SegmentBelief], known_weight: float) -> None:
        self.cost = view.cost
        self.reachable = view.hello.reachable_k
        total = sum(s.share for s in segments)
        self.weights = {s.segment: s.share / total if total > 0.0 else 1.0 / len(segments) for s in segments}
        # A segment that is hardly known is judged by its lower bound: speculation has to earn it.
        self.tokens = {s.segment: s.gains(low=s.weight < known_weight) for s in segments}
        self.drafted = {s.segment: _sums(s.offered()) for s in segments}
        choices = self._prefixes() if view.hello.per_request_k else self._uniform()
        self.candidates = sorted(choices, key=attrgetter("drafted"))
        self.all_drafted = [candidate.drafted for candidate in self.candidates]
        self.all_tokens = [candidate.tokens for candidate in self.candidates]

    def candidate(self, lengths: Lengths) -> Candidate:
        """What these K mean."""
        weights = self.weights
        return Candidate(
            lengths=lengths,
            tokens=1.0 + sum(weights[s] * self.tokens[s][k] for s, k in lengths.items()),
            drafted=sum(weights[s] * self.drafted[s][k] for s, k in lengths.items()),
            asked=min(sum(weights[s] for s, k in lengths.items() if k), 1.0),
            depth=max(lengths.values()),
        )

    def fixed_s(self, batch: int) -> list[float]:
        """Seconds of each candidate apart from the target's forward."""
        other_s = self.cost.other_at(batch)
        draft_s: dict[tuple[int, float], float] = {}
        out = []
        for candidate in self.candidates:
            key = (candidate.depth, candidate.asked)
            if key not in draft_s:
                draft_s[key] = self.cost.draft_at(key[0], batch * key[1]) if key[0] else 0.0
            out.append(other_s + draft_s[key])
        return out

    def _uniform(self) -> list[Candidate]:
        return [self.candidate(dict.fromkeys(self.weights, k)) for k in self.reachable]

    def _prefixes(self) -> list[Candidate]:
        """For every depth, each prefix of the increments sorted by what a draft token brings."""
        increments = self._increments()
        floor = self.candidate(dict.fromkeys(self.weights, self.reachable[0]))
        found = {tuple(floor.lengths.values()): floor}
        for depth in self.reachable[1:]:
            lengths, deepest = dict(floor.lengths), floor.depth
            tokens, drafted, asked = floor.tokens, floor.drafted, floor.asked
            for _, k, segment in increments:
                below = lengths[segment]
                # A rise that sorts before the rise below it is taken together with that one.
                if not below < k <= depth:
                    continue
                lengths[segment], deepest, weight = k, max(deepest, k), self.weights[segment]
                tokens += weight * (self.tokens[segment][k] - self.tokens[segment][below])
                drafted += weight * (self.drafted[segment][k] - self.drafted[segment][below])
                asked += 0.0 if below else weight
                key = tuple(lengths.values())
                if key not in found:
                    found[key] = Candidate(dict(lengths), tokens, drafted, min(asked, 1.0), deepest)
        return list(found.values())

    def _increments(self) -> list[tuple[float, int, str]]:
        """(minus committed per draft token, K, segment) of each rise by one reachable K, best first."""
        increments = []
        for segment in self.weights:
            tokens, drafted = self.tokens[segment], self.drafted[segment]
            for below, k in pairwise(self.reachable):
                gain, cost = tokens[k] - tokens[below], drafted[k] - drafted[below]
                increments.append((-gain / cost if cost > 0.0 else 0.0, k, segment))
        return sorted(increments)


class Cell:
    """One cell of the plan: the candidates of a menu at a batch size, a context and a prefill."""

    def __init__(
        self, menu: Menu, batch: int, prefill_tokens: float, verify_row: Row, fixed_s: Sequence[float]
    ) -> None:
        self.menu = menu
        self.batch = batch
        self.anchors = batch + prefill_tokens
        self.row = verify_row
        self.fixed_s = fixed_s

    def choose(self, held: Lengths, band: float, tie: float) -> Lengths:
        """The best K by segment; the `held` one while nothing beats it by more than `band`."""
        scores = self._scores()
        enough = max(scores) * (1.0 - tie)
        best = next(i for i, score in enumerate(scores) if score >= enough)
        if held:
            # What the plan did not name was served as unknown.
            mine = {segment: held.get(segment, held[UNKNOWN_SEGMENT]) for segment in self.menu.weights}
            if self.goodput(self.menu.candidate(mine)) * (1.0 + band) >= scores[best]:
                return mine
        return self.menu.candidates[best].lengths

    def goodput(self, candidate: Candidate) -> float:
        """Committed tokens per second."""
        return self.batch * candidate.tokens / self.seconds(candidate)

    def seconds(self, candidate: Candidate) -> float:
        """Duration of a step."""
        cost, batch = self.menu.cost, self.batch
        verify_s = interpolate(cost.tokens_grid, self.row, self.anchors + batch * candidate.drafted)
        draft_s = cost.draft_at(candidate.depth, batch * candidate.asked) if candidate.depth else 0.0
        return max(verify_s + draft_s + cost.other_at(batch), 1e-9)

    def _scores(self) -> list[float]:
        """`goodput` of every candidate: the same sums, with the interpolation written out."""
        menu, row, batch, anchors = self.menu, self.row, self.batch, self.anchors
        grid = menu.cost.tokens_grid
        slopes = _slopes(grid, row)
        left, last, scores = 0, len(slopes) - 1, []
        for drafted, tokens, fixed_s in zip(menu.all_drafted, menu.all_tokens, self.fixed_s, strict=True):
            at = anchors + batch * drafted
            while left < last and grid[left + 1] < at:
                left += 1  # candidates come by ascending draft tokens
            beyond = at - grid[left]
            verify_s = row[left] + slopes[left] * beyond if beyond > 0.0 else row[left]
            scores.append(batch * tokens / max(verify_s + fixed_s, 1e-9))
        return scores


def _slopes(grid: Sequence[int], row: Row) -> list[float]:
    if len(grid) == 1:
        return [0.0]
    return [
        (right - left) / (end - start)
        for start, end, left, right in zip(grid, grid[1:], row, row[1:], strict=False)
    ]


def _sums(terms: Sequence[float]) -> list[float]:
    """Running sums, from the empty one.

    >>> _sums((0.5, 0.25))
    [0.0, 0.5, 0.75]
    """
    sums = [0.0]
    for term in terms:
        sums.append(sums[-1] + term)
    return sums
