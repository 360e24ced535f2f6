"""What a step costs beyond its tokens: uneven rows, a switch of K, a drafter that has to catch up."""

from msgspec import Struct

from steersman_policies.units import Seconds
from steersman_simulator.truths.step_work import DraftWork, StepSeconds, Truth, VerifyWork
from steersman_simulator.world.chance import Chance


class Surcharges(Struct, frozen=True, forbid_unknown_fields=True):
    """Added to the seconds of another truth. Padding is none of them: it is in the tokens of a forward."""

    step_s: Seconds = 0.0
    """For every step: the host, launches, whatever is around the forwards."""
    ragged_row_s: Seconds = 0.0
    """For each decode request whose drafts are shorter than the longest of the step."""
    first_after_switch_s: Seconds = 0.0
    """For the first step after a switch of K."""
    stale_token_s: Seconds = 0.0
    """For each token that a drafter has to read before it drafts, or reads while K is 0 to keep up."""
    warm_follow_s: Seconds = 0.0
    """For each step with K = 0 in which a drafter is kept up with what was committed."""


class SurchargedTruth(Struct, frozen=True):
    """The seconds of `truth` and the surcharges."""

    truth: Truth
    surcharges: Surcharges

    def sampler(self, chance: Chance) -> "SurchargedSeconds":
        """One stream."""
        return SurchargedSeconds(self.truth.sampler(chance), self.surcharges)


class SurchargedSeconds:
    """One stream."""

    def __init__(self, seconds: StepSeconds, surcharges: Surcharges) -> None:
        self._seconds = seconds
        self._step_s = surcharges.step_s
        self._row_s, self._switch_s = surcharges.ragged_row_s, surcharges.first_after_switch_s
        self._stale_s, self._follow_s = surcharges.stale_token_s, surcharges.warm_follow_s

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward, uneven rows and the switch."""
        seconds = self._seconds.verify_s(work) + self._row_s * work.ragged_rows
        return seconds + self._switch_s if work.first_after_switch else seconds

    def draft_s(self, work: DraftWork) -> float:
        """Drafting, and what the drafter reads."""
        seconds = self._seconds.draft_s(work)
        if work.stale_tokens:
            seconds += self._stale_s * work.stale_tokens
            if not work.depth:
                seconds += self._follow_s
        return seconds

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Everything else, and what every step costs."""
        other_s = self._seconds.other_s(decode_requests=decode_requests, committed_tokens=committed_tokens)
        return self._step_s + other_s
