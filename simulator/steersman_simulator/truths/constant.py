"""Hand-made step seconds."""

from msgspec import Struct

from steersman_policies.units import Seconds
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.world.chance import Chance


class ConstantSteps(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """Linear in the counts: for tests, examples and closed-form checks."""

    step_s: Seconds
    per_token_s: Seconds = 0.0
    per_context_token_s: Seconds = 0.0
    per_draft_token_s: Seconds = 0.0
    per_drafting_request_s: Seconds = 0.0
    host_s: Seconds = 0.0

    def sampler(self, chance: Chance) -> "ConstantSteps":
        """No chance in it."""
        del chance
        return self

    def verify_s(self, work: VerifyWork) -> float:
        """Linear in the tokens and the context."""
        return (
            self.step_s
            + self.per_token_s * work.target_tokens
            + self.per_context_token_s * work.context_tokens
        )

    def draft_s(self, work: DraftWork) -> float:
        """Linear in depth and requests."""
        if not work.depth:
            return 0.0
        return self.per_draft_token_s * work.depth + self.per_drafting_request_s * work.requests

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """A constant."""
        del decode_requests, committed_tokens
        return self.host_s
