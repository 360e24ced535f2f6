"""A trained bundle as the truth: its compiled tables, interpolated, and its conformal intervals as noise."""

from bisect import bisect_left
from math import log

from steersman_controller.train.bundle import GroupCard
from steersman_policies.view import StepCost, interpolate
from steersman_simulator.truths.noise import Noise
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.world.chance import Chance

_Q95_OF_NORMAL = 1.6449


class BundleSteps:
    """Step seconds of one group of a bundle; there is no chance in them.

    A belief made of the same bundle would know this truth exactly: to judge a controller, start it from
    another one.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._contexts = cost.context_grid_tokens

    def sampler(self, chance: Chance) -> "BundleSteps":
        """No chance in it."""
        del chance
        return self

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward, linear between the tables' tokens and contexts."""
        cost, context = self._cost, work.context_tokens
        prefill = cost.prefill_grid_tokens
        planes = cost.verify_s[len(prefill) - 1 if work.prefill_tokens and len(prefill) > 1 else 0]
        grid, tokens = cost.tokens_grid, work.target_tokens
        right = bisect_left(self._contexts, context)
        if not right or len(planes) == 1:
            return interpolate(grid, planes[0], tokens)
        right = min(right, len(planes) - 1)
        low_at, high_at = self._contexts[right - 1], self._contexts[right]
        low, high = interpolate(grid, planes[right - 1], tokens), interpolate(grid, planes[right], tokens)
        return low + (high - low) * (context - low_at) / (high_at - low_at)

    def draft_s(self, work: DraftWork) -> float:
        """Drafting; 0 where nobody is asked. Raises ValueError for a K that the bundle does not have."""
        if not (work.depth and work.requests):
            return 0.0
        if work.depth >= len(self._cost.draft_s):
            raise ValueError(f"bundle: K = {work.depth}, it knows K up to {len(self._cost.draft_s) - 1}")
        return self._cost.draft_at(work.depth, work.requests)

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """The host."""
        return self._cost.other_at(decode_requests)


def interval_noise(card: GroupCard) -> Noise:
    """Noise that fills the interval of a group; none where the bundle has no interval."""
    if card.interval is None:
        return Noise()
    log_sd = log(card.interval.q95 / card.interval.q05) / (2.0 * _Q95_OF_NORMAL)
    return Noise.of_log_sd(log_sd)
