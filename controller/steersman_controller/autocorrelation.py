"""How much the share of successes in a step says about the next step, from sums that can be kept for ever.

With independent requests Cov(sum_t, sum_t+1) is the number of requests in both times the covariance of one;
requests come and go slowly, so that number is taken as the smaller of both. Requests that are easier or
harder than others add to it.
"""

from typing import TypeAlias

from msgspec import Struct

Squares: TypeAlias = tuple[float, float, float]
"""Sums of success x success, of success x trial and trial x success, and of trial x trial."""

_NONE: Squares = (0.0, 0.0, 0.0)


class Autocorrelation(Struct):
    """Lag 1, of one segment. Grows by `add`, once a step."""

    successes: float = 0.0
    trials: float = 0.0
    joint: Squares = _NONE
    own: Squares = _NONE
    last: tuple[int, float, float, float] = (-2, 0.0, 0.0, 0.0)

    def add(self, step: int, requests: float, successes: float, trials: float) -> None:
        """What `requests` requests brought in a step; it is compared with `step` - 1, if that was added."""
        if requests <= 0:
            return
        self.successes += successes
        self.trials += trials
        before, n, s, t = self.last
        if before == step - 1:
            both = min(n, requests)
            self.joint = _plus(self.joint, s * successes, s * trials + t * successes, t * trials, both)
            self.own = _plus(self.own, s * s, 2.0 * s * t, t * t, 2.0 * n)
            self.own = _plus(
                self.own, successes * successes, 2.0 * successes * trials, trials * trials, 2.0 * requests
            )
        self.last = (step, requests, successes, trials)

    def plus(self, other: "Autocorrelation") -> "Autocorrelation":
        """The sums of both; it grows no more."""
        one, two = self, other
        return Autocorrelation(
            one.successes + two.successes,
            one.trials + two.trials,
            _plus(one.joint, *two.joint, 1.0),
            _plus(one.own, *two.own, 1.0),
        )

    @property
    def lag_one(self) -> float:
        """From 0 to 0.98; 0 where nothing is known.

        >>> bursts = Autocorrelation()
        >>> for step in range(400): bursts.add(step, 1, step // 20 % 2, 1)
        >>> round(bursts.lag_one, 2)
        0.9
        """
        share = self.successes / self.trials if self.trials else 0.0
        own = _residual(self.own, share)
        return min(max(_residual(self.joint, share) / own, 0.0), 0.98) if own > 1e-12 else 0.0


def _plus(sums: Squares, ss: float, st: float, tt: float, over: float) -> Squares:
    return sums[0] + ss / over, sums[1] + st / over, sums[2] + tt / over


def _residual(sums: Squares, share: float) -> float:
    """Sum of (s - share t)(s' - share t')."""
    return sums[0] - share * sums[1] + share * share * sums[2]
