"""Segments by number, as the kernels know them: who is live, which K each has, what each verified."""

from collections.abc import Mapping

import numpy as np

from steersman_simulator.world import kernels


class Segments:
    """Numbers are given in the order in which segments begin to decode."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.live: dict[str, int] = {}
        """Decode requests by segment; those without any are absent."""
        self.k = np.zeros(1, dtype=np.int64)
        """The K that each segment was commanded last."""
        self.outcomes = np.zeros((1, kernels.OUTCOMES), dtype=np.int64)
        """Requests by segment and code of outcome, over all steps."""
        self._numbers: dict[str, int] = {}
        self._commanded: Mapping[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a segment, a new one where it has none yet."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            if number == len(self.k):
                self.k = np.concatenate([self.k, np.zeros_like(self.k)])
                self.outcomes = np.vstack([self.outcomes, np.zeros_like(self.outcomes)])
        return number

    def count(self, name: str, more: int) -> None:
        """So many more decode requests of a segment, or fewer."""
        number = self.live.get(name, 0) + more
        if number:
            self.live[name] = number
        else:
            del self.live[name]
        self._commanded = {}

    def command(self, proposal_length: Mapping[str, int]) -> None:
        """K of every live segment; the same object as last time says nothing new."""
        if proposal_length is not self._commanded:
            self._commanded = proposal_length
            for name in self.live:
                self.k[self._numbers[name]] = proposal_length[name]
