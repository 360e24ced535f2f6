"""A small decision tree over prompt statistics, as the flat arrays that an engine walks down."""

import re
from math import inf
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from steersman_policies.prompt_statistics import FEATURES, PromptStatistics
from steersman_policies.units import MAX_SEGMENTS, SEGMENT_PATTERN

LEAF = -1

MAX_LEAVES = MAX_SEGMENTS - 1
MAX_NODES = 2 * MAX_LEAVES - 1
MAX_DEPTH = 8

_SEGMENT = re.compile(SEGMENT_PATTERN)

Feature: TypeAlias = Annotated[int, Meta(ge=LEAF)]
Child: TypeAlias = Annotated[int, Meta(ge=LEAF, lt=MAX_NODES)]
Threshold: TypeAlias = Annotated[float, Meta(ge=-(2.0**53), le=2.0**53)]


class SegmentTree(Struct, frozen=True, array_like=True):
    """Node 0 is the root, children stand behind their parent. Several leaves may share a segment.

    Raises ValueError, which a decoder turns into a refused message, for arrays that are no tree, for one
    that is too large, and for a question that this version does not know.

    >>> tree = SegmentTree((3, -1, -1), (0.25, 0.0, 0.0), (1, -1, -1), (2, -1, -1), ("", "tree/1", "tree/2"))
    >>> [tree.segment_of(PromptStatistics(repeated_fraction=share)) for share in (0.25, 0.5)]
    ['tree/1', 'tree/2']
    """

    features: tuple[Feature, ...]
    """Index into `FEATURES`; -1 at a leaf."""
    thresholds: tuple[Threshold, ...]
    """Up to here, inclusive, it goes to the left."""
    left: tuple[Child, ...]
    right: tuple[Child, ...]
    segments: tuple[Annotated[str, Meta(max_length=64)], ...]
    """Of the leaves; empty elsewhere."""

    def __post_init__(self) -> None:
        reason = _fault(self)
        if reason:
            raise ValueError(f"segment tree: {reason}")

    def segment_of(self, statistics: PromptStatistics) -> str:
        """The segment of the leaf that the statistics lead to."""
        node = 0
        while (feature := self.features[node]) != LEAF:
            value = getattr(statistics, FEATURES[feature])
            node = self.left[node] if value <= self.thresholds[node] else self.right[node]
        return self.segments[node]

    @property
    def names(self) -> tuple[str, ...]:
        """The segments that it may give, in the order of the nodes."""
        return tuple(dict.fromkeys(name for name in self.segments if name))

    def lines(self) -> list[str]:
        """The tree for people: what leads to each leaf, a leaf a line.

        >>> SegmentTree((0, -1, -1), (96, 0, 0), (1, -1, -1), (2, -1, -1), ("", "short", "long")).lines()
        ['short: prompt_tokens <= 96', 'long: prompt_tokens > 96']
        """
        ranges: list[dict[str, tuple[float, float]]] = [{}] * len(self.features)
        for node, feature in enumerate(self.features):
            if feature != LEAF:
                name, edge = FEATURES[feature], self.thresholds[node]
                low, high = ranges[node].get(name, (-inf, inf))
                ranges[self.left[node]] = {**ranges[node], name: (low, min(high, edge))}
                ranges[self.right[node]] = {**ranges[node], name: (max(low, edge), high)}
        leaves = (node for node, feature in enumerate(self.features) if feature == LEAF)
        return [f"{self.segments[node]}: {_described(ranges[node])}" for node in leaves]


def _described(ranges: dict[str, tuple[float, float]]) -> str:
    """Ranges for people, open at the left and closed at the right."""
    words = (
        f"{name} > {low:g}" if high == inf else (f"{low:g} < " if low > -inf else "") + f"{name} <= {high:g}"
        for name, (low, high) in ranges.items()
    )
    return ", ".join(words) or "every request"


def _fault(tree: SegmentTree) -> str | None:  # noqa: PLR0911 - one return per rule
    """Why the arrays are no tree, or one that no engine should walk; None where they are."""
    nodes = len(tree.features)
    if not 1 <= nodes <= MAX_NODES:
        return f"{nodes} nodes, allowed are 1 to {MAX_NODES}"
    if any(len(column) != nodes for column in (tree.thresholds, tree.left, tree.right, tree.segments)):
        return "its arrays differ in length"
    depths, parents = [0] * nodes, [0] * nodes
    for node, feature in enumerate(tree.features):
        children = (tree.left[node], tree.right[node])
        name = tree.segments[node]
        if feature == LEAF:
            if children != (LEAF, LEAF) or not _SEGMENT.fullmatch(name):
                return f"leaf {node} needs a segment and no children, found {name!r} and {children}"
            continue
        if feature >= len(FEATURES) or name:
            return f"node {node}: question {feature}, allowed are 0 to {len(FEATURES) - 1} without a segment"
        for child in children:
            # Each stands behind its parent: there is no way back, so no walk is endless.
            if not node < child < nodes:
                return f"node {node}: child {child}, allowed are {node + 1} to {nodes - 1}"
            parents[child] += 1
            depths[child] = depths[node] + 1
    if parents[1:] != [1] * (nodes - 1):
        return "a node has no parent, or two"
    return f"depth {max(depths)}, at most {MAX_DEPTH}" if max(depths) > MAX_DEPTH else None
