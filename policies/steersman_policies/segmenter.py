"""Which segment a request belongs to: its explicit tag, else the first rule that matches, else the tree.

A request keeps the segment that it was admitted with, whatever plan arrives later.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from steersman_policies.prompt_statistics import PromptStatistics
from steersman_policies.segment_tree import SegmentTree
from steersman_policies.units import UNKNOWN_SEGMENT, Count, Name, Segment

Attribute: TypeAlias = Literal["tenant", "route", "lora", "sampling", "structured_output"]


class SegmentRule(Struct, frozen=True, array_like=True):
    """Sends requests whose `attribute` equals `value` to `segment`."""

    attribute: Attribute
    value: Name
    segment: Segment


class Segmenter(Struct, frozen=True, array_like=True):
    """Versioned with the plan, so that a report's segments can be traced to their rules."""

    version: Count = 0
    rules: tuple[SegmentRule, ...] = ()
    tree: SegmentTree | None = None
    """Asked where neither tag nor rule decides."""
    same_as: dict[Segment, Segment] = {}
    """Tags and segments of rules that count as another segment: evidence could not tell them apart."""

    def segment_of(
        self, tag: str, attributes: Mapping[str, str], statistics: PromptStatistics | None = None
    ) -> str:
        """The segment of a request; `attributes` holds facts about it, never prompt text.

        >>> rule = SegmentRule(attribute="lora", value="sql", segment="code")
        >>> segmenter = Segmenter(version=1, rules=(rule,), same_as={"talk": "chat"})
        >>> segmenter.segment_of("", {"lora": "sql"}), segmenter.segment_of("talk", {"lora": "sql"})
        ('code', 'chat')
        >>> segmenter.segment_of("", {})
        'unknown'
        """
        if tag:
            return self.same_as.get(tag, tag)
        for rule in self.rules:
            if attributes.get(rule.attribute) == rule.value:
                return self.same_as.get(rule.segment, rule.segment)
        if self.tree is None or statistics is None:
            return UNKNOWN_SEGMENT
        return self.tree.segment_of(statistics)
