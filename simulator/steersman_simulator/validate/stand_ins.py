"""Policies of papers 5.2, small and from their papers, for V10 only: what others' rules do to a batch.

They say how many tokens to draft for each request of a closed batch, one step after the other.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Seconds = Callable[[float], float]
"""Of a step of this batch by its draft tokens; none drafted, none paid."""

K_MAX = 7


class StandIn(Protocol):
    """One policy over one run."""

    def lengths(self, segments: Ints, truth: Ints, seconds: Seconds) -> Ints:
        """K of each request. `truth`: what will be accepted, for an oracle's eyes only."""
        ...

    def learn(self, segments: Ints, lengths: Ints, accepted: Ints, renewed: NDArray[np.bool_]) -> None:
        """What came of it; where `renewed`, another request has the place now."""
        ...


class FixedK:
    """The same K, always."""

    def __init__(self, k: int) -> None:
        self._k = k

    def lengths(self, segments: Ints, truth: Ints, seconds: Seconds) -> Ints:
        """K for everybody."""
        return np.full(len(segments), self._k)

    def learn(self, segments: Ints, lengths: Ints, accepted: Ints, renewed: NDArray[np.bool_]) -> None:
        """Nothing."""


class Oracle:
    """Drafts what will be accepted, up to 15."""

    def lengths(self, segments: Ints, truth: Ints, seconds: Seconds) -> Ints:
        """Every accepted token is worth its cost or none is."""
        wanted = np.minimum(truth, 15)
        batch, drafts = len(segments), float(wanted.sum())
        pays = (batch + drafts) / seconds(drafts) > batch / seconds(0.0)
        return wanted if pays else np.zeros_like(wanted)

    def learn(self, segments: Ints, lengths: Ints, accepted: Ints, renewed: NDArray[np.bool_]) -> None:
        """Nothing."""


class SmartSpec:
    """One alpha, one K (arXiv 2406.14066, as in its authors' code).

    Re-decided every 20 steps; K = 0 is favoured by 10 %; the scan ends at the first decrease. `chain`: alpha
    from accepted / drafted; else from A / (A + R), with a K of 1 at every fifth decision where it is off.
    """

    def __init__(self, *, chain: bool) -> None:
        self._chain = chain
        self._alpha = 0.7
        self._steps = self._decisions = self._k = 0

    def lengths(self, segments: Ints, truth: Ints, seconds: Seconds) -> Ints:
        """One K."""
        batch = len(segments)
        if self._steps % 20 == 0:
            self._k, best = 0, 1.1 * batch / seconds(0.0)
            before = best
            for k in range(1, K_MAX + 1):
                goodput = batch * sum(self._alpha**i for i in range(k + 1)) / seconds(float(batch * k))
                if k > 1 and goodput < before:
                    break
                if goodput > best:
                    self._k, best = k, goodput
                before = goodput
            self._decisions += 1
            if not (self._k or self._chain or self._decisions % 5):
                self._k = 1
        self._steps += 1
        return np.full(batch, self._k)

    def learn(self, segments: Ints, lengths: Ints, accepted: Ints, renewed: NDArray[np.bool_]) -> None:
        """EMA of 0.85 and 0.15."""
        drafted = int(lengths.sum())
        if drafted:
            taken, rejected = int(accepted.sum()), int((accepted < lengths).sum())
            ratio = taken / (drafted if self._chain else taken + rejected)
            self._alpha = 0.85 * self._alpha + 0.15 * ratio


class PositionAcceptance:
    """Acceptance by position and segment, censored, discounted by step; one K, or one by request.

    By request, a ratio of successes over what its segment expects scales the acceptance of its segment; slots
    go to the largest survivals, as many as make the best goodput. Where it is off, K = 1 is tried every 50
    steps.
    """

    def __init__(self, batch: int, *, by_request: bool) -> None:
        self._by_request = by_request
        self._reached = np.full((4, K_MAX), 5.0)
        self._accepted = np.full((4, K_MAX), 3.0)
        self._expected = np.zeros(batch)
        self._succeeded = np.zeros(batch)
        self._off_steps = 0

    def lengths(self, segments: Ints, truth: Ints, seconds: Seconds) -> Ints:
        """The best allocation, or the best K."""
        found = self._allocated(segments, seconds) if self._by_request else self._one_k(segments, seconds)
        self._off_steps = 0 if found.any() else self._off_steps + 1
        if self._off_steps == 50:
            self._off_steps = 0
            return np.ones_like(found)
        return found

    def learn(self, segments: Ints, lengths: Ints, accepted: Ints, renewed: NDArray[np.bool_]) -> None:
        """Positions behind a rejection are missing, not zero."""
        places = np.arange(K_MAX)
        taken = places < accepted[:, None]
        seen = places < np.minimum(lengths, accepted + 1)[:, None]
        expected = (self._means()[segments] * seen).sum(axis=1)
        self._reached *= 0.995
        self._accepted *= 0.995
        np.add.at(self._reached, segments, seen)
        np.add.at(self._accepted, segments, taken & seen)
        self._expected = np.where(renewed, 0.0, 0.97 * self._expected + expected)
        self._succeeded = np.where(renewed, 0.0, 0.97 * self._succeeded + (taken & seen).sum(axis=1))

    def _means(self) -> Floats:
        pooled = self._accepted.sum(axis=0) / self._reached.sum(axis=0)
        means: Floats = (self._accepted + 30.0 * pooled) / (self._reached + 30.0)
        return means

    def _one_k(self, segments: Ints, seconds: Seconds) -> Ints:
        survival = np.cumprod(self._means(), axis=1)[segments].sum(axis=0)
        tokens = len(segments) + np.concatenate([[0.0], np.cumsum(survival)])
        goodput = [tokens[k] / seconds(float(len(segments) * k)) for k in range(K_MAX + 1)]
        return np.full(len(segments), int(np.argmax(goodput)))

    def _allocated(self, segments: Ints, seconds: Seconds) -> Ints:
        ratio = (self._succeeded + 13.0) / (self._expected + 13.0)
        acceptance = np.clip(self._means()[segments] * ratio[:, None], 0.0, 0.999)
        survival = np.cumprod(acceptance, axis=1).ravel()
        order = np.argsort(-survival, kind="stable")
        tokens = len(segments) + np.concatenate([[0.0], np.cumsum(survival[order])])
        # Seconds are linear in draft tokens once there are any.
        one_s, two_s = seconds(1.0), seconds(2.0)
        drafts = np.arange(len(tokens))
        cost = np.where(drafts > 0, one_s + (drafts - 1) * (two_s - one_s), seconds(0.0))
        best = int(np.argmax(tokens / cost))
        return np.bincount(order[:best] // K_MAX, minlength=len(segments))
