"""How likely each K was: what the executor's exploration leaves open in a recorded step.

The executor moves one segment to another K with probability epsilon, each segment as likely, and each of
the other K of the plan's set as likely; an engine with one K for a whole step moves all of them together.
A report holds the probability of the decision that was made. From it follow, by segment, the K that was
in force (`base`), and the probability `moved` that this segment had been sent elsewhere.
"""

from functools import cache

from msgspec import Struct

from steersman_policies.messages import StepReport


class Chances(Struct, frozen=True):
    """Of one segment in one step. P(base) = 1 - `moved`; every other K of `tried` shares `moved` equally."""

    base: int
    moved: float
    tried: tuple[int, ...]


class Propensities:
    """Of one engine; steps in order."""

    def __init__(self, *, per_request_k: bool) -> None:
        self._per_request_k = per_request_k
        self._base: dict[str, int] = {}

    def of(self, step: StepReport, k_set: tuple[int, ...]) -> dict[str, Chances]:
        """By commanded segment. `k_set`: what the plan in force explores; empty where it is not known."""
        commanded = step.commanded
        if step.explored:
            return self._explored(step, k_set)
        self._base |= commanded
        movable = {s: k for s, k in commanded.items() if not k_set or any(k != other for other in k_set)}
        left = max(1.0 - step.probability, 0.0)
        each = left / len(movable) if self._per_request_k and movable else left
        return {s: Chances(k, each if s in movable else 0.0, k_set) for s, k in commanded.items()}

    def _explored(self, step: StepReport, k_set: tuple[int, ...]) -> dict[str, Chances]:
        base = {segment: self._base.get(segment, k) for segment, k in step.commanded.items()}
        moved = [segment for segment, k in step.commanded.items() if k != base[segment]]
        if not moved:
            # The K in force changed in this very step: which segment was moved is not known.
            return {segment: Chances(k, 0.0, ()) for segment, k in step.commanded.items()}
        tried = k_set or tuple(sorted({step.commanded[segment] for segment in moved}))
        others = max(len([k for k in tried if k != base[moved[0]]]), 1)
        each = min(step.probability * others, 1.0)
        return {segment: Chances(k, each, tried) for segment, k in base.items()}


@cache
def at_least(chances: Chances, k: int) -> float:
    """P(the commanded K is `k` or more).

    >>> [at_least(Chances(2, 0.1, (8,)), k) for k in (2, 3)], at_least(Chances(2, 0.1, ()), 3)
    ([1.0, 0.1], 0.0)
    """
    others = [other for other in chances.tried if other != chances.base]
    if not others:
        return float(chances.base >= k)
    share = sum(other >= k for other in others) / len(others)
    return (1.0 - chances.moved) * (chances.base >= k) + chances.moved * share
