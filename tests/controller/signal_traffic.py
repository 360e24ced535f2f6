"""Requests that are drafted for, and what an engine would say of their drafts before they are verified.

Each request is easier or harder than others, for as long as it lives; its drafter says how sure it is, and is
too sure of itself. Nothing here follows the model of the belief.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from steersman_policies.messages import Group, Signal, SignalCounts
from steersman_policies.signals import CONFIDENCE_EDGES, RequestState

K = 5

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Requests:
    """A batch whose members live for some steps. `spread`: how much they differ, in log-odds of acceptance;
    `noise`: "bursts", "heavy tails" or "two kinds" of drafts."""

    def __init__(
        self,
        seed: int,
        *,
        number: int = 16,
        spread: float = 0.0,
        lives: float = 5.0,
        noise: str = "heavy tails",
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.number, self.spread, self.lives, self.noise = number, spread, lives, noise
        self.effect = self.rng.normal(0.0, spread, number)
        self.level = self.rng.standard_normal(number)
        self.states = [RequestState() for _ in range(number)]

    def drafts(self) -> tuple[Matrix, Mask]:
        """(requests, K): the drafter's probability of each token, and whether the target accepts up to it."""
        for row in np.flatnonzero(self.rng.random(self.number) < 1.0 / self.lives).tolist():
            self.effect[row] = self.rng.normal(0.0, self.spread)
            self.states[row] = RequestState()
        shape = (self.number, K)
        odds = 1.0 + self.effect[:, None] + self._disturbance()[:, None]
        odds = odds + 0.6 * self.rng.standard_normal(shape).cumsum(axis=1)
        accepted = self.rng.random(shape) < _share(0.7 * odds - 0.2)
        return _share(odds), accepted.cumprod(axis=1).astype(bool)

    def verify(
        self, segment: str, said: Matrix, accepted: Mask, verified: Mask, *signals: Signal, k: int = K
    ) -> Group:
        """What the engine reports of these drafts, of which only some tokens are verified."""
        lengths = verified[:, :k].sum(axis=1)
        kept = np.minimum(accepted.sum(axis=1), lengths)
        bins: dict[Signal, npt.NDArray[np.int64]] = {}
        if "state" in signals:
            bins["state"] = np.array([[state.bin] * k for state in self.states])
        if "confidence" in signals:
            bins["confidence"] = np.searchsorted(CONFIDENCE_EDGES, said[:, :k].cumprod(axis=1))
        found = tuple(SignalCounts(name, _counts(bins[name], lengths, kept)) for name in signals)
        lengths, kept = lengths.tolist(), kept.tolist()
        for state, length, count in zip(self.states, lengths, kept, strict=True):
            if length:
                state.verified(length, count)
        outcomes = Counter(pair for pair in zip(lengths, kept, strict=True) if pair[0])
        left = self.number - outcomes.total()
        return Group(
            segment,
            0,
            self.number,
            k,
            outcomes.total(),
            tuple((d, a, n) for (d, a), n in outcomes.items()),
            not_drafted={"length_limit": left} if left else {},
            signals=found,
        )

    def _disturbance(self) -> Matrix:
        if self.noise == "two kinds":
            return np.where(self.rng.random(self.number) < 0.4, -2.0, 1.2)
        if self.noise == "heavy tails":
            return self.rng.standard_t(3, self.number)
        self.level = 0.64 * self.level + 0.77 * self.rng.standard_normal(self.number)
        return 1.3 * self.level


def _counts(
    bins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]
) -> tuple[tuple[int, int, int, int, int], ...]:
    """(bin, position, offered, verified, accepted); `bins` by draft and position, 0 to 9."""
    k = bins.shape[1]
    place, position = bins * k + np.arange(k), np.arange(k)
    offered = np.bincount(place.reshape(-1), minlength=10 * k)
    verified, accepted = (
        np.bincount(place[position < upto[:, None]], minlength=10 * k) for upto in (lengths, kept)
    )
    there = np.flatnonzero(offered)
    columns = (there // k, there % k + 1, offered[there], verified[there], accepted[there])
    return tuple(zip(*(column.tolist() for column in columns), strict=True))


def _share(odds: Matrix) -> Matrix:
    return 1.0 / (1.0 + np.exp(-odds))
