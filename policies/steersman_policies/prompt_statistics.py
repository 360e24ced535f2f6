"""What a request looks like from outside: a few coarse numbers by which it may get its segment.

They travel in reports and stay in recordings, so they must give no prompt away. They are computed from token
ids and settings, never from text; they hold counts, never ids; every number is rounded so coarsely that it
fits many prompts, and none can be computed back.

An engine calls this once per request on its own thread, so what is looked at is bounded.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct

from steersman_policies.units import Count, Fraction

WINDOW_TOKENS = 64
"""Of each of the two pieces that are looked at: the middle of the prompt, and its end. Its beginning is
often the same text in every request. Repeats across the two are repeats over a distance."""

FRACTION_STEPS = 16
TEMPERATURE_STEPS = 4
MAX_TEMPERATURE = 2.0
MAX_TOKENS = 1 << 31


class PromptStatistics(Struct, frozen=True, array_like=True, gc=False):
    """Coarse facts about a request, known before its first token. Tokens are rounded down to two binary
    digits (1, 2, 3, 4, 6, 8, 12, ...), fractions to sixteenths, the temperature to quarters."""

    prompt_tokens: Count = 0
    max_output_tokens: Count = 0
    """What the request allows at most."""
    distinct_fraction: Fraction = 0.0
    """Different tokens in the sample, over its length."""
    repeated_fraction: Fraction = 0.0
    """Pairs of neighbouring tokens that occurred before in the sample: what prompt lookup lives on."""
    temperature: Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)] = 0.0
    """From 0 (greedy) to 2; higher ones count as 2."""
    structured: Annotated[int, Meta(ge=0, le=1)] = 0
    """1 where the output must follow a grammar or a schema."""


FEATURES = PromptStatistics.__struct_fields__
"""What a tree may ask, by index. Only ever appended to."""


def statistics_of(
    token_ids: Sequence[int] | None, *, max_output_tokens: int, temperature: float, structured: bool = False
) -> PromptStatistics:
    """The statistics of a request; None stands for a prompt that came as embeddings.

    >>> statistics_of([5, 6, 7, 5, 6, 7, 5, 6], max_output_tokens=100, temperature=0.7)
    PromptStatistics(prompt_tokens=8, max_output_tokens=96, distinct_fraction=0.375, \
repeated_fraction=0.5625, temperature=0.75, structured=0)
    """
    ids = token_ids or ()
    sample = _sample(ids)
    tokens = len(sample)
    pairs = tokens - 1
    return rounded_statistics(
        prompt_tokens=len(ids),
        max_output_tokens=max_output_tokens,
        distinct_fraction=len(set(sample)) / tokens if tokens else 0.0,
        repeated_fraction=1.0 - len(set(pairwise(sample))) / pairs if pairs > 0 else 0.0,
        temperature=temperature,
        structured=structured,
    )


def rounded_statistics(
    *,
    prompt_tokens: int,
    max_output_tokens: int,
    distinct_fraction: float,
    repeated_fraction: float,
    temperature: float,
    structured: bool,
) -> PromptStatistics:
    """Made coarse: the only way to statistics that are sent or kept.

    A temperature that is no number counts as the highest.
    """
    hot = temperature if 0.0 <= temperature <= MAX_TEMPERATURE else MAX_TEMPERATURE
    return PromptStatistics(
        _rounded(prompt_tokens),
        _rounded(max_output_tokens),
        round(distinct_fraction * FRACTION_STEPS) / FRACTION_STEPS,
        round(repeated_fraction * FRACTION_STEPS) / FRACTION_STEPS,
        round(hot * TEMPERATURE_STEPS) / TEMPERATURE_STEPS,
        int(structured),
    )


def _sample(ids: Sequence[int]) -> Sequence[int]:
    tokens = len(ids)
    if tokens <= 2 * WINDOW_TOKENS:
        return ids
    middle = min(tokens // 2, tokens - 2 * WINDOW_TOKENS)
    return [*ids[middle : middle + WINDOW_TOKENS], *ids[-WINDOW_TOKENS:]]


def _rounded(tokens: int) -> int:
    """Rounded down to two binary digits.

    >>> [_rounded(n) for n in (0, 3, 5, 7, 100, 1000)]
    [0, 3, 4, 6, 96, 768]
    """
    shift = max(0, tokens.bit_length() - 2)
    return min(tokens >> shift << shift, MAX_TOKENS) if tokens > 0 else 0
