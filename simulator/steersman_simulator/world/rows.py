"""Decode requests as arrays, a row each in order of admission, and their drafts in one stretch of memory."""

import numpy as np
from numpy.typing import NDArray

from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.world import kernels


class Rows:
    """Rows 0 to `count` - 1 are in use. `values` has shape [field, row], fields as in `kernels`."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.values = kernels.empty_rows(capacity)
        self.delivered_s = np.zeros(capacity)
        """When each row last got tokens."""
        self.offered: NDArray[np.uint8] = np.zeros(1 << 14, dtype=np.uint8)
        self.accepted: NDArray[np.uint8] = np.zeros(1 << 14, dtype=np.uint8)
        self._next = 0

    def add(self, values: dict[int, int], table: DraftTable | None, delivered_s: float) -> None:
        """One more row, behind the others; fields that are not given are 0."""
        row, self.count = self.count, self.count + 1
        self.values[:, row] = 0
        for field, value in values.items():
            self.values[field, row] = value
        self.delivered_s[row] = delivered_s
        self.values[kernels.TABLE, row] = -1
        if table is not None:
            self._place(row, table)

    def replace_table(self, row: int, table: DraftTable | None) -> None:
        """Other drafts for the same output. Those that wait for the next forward are made already."""
        at = self.values[kernels.TABLE, row]
        if table is None or at < 0:
            raise ValueError("acceptance: the drafts of a live request can neither appear nor vanish")
        self.offered[at : at + len(table.offered)] = table.offered
        self.accepted[at : at + len(table.accepted)] = table.accepted

    def remove(self, rows: kernels.Ints) -> None:
        """Let rows go, at least one and ascending; those behind them move up."""
        kernels.remove(self.values, self.count, self.delivered_s, rows)
        self.count -= len(rows)

    def _place(self, row: int, table: DraftTable) -> None:
        length = len(table.offered)
        if self._next + length > len(self.offered):
            self._compact(length)
        at, self._next = self._next, self._next + length
        self.offered[at : self._next] = table.offered
        self.accepted[at : self._next] = table.accepted
        self.values[kernels.TABLE, row] = at

    def _compact(self, more: int) -> None:
        """Drop the drafts of rows that went; afterwards half is free, so it costs little per token."""
        starts = self.values[kernels.TABLE, : self.count].tolist()
        lengths = self.values[kernels.OUTPUT, : self.count].tolist()
        live = sum(length for at, length in zip(starts, lengths, strict=True) if at >= 0)
        size = max(len(self.offered), 2 * (live + more))
        offered, accepted = np.zeros(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        self._next = 0
        for row, (at, length) in enumerate(zip(starts, lengths, strict=True)):
            if at >= 0:
                to, self._next = self._next, self._next + length
                offered[to : self._next] = self.offered[at : at + length]
                accepted[to : self._next] = self.accepted[at : at + length]
                self.values[kernels.TABLE, row] = to
        self.offered, self.accepted = offered, accepted
