"""What a step has to do, and the protocol of whoever says how long that takes."""

from typing import Protocol

from msgspec import Struct

from steersman_simulator.world.chance import Chance


class VerifyWork(Struct, frozen=True, gc=False):
    """One forward of the target."""

    decode_requests: int
    draft_tokens: int
    """Draft tokens to verify, of all decode requests."""
    context_tokens: int
    """Cached tokens of all decode requests."""
    prefill_tokens: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    """Chunks of prompts as (tokens, tokens of the same prompt already in the cache)."""
    padding_tokens: int = 0
    """What the captured graph adds."""
    ragged_rows: int = 0
    """Decode requests whose drafts are shorter than the longest of the step."""
    first_after_switch: bool = False

    @property
    def target_tokens(self) -> int:
        """Tokens in the forward: an anchor per decode request, drafts, prompts, padding."""
        return self.decode_requests + self.draft_tokens + self.prefill_tokens + self.padding_tokens


class DraftWork(Struct, frozen=True, gc=False):
    """Drafting after a step. With depth 0 or no requests, only the drafter's state is kept up, if at all."""

    depth: int
    requests: int
    context_tokens: int
    """Of the requests that are asked."""
    stale_tokens: int = 0
    """Tokens that the drafter has to read first: missed while it was off, or followed while K is 0."""


class StepSeconds(Protocol):
    """Seconds of the three parts of a step, one step after the other."""

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward."""
        ...

    def draft_s(self, work: DraftWork) -> float:
        """Drafting; 0 where nobody is asked and nothing is read."""
        ...

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Everything else. Called last in a step."""
        ...


class Truth(Protocol):
    """Where a world's step seconds come from."""

    def sampler(self, chance: Chance) -> StepSeconds:
        """One stream of step seconds; all its chance comes from `chance`."""
        ...
