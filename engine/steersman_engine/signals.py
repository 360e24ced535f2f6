"""Counts the drafts of a step by what was known of them before: on the publisher's thread, for the report.

The state of a request is kept here and not in the engine: its thread only says which request a row is of.
How acceptance depends on a signal is learned from a sample of the requests, because this thread shares an
interpreter lock with the engine's: in a large batch only every second, fourth, ... request is followed,
from its first draft to its end.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TypeAlias

from steersman_engine.rows import StepRows
from steersman_policies.messages import Signal, SignalCounts
from steersman_policies.signals import RequestState, confidence_bins

GroupKey: TypeAlias = tuple[str, int, int]
"""Segment, place of the context, commanded K."""

FOLLOWED_REQUESTS = 16
"""About so many of a batch."""

REMEMBERED_REQUESTS = 1_024
"""Reports of ended requests may be dropped; the oldest ones go."""

_Cells: TypeAlias = dict[tuple[int, int], list[int]]
"""[verified, accepted] by bin and position."""


class Signals:
    """The states of the followed requests of one engine. Only `count` and `forget` change them."""

    def __init__(self) -> None:
        self._states: dict[int, RequestState] = {}
        self._newest = -1

    def count(self, rows: StepRows, contexts: Sequence[int]) -> dict[GroupKey, tuple[SignalCounts, ...]]:
        """The signals of each group of a step whose rows are valid, and learn how its drafts went."""
        self._follow(rows.requests)
        states, confidence = self._states, rows.confidence
        found: dict[tuple[GroupKey, Signal], _Cells] = {}
        for row, request in enumerate(rows.requests):
            if request not in states or not (drafted := rows.drafted[row]):
                continue
            state, accepted = states[request], rows.accepted[row]
            key = (rows.segments[row], contexts[row], rows.commanded_k[row])
            _add(found.setdefault((key, "state"), {}), repeat(state.bin), drafted, accepted)
            state.verified(drafted, accepted)
            if confidence and len(confidence[row]) == drafted:
                bins = confidence_bins(confidence[row])
                _add(found.setdefault((key, "confidence"), {}), bins, drafted, accepted)
        signals: dict[GroupKey, tuple[SignalCounts, ...]] = {}
        for (key, signal), cells in found.items():
            # Nothing is trimmed after it was drafted: what was offered was verified.
            counts = tuple((kind, position, n, n, kept) for (kind, position), (n, kept) in cells.items())
            signals[key] = (*signals.get(key, ()), SignalCounts(signal, counts))
        return signals

    def forget(self, request: int) -> None:
        """A request is over."""
        self._states.pop(request, None)

    def _follow(self, requests: Sequence[int]) -> None:
        """Begin to follow new requests, but none of which earlier drafts were missed."""
        newest = max(requests, default=-1)
        if newest <= self._newest:
            return
        stride = 1
        while stride * FOLLOWED_REQUESTS < len(requests):
            stride *= 2
        for request in requests:
            if request > self._newest and request % stride == 0:
                self._states[request] = RequestState()
        self._newest = newest
        while len(self._states) > REMEMBERED_REQUESTS:
            del self._states[next(iter(self._states))]


def _add(cells: _Cells, bins: Iterable[int], drafted: int, accepted: int) -> None:
    """Count a draft at each of its positions."""
    for position, kind in zip(range(1, drafted + 1), bins, strict=False):
        cell = cells.get((kind, position))
        if cell is None:
            cell = cells[kind, position] = [0, 0]
        cell[0] += 1
        cell[1] += position <= accepted
