"""The signals in reports as arrays, those left out that contradict what the same report says."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask
from steersman_policies.messages import Group, Signal
from steersman_policies.units import SIGNAL_BINS

SIGNALS: tuple[Signal, ...] = ("state", "confidence")

_INDEX = {signal: index for index, signal in enumerate(SIGNALS)}


class SignalRows(Struct, frozen=True, gc=False):
    """One row per signal, bin and position of a group, in the order of the reports."""

    group: Counts
    signal: Counts
    bin: Counts
    position: Counts
    """From 1."""
    drafts: Array
    """[offered, verified, accepted] by row."""

    def cut(self, first: int, last: int) -> "SignalRows":
        """Rows of the groups `first` to `last`, the latter not included, counted from 0 again."""
        if not len(self.group):
            return self
        start, end = np.searchsorted(self.group, (first, last)).tolist()
        return SignalRows(
            group=self.group[start:end] - first,
            signal=self.signal[start:end],
            bin=self.bin[start:end],
            position=self.position[start:end],
            drafts=self.drafts[:, start:end],
        )


_NOTHING = np.zeros(0, np.int64)
NO_SIGNALS = SignalRows(_NOTHING, _NOTHING, _NOTHING, _NOTHING, np.zeros((3, 0)))


def signal_rows(groups: Sequence[Group]) -> SignalRows:
    """All rows of all groups. Numbers are taken as they are; a signal of another name becomes -1."""
    rows = [
        (index, _INDEX.get(found.signal, -1), *row)
        for index, group in enumerate(groups)
        for found in group.signals
        for row in found.counts
    ]
    if not rows:
        return NO_SIGNALS
    numbers = np.array(rows, np.float64).T
    with np.errstate(invalid="ignore"):
        group, signal, kind, position = numbers[:4].astype(np.int64)
    return SignalRows(group, signal, kind, position, numbers[4:])


def liars(
    rows: SignalRows, outcomes: tuple[Counts, Counts, Counts, Array], requests: Array, k_max: int
) -> Mask:
    """By group, whether its signals contradict the rest of it.

    `outcomes`: group, draft tokens, accepted ones and count of each. No signal can know of more drafts at a
    position than were verified there, nor of more that were accepted or refused on the way.
    """
    found = np.zeros(len(requests), np.bool_)
    offered, verified, accepted = rows.drafts
    fits = (rows.signal >= 0) & (rows.bin >= 0) & (rows.bin < SIGNAL_BINS)
    fits &= (rows.position >= 1) & (rows.position <= k_max)
    fits &= (accepted >= 0.0) & (accepted <= verified) & (verified <= offered)
    found[rows.group[~fits]] = True
    group, *marks, count = outcomes
    shape = (len(requests), k_max + 1)
    limits = [_at_least(group, mark, count, shape) for mark in marks]
    limits.append(limits[0] - limits[1])
    limits.append(np.broadcast_to(requests[:, None], shape))
    terms = (verified, accepted, verified - accepted, offered)
    for signal in range(len(SIGNALS)):
        mine = fits & (rows.signal == signal)
        place = rows.group[mine] * shape[1] + rows.position[mine]
        for limit, term in zip(limits, terms, strict=True):
            told = np.bincount(place, term[mine], shape[0] * shape[1]).reshape(shape)
            found |= (told > limit).any(axis=1)
    return found


def _at_least(group: Counts, mark: Counts, count: Array, shape: tuple[int, int]) -> Array:
    """By group and position, how many have their mark there or behind."""
    there = np.bincount(group * shape[1] + mark, count, shape[0] * shape[1]).reshape(shape)
    return np.asarray(there[:, ::-1].cumsum(axis=1)[:, ::-1], np.float64)
