"""What a drafter is: whatever proposes tokens that the target then verifies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from steersman_engine.decode.request import Request
from steersman_policies.messages import NotDrafted


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens for one request, or the reason why there are none."""

    tokens: Sequence[int] = ()
    draft_probs: Tensor | None = None
    """(tokens, vocab): what each was drawn from; None where each was certain."""
    not_drafted: NotDrafted | None = None
    confidence: Tensor | None = None
    """(tokens,): the probability that the drafter's model gave each token, greedy or not, at temperature 1;
    None where it has none."""


class Drafter(Protocol):
    """Proposes for the whole batch at once. Called only in steps where somebody's K is above 0."""

    name: str
    version: str
    survives_off: bool
    """Whether its state stays valid through steps at K=0, in which it is not called."""
    confident: bool
    """Whether its proposals say how sure it is."""

    def admit(self, request: Request) -> None:
        """A request got a slot."""
        ...

    def release(self, request: Request) -> None:
        """A request is over; forget it."""
        ...

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
        """One proposal per request, of at most `limits` (each >= 1) tokens to follow its tokens."""
        ...

    def commit(self, request: Request, accepted: int) -> None:
        """The first `accepted` tokens of the request's last proposal were kept."""
        ...
