"""Another K meets other places of the same text.

A step lands where the one before it ended. Long proposals jump over the easy stretches and spend a larger
share of their steps in the hard ones; so what they bring in the places that the recorded K met is not quite
what they bring in their own. How much that is follows from how requests differ and drafts come in bursts:
both walk through the same requests, made from the acceptance fitted on the recording, and are compared.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_simulator.acceptance.draft_table import Acceptance, DraftTable
from steersman_simulator.replay.logged import Ints
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import generator

WALKED_TOKENS = 60_000
"""Of text, by segment."""

MOST_REQUESTS = 2_000


class Visits(Struct, frozen=True):
    """Factors from the places that the recorded K met to those that the other one meets."""

    tokens: float = 1.0
    """On tokens per request and step."""
    drafts: float = 1.0
    """On draft tokens per request and step."""


def visits(
    acceptance: Acceptance,
    segment: str,
    lengths: Sequence[int],
    recorded_k: Ints,
    other_k: Ints,
    weights: Ints,
    *,
    seed: int,
) -> Visits:
    """Of one segment. `lengths`: output tokens of its requests. The two K of a step are drawn together,
    with `weights`, from those of the recording."""
    if not len(lengths) or (recorded_k == other_k).all():
        return Visits()
    chance = generator(seed, 1)
    tables = _tables(acceptance, segment, lengths, seed)
    pairs, counts = np.unique(np.stack([recorded_k, other_k]), axis=1, return_inverse=True)
    mass = np.bincount(counts, weights, pairs.shape[1])
    walk = _Walk(tables, pairs, mass / mass.sum(), chance)
    here, there = walk.along(0), walk.along(1)
    return Visits(there[0] / here[0], there[1] / here[1] if here[1] else 1.0)


def _tables(acceptance: Acceptance, segment: str, lengths: Sequence[int], seed: int) -> list[DraftTable]:
    tables: list[DraftTable] = []
    tokens = ordinal = 0
    while tokens < WALKED_TOKENS and ordinal < MOST_REQUESTS:
        length = lengths[ordinal * 7919 % len(lengths)]
        table = acceptance.table(Arrival(0.0, segment, 1, length), ordinal, seed, 0.0)
        if table is not None:
            tables.append(table)
        tokens, ordinal = tokens + length, ordinal + 1
    return tables


class _Walk:
    """All requests at once, each from its first place to its last."""

    def __init__(
        self,
        tables: Sequence[DraftTable],
        pairs: Ints,
        mass: NDArray[np.float64],
        chance: np.random.Generator,
    ) -> None:
        self._lengths = np.array([len(table.offered) for table in tables])
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        self._offered = np.concatenate([table.offered for table in tables]).astype(np.int64)
        self._accepted = np.concatenate([table.accepted for table in tables]).astype(np.int64)
        self._pairs = pairs
        # By place, so that both walks draw alike where they meet.
        self._drawn = chance.choice(pairs.shape[1], len(self._offered), p=mass)

    def along(self, which: int) -> tuple[float, float]:
        """Tokens and drafts per step under the other K, at the places of the recorded one (0) or its own."""
        at = np.ones_like(self._lengths)  # the first token comes with the prefill
        tokens = drafts = steps = 0
        while (live := np.flatnonzero(at < self._lengths)).size:
            places = self._starts[live] + at[live]
            room = self._lengths[live] - at[live] - 1
            ks = np.minimum(self._pairs[:, self._drawn[places]], room)
            offered = np.minimum(ks, self._offered[places])
            kept = np.minimum(offered, self._accepted[places])
            steps += live.size
            tokens += int(kept[1].sum()) + live.size
            drafts += int(offered[1].sum())
            at[live] += kept[which] + 1
        return tokens / steps, drafts / steps
