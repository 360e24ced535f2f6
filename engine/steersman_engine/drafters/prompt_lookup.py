"""Prompt lookup: propose what followed the last time that the text ended like this.

Costs microseconds and no memory on the device; good where the output repeats its input, such as code
edits, extraction and summaries. Saxena 2023, "Prompt lookup decoding".
"""

from collections.abc import Sequence

from steersman_engine.decode.request import Request
from steersman_engine.drafters.drafter import Proposal

NO_MATCH = Proposal(not_drafted="no_match")


class PromptLookup:
    """Longest match first, from `max_ngram` tokens down to `min_ngram`; of equal ones the most recent."""

    name = "prompt_lookup"
    version = "1"
    survives_off = True
    confident = False

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"prompt_lookup: min_ngram {min_ngram}, must be 1 to max_ngram {max_ngram}")
        # Another shortest match is another drafter: what was learned of one does not hold for the other.
        self.version = f"{self.version}:{min_ngram}-{max_ngram}"
        self.sizes = range(max_ngram, min_ngram - 1, -1)
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


class Index:
    """Where each n-gram of a growing text ended last, with at least one token behind it."""

    def __init__(self, sizes: range) -> None:
        self.sizes = sizes
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def continuation(self, tokens: list[int], limit: int) -> list[int]:
        """`limit` tokens that followed the most recent longest match, or none.

        A match close to the end is continued with its own continuation, as in a repeated pattern.

        >>> Index(range(4, 1, -1)).continuation([1, 2, 3, 9, 1, 2], 3)
        [3, 9, 1]
        >>> Index(range(4, 1, -1)).continuation([7, 8, 7, 8, 7, 8], 4)
        [7, 8, 7, 8]
        """
        self._catch_up(tokens)
        for size in self.sizes:
            end = self._ends.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if end is not None:
                draft = tokens[end : end + limit]
                while len(draft) < limit:
                    draft.append(draft[end - len(tokens)])
                return draft
        return []

    def _catch_up(self, tokens: list[int]) -> None:
        for end in range(self._indexed + 1, len(tokens)):
            for size in self.sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
