"""The index behind prompt lookup: where the text ended like this before. It needs no torch."""

MAX_NGRAM, MIN_NGRAM = 4, 2
"""Tokens of the longest and the shortest match by default."""


def sizes_of(max_ngram: int, min_ngram: int) -> range:
    """The lengths that are looked for, longest first. Raises ValueError for impossible ones."""
    if not 1 <= min_ngram <= max_ngram:
        raise ValueError(f"prompt_lookup: min_ngram {min_ngram}, must be 1 to max_ngram {max_ngram}")
    return range(max_ngram, min_ngram - 1, -1)


def version_of(max_ngram: int, min_ngram: int) -> str:
    """What the drafter calls itself; other lengths make it another drafter.

    >>> version_of(4, 2)
    '1:2-4'
    """
    return f"1:{min_ngram}-{max_ngram}"


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
        end = self.match(tokens)
        if end is None:
            return []
        draft = tokens[end : end + limit]
        while len(draft) < limit:
            draft.append(draft[end - len(tokens)])
        return draft

    def match(self, tokens: list[int]) -> int | None:
        """Where the most recent longest match ended, or None. `tokens` are those of the last call, and more.

        >>> Index(range(4, 1, -1)).match([1, 2, 3, 9, 1, 2])
        2
        """
        self._catch_up(tokens)
        for size in self.sizes:
            end = self._ends.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if end is not None:
                return end
        return None

    def _catch_up(self, tokens: list[int]) -> None:
        for end in range(self._indexed + 1, len(tokens)):
            for size in self.sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
