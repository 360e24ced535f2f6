"""A share that was observed, how much is behind it, and how estimates lean on coarser ones."""

from typing import NamedTuple

NORMAL_Q95 = 1.645


class Estimate(NamedTuple):
    """A share and the number of observations that it is worth."""

    mean: float
    weight: float

    @property
    def low(self) -> float:
        """Lower bound of the 90 % interval (normal approximation of the Beta posterior).

        >>> Estimate(0.5, 1.0).low, round(Estimate(0.5, 99.0).low, 3)
        (0.0, 0.418)
        """
        deviation: float = (self.mean * (1.0 - self.mean) / (self.weight + 1.0)) ** 0.5
        return max(0.0, self.mean - NORMAL_Q95 * deviation)

    def refined(self, successes: float, trials: float, strength: float) -> "Estimate":
        """The estimate after more specific evidence; `self` counts for at most `strength` of it.

        >>> Estimate(0.5, 100.0).refined(8.0, 8.0, strength=2.0)
        Estimate(mean=0.9, weight=10.0)
        """
        mine = min(self.weight, strength)
        weight = mine + trials
        return Estimate(min((mine * self.mean + successes) / weight, 1.0), weight)


PRIOR = Estimate(0.5, 1.0)
"""So weak that its lower bound is 0: speculation starts where evidence has earned it."""
