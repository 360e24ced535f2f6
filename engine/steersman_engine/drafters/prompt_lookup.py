"""Prompt lookup: propose what followed the last time that the text ended like this.

Costs microseconds and no memory on the device; good where the output repeats its input, such as code
edits, extraction and summaries. Saxena 2023, "Prompt lookup decoding".
"""

from collections.abc import Sequence

from steersman_engine.decode.request import Request
from steersman_engine.drafters.drafter import Proposal
from steersman_engine.drafters.ngram_index import MAX_NGRAM, MIN_NGRAM, Index, sizes_of, version_of

NO_MATCH = Proposal(not_drafted="no_match")


class PromptLookup:
    """Longest match first, from `max_ngram` tokens down to `min_ngram`; of equal ones the most recent."""

    name = "prompt_lookup"
    survives_off = True
    confident = False

    def __init__(self, max_ngram: int = MAX_NGRAM, min_ngram: int = MIN_NGRAM) -> None:
        # Another shortest match is another drafter: what was learned of one does not hold for the other.
        self.version = version_of(max_ngram, min_ngram)
        self.sizes = sizes_of(max_ngram, min_ngram)
        self._indexes: dict[int, Index] = {}

    def admit(self, request: Request) -> None:
        """Start an empty index; it is filled when it is first needed."""
        self._indexes[request.number] = Index(self.sizes)

    def release(self, request: Request) -> None:
        """Drop the index."""
        self._indexes.pop(request.number, None)

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
        """What followed the longest match of each request's last tokens."""
        proposals = []
        for request, limit in zip(requests, limits, strict=True):
            tokens = self._indexes[request.number].continuation(request.tokens, limit)
            proposals.append(Proposal(tokens) if tokens else NO_MATCH)
        return proposals

    def commit(self, request: Request, accepted: int) -> None:
        """Nothing to do: the index reads the request's tokens."""
