"""A truth some factor slower than another: a sick engine, another clock."""

from msgspec import Struct

from steersman_simulator.truths.step_work import DraftWork, StepSeconds, Truth, VerifyWork
from steersman_simulator.world.chance import Chance


class ScaledTruth(Struct, frozen=True):
    """Every second of `truth`, times `factor`."""

    truth: Truth
    factor: float

    def sampler(self, chance: Chance) -> "ScaledSeconds":
        """One stream."""
        return ScaledSeconds(self.truth.sampler(chance), self.factor)


class ScaledSeconds:
    """One stream."""

    def __init__(self, seconds: StepSeconds, factor: float) -> None:
        self._seconds = seconds
        self._factor = factor

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward."""
        return self._factor * self._seconds.verify_s(work)

    def draft_s(self, work: DraftWork) -> float:
        """Drafting."""
        return self._factor * self._seconds.draft_s(work)

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Everything else."""
        return self._factor * self._seconds.other_s(
            decode_requests=decode_requests, committed_tokens=committed_tokens
        )
