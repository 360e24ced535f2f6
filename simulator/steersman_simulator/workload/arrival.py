"""When requests come, and how long they are."""

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from steersman_policies.messages import RequestReport
from steersman_policies.prompt_statistics import PromptStatistics
from steersman_policies.units import Count, Seconds, Segment

MAX_REQUEST_TOKENS = 1 << 22
"""No model reads or writes more; a recording that claims it is damaged or hostile."""


class Arrival(Struct, frozen=True):
    """A request before it is served. `at_s` counts from the start of its arm."""

    at_s: Seconds
    segment: Segment
    prompt_tokens: Count
    output_tokens: Count
    stops: bool = False
    """Ended by a stop token: nobody knew its length in advance, so drafts may reach beyond its end."""
    statistics: PromptStatistics | None = None
    hash_ids: tuple[int, ...] = ()
    """Of the prompt's blocks in order; two prompts with equal leading ids share that prefix."""
    hash_block_tokens: int = 0
    """Tokens of such a block; 0: nothing is known about prefixes."""
    request_id: str = ""
    """What the trace calls it."""


def arrivals_of(
    requests: Iterable[RequestReport], *, start_s: float | None = None, load: float = 1.0
) -> tuple[Arrival, ...]:
    """The arrivals behind finished requests, in order, `load` times as dense.

    Time counts from `start_s`, or from the first arrival. A request that produced nothing is left
    out: its output length is not known. Raises ValueError for a load that is not positive.

    >>> done = RequestReport(0, "chat", 7.0, 30, 9, 0.0, 0.1, 0.1, 1.0, 4, 0, 0, "stop")
    >>> arrivals_of([done], start_s=5.0, load=2.0)[0].at_s
    1.0
    """
    if not 0.0 < load < inf:
        raise ValueError(f"load: {load}, must be above 0 and finite")
    ordered = sorted((r for r in requests if r.output_tokens > 0), key=lambda r: (r.arrived_s, r.request))
    origin_s = start_s if start_s is not None else (ordered[0].arrived_s if ordered else 0.0)
    return tuple(arrival_of(r, max(0.0, r.arrived_s - origin_s) / load) for r in ordered)


def arrival_of(request: RequestReport, at_s: float) -> Arrival:
    """The arrival behind one finished request. Raises ValueError where it is longer than any can be."""
    if request.prompt_tokens + request.output_tokens > MAX_REQUEST_TOKENS:
        found = f"{request.prompt_tokens} prompt and {request.output_tokens} output tokens"
        raise ValueError(
            f"trace: request {request.request} has {found}, at most {MAX_REQUEST_TOKENS} together"
        )
    return Arrival(
        at_s=at_s,
        segment=request.segment,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        stops=request.finish_reason == "stop",
        statistics=request.statistics,
    )
