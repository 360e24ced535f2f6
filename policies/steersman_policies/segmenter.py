"""Which segment a request belongs to: its explicit tag, else the first rule that matches.

A request keeps the segment that it was admitted with, whatever plan arrives later.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

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

    def segment_of(self, tag: str, attributes: Mapping[str, str]) -> str:
        """The segment of a request; `attributes` holds facts about it, never prompt text.

        >>> rule = SegmentRule(attribute="lora", value="sql", segment="code")
        >>> segmenter = Segmenter(version=1, rules=(rule,))
        >>> segmenter.segment_of("", {"lora": "sql"}), segmenter.segment_of("chat", {"lora": "sql"})
        ('code', 'chat')
        >>> segmenter.segment_of("", {})
        'unknown'
        """
        if tag:
            return tag
        for rule in self.rules:
            if attributes.get(rule.attribute) == rule.value:
                return rule.segment
        return UNKNOWN_SEGMENT
