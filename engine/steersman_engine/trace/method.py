"""What a way of drafting must be able to do to make an acceptance trace of written text."""

from collections.abc import Sequence
from typing import Protocol

from steersman_engine.trace.pairs import Pair
from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.prompt_statistics import statistics_of

ByPosition = tuple[list[int], list[int]]
"""Draft tokens offered and accepted, each by the number of output tokens that were there."""


class Method(Protocol):
    """Drafts at every position of an output, as if the engine had just committed the token before.

    Drafts are greedy and the output is what the target wrote, so a draft token is accepted where it is the
    next token of the output. What needs the target's own activations (EAGLE, multi-token prediction) runs
    the target over the text first; all that is asked of it is the same two lists.
    """

    name: str
    """As in `AcceptanceRecord.method`."""
    drafter: str
    drafter_version: str

    def by_position(self, prompt: Sequence[int], output: Sequence[int], k: int) -> ByPosition:
        """Offered: at most `k`. Accepted: how many of them are the next tokens of the output.

        Both have one number per output token. Raises ValueError for text that it cannot read.
        """
        ...


def record_of(pair: Pair, method: Method, k: int, target: str = "") -> AcceptanceRecord:
    """One line of a trace. Raises ValueError where the method cannot read the text."""
    offered, accepted = method.by_position(pair.prompt_token_ids, pair.output_token_ids, k)
    told = statistics_of(
        pair.prompt_token_ids,
        max_output_tokens=pair.max_output_tokens,
        temperature=pair.temperature,
    )
    return AcceptanceRecord(
        request_id=pair.request_id,
        prompt_tokens=len(pair.prompt_token_ids),
        output_tokens=len(pair.output_token_ids),
        accepted_by_position=tuple(accepted),
        offered_by_position=tuple(offered),
        segment=pair.segment,
        method=method.name,
        drafter=method.drafter,
        drafter_version=method.drafter_version,
        target=target,
        stops=pair.finish_reason == "stop",
        max_output_tokens=told.max_output_tokens,
        distinct_fraction=told.distinct_fraction,
        repeated_fraction=told.repeated_fraction,
        temperature=told.temperature,
    )
