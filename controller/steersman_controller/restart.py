"""K = 0 beside a loaded drafter is not the same as no drafter, and the second cannot be seen from inside.

So it has to be measured elsewhere, and comes in with a prior. Where a restart without speculation would win
at the present load, that is said, with its source.
"""

from collections.abc import Sequence

from msgspec import Struct

from steersman_controller.belief.load import RecentLoad
from steersman_controller.belief.prior import Prior
from steersman_policies.view import SegmentBelief, StepCost


class Restart(Struct, frozen=True):
    """A launch without any drafter against this one at its best K, at the present load."""

    gain: float
    """Tokens per second without a drafter over those here, less 1."""
    without_tokens_per_s: float
    best_tokens_per_s: float
    best_k: int
    wins: bool
    """Whether the gain is larger than what is uncertain about both."""
    source: str
    """Where the seconds without a drafter come from."""

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"without a drafter {self.without_tokens_per_s:.0f} tokens/s, here at best "
            f"{self.best_tokens_per_s:.0f} with K {self.best_k} ({self.gain:+.1%}; from {self.source})"
        )


class _Step(Struct, frozen=True):
    """A step without prefill in which every request is asked for the same K."""

    tokens: float
    committed: float
    seconds: float


def compare(
    prior: Prior,
    cost: StepCost,
    segments: Sequence[SegmentBelief],
    reachable_k: Sequence[int],
    load: RecentLoad,
) -> Restart | None:
    """None where the prior holds no step without a drafter.

    Its seconds are scaled by what the present step takes here against what the prior says of that step.
    """
    if prior.cost is None or prior.cost.without_drafter is None:
        return None
    requests, context = load.mean_requests, load.mean_context_tokens
    steps = {k: _step(cost, segments, k, requests, context) for k in reachable_k}
    best = max(steps, key=lambda k: steps[k].committed / steps[k].seconds)
    here = steps[best].committed / steps[best].seconds
    expected_s = prior.cost.step_s(steps[best].tokens, requests * context, best, requests)
    without = prior.cost.without_drafter.tokens_per_s(requests, context) * expected_s / steps[best].seconds
    doubt = prior.cost.relative_error + cost.relative_error
    return Restart(without / here - 1.0, without, here, best, without / here - 1.0 > doubt, prior.source)


def _step(
    cost: StepCost, segments: Sequence[SegmentBelief], k: int, requests: float, context: float
) -> _Step:
    total = sum(segment.share for segment in segments) or 1.0
    accepted = sum(segment.share * segment.gains()[k] for segment in segments) / total
    offered = sum(segment.share * sum(segment.offered()[:k]) for segment in segments) / total
    tokens = requests * (1.0 + offered)
    seconds = cost.verify_at(tokens, requests * context) + cost.other_at(requests)
    seconds += cost.draft_at(k, requests) if k else 0.0
    return _Step(tokens, requests * (1.0 + accepted), max(seconds, 1e-9))
