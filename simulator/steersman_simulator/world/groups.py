"""The groups of a step report, from the rows of a batch."""

from collections.abc import Sequence

import numpy as np

from steersman_policies.messages import Group, NotDrafted
from steersman_simulator.world import kernels


class Groups:
    """Makes groups, for steps of at most so many requests."""

    def __init__(self, capacity: int) -> None:
        self._hashed = np.full(4 << (capacity - 1).bit_length(), -1, dtype=np.int64)
        self._cells = np.zeros((3, capacity), dtype=np.int64)
        self._groups = np.zeros((capacity, kernels.GROUP_FIELDS), dtype=np.int64)
        self._outcomes = np.zeros((3, capacity), dtype=np.int64)

    def of(self, rows: kernels.Ints, count: int, segments: Sequence[str]) -> tuple[Group, ...]:
        """Groups of the last commit in the order of their first request; before any of them leaves."""
        found, drafted = kernels.group(rows, count, self._hashed, self._cells, self._groups, self._outcomes)
        cells = list(zip(*self._outcomes[:, :drafted].tolist(), strict=True))
        out, at = [], 0
        for group, requests, with_draft, no_match, no_room, empty, more in self._groups[:found].tolist():
            place, k = divmod(group, kernels.WIDTH)
            segment, bucket = divmod(place, kernels.BUCKETS)
            mine, at = tuple(cells[at : at + more]), at + more
            not_drafted: dict[NotDrafted, int] = {}
            if no_match:
                not_drafted["no_match"] = no_match
            if no_room:
                not_drafted["length_limit"] = no_room
            out.append(Group(segments[segment], bucket, requests, k, with_draft, mine, empty, not_drafted))
        return tuple(out)
