"""The groups of a step report, from the rows of a batch."""

from collections.abc import Sequence

import numpy as np
from numba import njit

from steersman_policies.messages import Group, NotDrafted
from steersman_simulator.world import kernels
from steersman_simulator.world.kernels import Ints

(
    SEGMENT,
    BUCKET,
    REQUESTS,
    K,
    WITH_DRAFT,
    COMMITTED_NOTHING,
    WITHOUT_MATCH,
    WITHOUT_ROOM,
    CELLS,
    GROUP_FIELDS,
) = range(10)
"""Fields of a group. CELLS is how many outcomes with a draft it has."""


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _group(
    rows: Ints, count: int, hashed: Ints, cells: Ints, groups: Ints, outcomes: Ints
) -> tuple[int, int]:
    """Groups of what the last commit verified, in the order of their first row, before rows leave.

    `groups` [group, field] says what they are, `outcomes` [(drafted, accepted, requests), cell] what they
    verified: the cells of the first group, then those of the second, and so on. Returned: how many there
    are of both. `cells` and `hashed` are room for one entry a row; the latter is all -1 before and after,
    and its length is a power of two.
    """
    used, mask = 0, hashed.shape[0] - 1
    for row in range(count):
        if rows[kernels.SKIPPED, row]:
            continue
        bucket, cached = 0, rows[kernels.CONTEXT, row] - rows[kernels.NEW, row] - 1
        while bucket < kernels.BUCKETS - 1 and cached > kernels.EDGES[bucket]:
            bucket += 1
        place = (rows[kernels.SEGMENT, row] * kernels.BUCKETS + bucket) * kernels.WIDTH + rows[kernels.K, row]
        key = place * kernels.OUTCOMES + rows[kernels.OUTCOME, row]
        at = (key * 2654435761) & mask
        while hashed[at] >= 0 and cells[0, hashed[at]] != key:
            at = (at + 1) & mask
        if hashed[at] < 0:
            hashed[at] = used
            cells[0, used], cells[1, used], cells[2, used] = key, 0, at
            used += 1
        cells[1, hashed[at]] += 1
    for cell in range(used):
        hashed[cells[2, cell]] = -1
    found, drafted = _collate(cells, used, groups, outcomes)
    return found, drafted


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _collate(cells: Ints, used: int, groups: Ints, outcomes: Ints) -> tuple[int, int]:
    """The cells (key, requests) of each group brought together."""
    found = drafted = 0
    for first in range(used):
        place = cells[0, first] // kernels.OUTCOMES
        if place < 0:
            continue
        groups[found] = 0
        groups[found, SEGMENT] = place // kernels.WIDTH // kernels.BUCKETS
        groups[found, BUCKET] = place // kernels.WIDTH % kernels.BUCKETS
        groups[found, K] = place % kernels.WIDTH
        for cell in range(first, used):
            if cells[0, cell] < 0 or cells[0, cell] // kernels.OUTCOMES != place:
                continue
            code, requests = cells[0, cell] % kernels.OUTCOMES, cells[1, cell]
            cells[0, cell] = -1
            groups[found, REQUESTS] += requests
            if code >= kernels.WIDTH:
                groups[found, WITH_DRAFT] += requests
                groups[found, CELLS] += 1
                outcomes[0, drafted], outcomes[1, drafted] = code // kernels.WIDTH, code % kernels.WIDTH
                outcomes[2, drafted] = requests
                drafted += 1
            elif code == kernels.NO_MATCH:
                groups[found, WITHOUT_MATCH] = requests
            elif code == kernels.LENGTH_LIMIT:
                groups[found, WITHOUT_ROOM] = requests
            elif code == kernels.EMPTY:
                groups[found, COMMITTED_NOTHING] = requests
        found += 1
    return found, drafted


class Groups:
    """Makes groups, for steps of at most so many requests."""

    def __init__(self, capacity: int) -> None:
        self._hashed = np.full(4 << (capacity - 1).bit_length(), -1, dtype=np.int64)
        self._cells = np.zeros((3, capacity), dtype=np.int64)
        self._groups = np.zeros((capacity, GROUP_FIELDS), dtype=np.int64)
        self._outcomes = np.zeros((3, capacity), dtype=np.int64)

    def of(self, rows: Ints, count: int, segments: Sequence[str]) -> tuple[Group, ...]:
        """Groups of the last commit in the order of their first request; before any of them leaves."""
        found, used = _group(rows, count, self._hashed, self._cells, self._groups, self._outcomes)
        cells = tuple(zip(*self._outcomes[:, :used].tolist(), strict=True))
        out, at = [], 0
        for group in self._groups[:found].tolist():
            segment, bucket, requests, k, drafted, empty, no_match, no_room, more = group
            mine, at = cells[at : at + more], at + more
            not_drafted: dict[NotDrafted, int] = {}
            if no_match:
                not_drafted["no_match"] = no_match
            if no_room:
                not_drafted["length_limit"] = no_room
            out.append(Group(segments[segment], bucket, requests, k, drafted, mine, empty, not_drafted))
        return tuple(out)
