"""Step seconds composed of the forwards of target and drafter."""

from math import log2
from typing import Protocol

from steersman_controller.train.roofline import Forward
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.world.chance import Chance

_PER_OCTAVE = 4
"""Mean contexts at which attention is asked for, per doubling; between them it is linear."""


class Passes(Protocol):
    """Seconds of one forward of one model."""

    def forward_s(
        self, tokens: int, heads: int, requests: int, context_tokens: int, chunks: tuple[tuple[int, int], ...]
    ) -> float:
        """Of `tokens`, `heads` of them with logits: `requests` that decode, and `chunks` of prompts.

        A chunk is (tokens, tokens of the same prompt already in the cache).
        """
        ...


class ComposedSteps:
    """Step seconds; there is no chance in them. Without a drafter, drafts cost nothing (n-gram lookup)."""

    def __init__(self, target: Passes, drafter: Passes | None = None) -> None:
        self._target = target
        self._drafter = drafter

    def sampler(self, chance: Chance) -> "ComposedSteps":
        """No chance in it."""
        del chance
        return self

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward: the drafts of a request read its cache together with its anchor."""
        chunks, requests = work.chunks, work.decode_requests
        if work.prefill_tokens and not chunks:
            chunks = ((work.prefill_tokens, 0),)
        heads = requests + work.draft_tokens + len(chunks)
        return self._target.forward_s(work.target_tokens, heads, requests, work.context_tokens, chunks)

    def draft_s(self, work: DraftWork) -> float:
        """One forward of the drafter for each draft token; 0 where nobody is asked."""
        depth, requests, drafter = work.depth, work.requests, self._drafter
        if drafter is None or not (depth and requests):
            return 0.0
        return depth * drafter.forward_s(requests, requests, requests, work.context_tokens, ())

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Nothing: what is around the forwards is a surcharge."""
        return 0.0


class ModelPasses:
    """Forwards of a model by its shape: data sheet or operator tables, asked once for each size."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._dense: dict[tuple[int, int], float] = {}
        self._attention: dict[tuple[int, int], float] = {}
        self._prompt: dict[int, float] = {0: 0.0}

    def forward_s(
        self, tokens: int, heads: int, requests: int, context_tokens: int, chunks: tuple[tuple[int, int], ...]
    ) -> float:
        """See `Passes`; a chunk attends to what its prompt attends to beyond what is in the cache."""
        seconds = self._dense.get((tokens, heads))
        if seconds is None:
            seconds = self._dense[tokens, heads] = self._forward.dense_s(tokens, heads)
        if requests and context_tokens > 0:
            seconds += self._decode_s(requests, context_tokens / requests)
        for chunk, cached in chunks:
            seconds += max(self._prompt_s(cached + chunk) - self._prompt_s(cached), self._prompt_s(chunk))
        return seconds

    def _decode_s(self, requests: int, context: float) -> float:
        octave = max(int(_PER_OCTAVE * log2(context)), 0) if context > 1.0 else 0
        low: float = 2.0 ** (octave / _PER_OCTAVE)
        high: float = 2.0 ** ((octave + 1) / _PER_OCTAVE)
        low_s, high_s = self._decode_at(requests, octave, low), self._decode_at(requests, octave + 1, high)
        return low_s + (high_s - low_s) * (context - low) / (high - low)

    def _decode_at(self, requests: int, octave: int, context: float) -> float:
        found = self._attention.get((requests, octave))
        if found is None:
            found = self._forward.decode_attention_s(requests, requests * context)
            self._attention[requests, octave] = found
        return found

    def _prompt_s(self, tokens: int) -> float:
        found = self._prompt.get(tokens)
        if found is None:
            found = self._prompt[tokens] = self._forward.prompt_attention_s(tokens)
        return found
