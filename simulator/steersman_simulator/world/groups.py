"""The groups of a step report, from the cells that `kernels.commit` counted."""

from collections.abc import Sequence

import numpy as np

from steersman_policies.messages import Group, NotDrafted
from steersman_simulator.world import kernels


class Groups:
    """Makes groups, for steps of at most so many requests."""

    def __init__(self, capacity: int) -> None:
        self._groups = np.zeros((capacity, kernels.GROUP_FIELDS), dtype=np.int64)
        self._outcomes = np.zeros((3, capacity), dtype=np.int64)

    def of(self, cells: kernels.Ints, used: int, segments: Sequence[str]) -> tuple[Group, ...]:
        """Groups in the order of their first request. The cells are used up."""
        if not used:
            return ()
        found = kernels.collate(cells, used, self._groups, self._outcomes)
        drafted_tokens, accepted_tokens, numbers = self._outcomes[:, :used].tolist()
        rows = list(zip(drafted_tokens, accepted_tokens, numbers, strict=True))
        out, at = [], 0
        for group, requests, drafted, no_match, no_room, empty, outcomes in self._groups[:found].tolist():
            place, k = divmod(group, kernels.WIDTH)
            segment, bucket = divmod(place, kernels.BUCKETS)
            mine, at = tuple(rows[at : at + outcomes]), at + outcomes
            not_drafted: dict[NotDrafted, int] = {}
            if no_match:
                not_drafted["no_match"] = no_match
            if no_room:
                not_drafted["length_limit"] = no_room
            out.append(Group(segments[segment], bucket, requests, k, drafted, mine, empty, not_drafted))
        return tuple(out)
