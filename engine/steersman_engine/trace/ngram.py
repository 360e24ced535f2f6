"""Prompt lookup at every position of written text, by the engine's own index."""

from collections.abc import Sequence

from steersman_engine.drafters.ngram_index import MAX_NGRAM, MIN_NGRAM, Index, sizes_of, version_of
from steersman_engine.trace.method import ByPosition


class NgramMethod:
    """`PromptLookup` with these sizes."""

    name = "ngram"
    drafter = "prompt_lookup"

    def __init__(self, max_ngram: int = MAX_NGRAM, min_ngram: int = MIN_NGRAM) -> None:
        self.sizes = sizes_of(max_ngram, min_ngram)
        self.drafter_version = version_of(max_ngram, min_ngram)

    def by_position(self, prompt: Sequence[int], output: Sequence[int], k: int) -> ByPosition:
        """A draft is full or not there at all.

        >>> NgramMethod().by_position([1, 2, 3, 1], [2, 3, 1, 2, 9], 4)
        ([0, 4, 4, 4, 4], [0, 3, 2, 1, 0])
        """
        text, tokens, index = [*prompt, *output], list(prompt), Index(self.sizes)
        offered, accepted = [], []
        for token in output:
            end = index.match(tokens)
            offered.append(0 if end is None else k)
            accepted.append(0 if end is None else _agreeing(text, end, len(tokens), k))
            tokens.append(token)
        return offered, accepted


def _agreeing(text: list[int], source: int, target: int, k: int) -> int:
    """How many tokens from `source` on equal those from `target` on.

    A draft that runs into its own beginning repeats itself; as long as it was right, that is the text.
    """
    most = min(k, len(text) - target)
    count = 0
    while count < most and text[source + count] == text[target + count]:
        count += 1
    return count
