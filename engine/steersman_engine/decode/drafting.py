"""Gives every request its K and its drafts, and keeps a drafter that fails from harming anybody.

Drafts only ever save time: whatever goes wrong here, the target goes on alone.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from steersman_engine.decode.request import Request
from steersman_engine.drafters.drafter import Drafter, Proposal
from steersman_policies.executor import Decision

log = logging.getLogger(__name__)

INVALID = Proposal(not_drafted="invalid_state")


class Drafting:
    """A drafter and its limits; without a drafter K is always 0."""

    def __init__(self, drafter: Drafter | None, k_max: int, vocab_size: int) -> None:
        self.drafter = drafter
        self.k_max = k_max if drafter is not None else 0
        self.vocab_size = vocab_size

    def admit(self, request: Request) -> None:
        """A request got a slot."""
        if self.drafter is not None:
            self._call(self.drafter.admit, request)

    def release(self, request: Request) -> None:
        """A request is over."""
        if self.drafter is not None:
            self._call(self.drafter.release, request)

    def commit(self, request: Request, accepted: int) -> None:
        """Some drafts of a request were verified, and `accepted` of them kept."""
        if self.drafter is not None:
            self._call(self.drafter.commit, request, accepted)

    def draft(self, requests: Sequence[Request], decision: Decision) -> int:
        """Set K and drafts of all requests; returns how many the drafter was asked about."""
        asked: list[Request] = []
        limits: list[int] = []
        for request in requests:
            k = decision.proposal_length.get(request.segment, 0) if request.decoding else 0
            request.commanded_k = min(k, self.k_max)
            # The last token is never drafted: the target adds it anyway.
            limit = min(request.commanded_k, request.left_tokens - 1)
            request.not_drafted = "length_limit" if limit < 1 <= request.commanded_k else ""
            if limit > 0:
                asked.append(request)
                limits.append(limit)
        if asked and self.drafter is not None:
            proposals = self._call(self.drafter.propose, asked, limits)
            if proposals is None or len(proposals) != len(asked):
                proposals = [INVALID] * len(asked)
            for request, limit, proposal in zip(asked, limits, proposals, strict=True):
                self._take(request, limit, proposal)
        return len(asked)

    def _take(self, request: Request, limit: int, proposal: Proposal) -> None:
        # K is a cap, and a token that the target does not know would fail the whole batch.
        drafts = list(proposal.tokens[:limit])
        if any(not 0 <= token < self.vocab_size for token in drafts):
            request.not_drafted = "invalid_state"
            return
        request.drafts = drafts
        request.draft_probs = proposal.draft_probs
        request.confidence = None if proposal.confidence is None else proposal.confidence[: len(drafts)]
        request.not_drafted = "" if drafts else proposal.not_drafted or "no_match"

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception:
            log.exception("the drafter failed; its drafts are left out")
            return None
