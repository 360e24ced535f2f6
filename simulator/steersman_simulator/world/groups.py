"""The groups of a step report from the cells that the kernel counted."""

from collections.abc import Iterable, Sequence
from typing import Final

from steersman_policies.messages import Group, NotDrafted
from steersman_simulator.world.kernels import BUCKETS, EMPTY, LENGTH_LIMIT, NO_MATCH, OUTCOMES, WIDTH

_REASONS: Final[dict[int, NotDrafted]] = {NO_MATCH: "no_match", LENGTH_LIMIT: "length_limit"}


class _Rows:
    """What a group adds up to."""

    __slots__ = ("drafted", "empty", "not_drafted", "outcomes", "requests")

    def __init__(self) -> None:
        self.requests = self.drafted = self.empty = 0
        self.outcomes: list[tuple[int, int, int]] = []
        self.not_drafted: dict[NotDrafted, int] = {}


def groups(cells: Iterable[tuple[int, int]], segments: Sequence[str]) -> tuple[Group, ...]:
    """Groups in the order of their first cell; a cell is (key as in `kernels.commit`, requests)."""
    found: dict[int, _Rows] = {}
    for key, number in cells:
        group, code = divmod(key, OUTCOMES)
        rows = found.get(group)
        if rows is None:
            rows = found[group] = _Rows()
        rows.requests += number
        if code >= WIDTH:
            rows.drafted += number
            rows.outcomes.append((*divmod(code, WIDTH), number))
        elif code == EMPTY:
            rows.empty += number
        elif code:
            rows.not_drafted[_REASONS[code]] = number
    out = []
    for group, rows in found.items():
        place, k = divmod(group, WIDTH)
        segment, bucket = divmod(place, BUCKETS)
        outcomes = tuple(rows.outcomes)
        out.append(
            Group(
                segments[segment],
                bucket,
                rows.requests,
                k,
                rows.drafted,
                outcomes,
                rows.empty,
                rows.not_drafted,
            )
        )
    return tuple(out)
