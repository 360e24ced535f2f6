"""Which segment a vLLM request belongs to: facts about the request, never its prompt.

The tag is `steersman_segment` in `SamplingParams.extra_args` (`vllm_xargs` in an HTTP body), else the
part between colons of a request id that starts with ``segment:NAME:`` (header `X-Request-Id`). Without
a tag the plan's rules decide by the attributes: `tenant` and `route` from the extra arguments,
`lora`, `sampling` and `structured_output` from the request itself. Where no rule matches the plan's tree
decides, by statistics of the prompt.
"""

import re
from typing import Any

from steersman_policies.prompt_statistics import PromptStatistics, statistics_of

TAG, TENANT, ROUTE = "steersman_segment", "steersman_tenant", "steersman_route"

# vLLM puts its own prefix ("chatcmpl-", "cmpl-") before the id of the header.
_IN_REQUEST_ID = re.compile(r"(?:^|cmpl-)segment:([A-Za-z0-9_./-]{1,64}):")

_GREEDY_BELOW = 1e-5
"""vLLM takes a lower temperature for greedy decoding."""

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def tag_of(request: Any) -> str:
    """The explicit tag of a request; empty where it has none."""
    tag = _extra(request).get(TAG)
    if isinstance(tag, str) and tag:
        return tag
    found = _IN_REQUEST_ID.search(request.request_id)
    return found.group(1) if found else ""


def attributes_of(request: Any) -> dict[str, str]:
    """What a plan's rules may look at; only what is there."""
    extra, sampling = _extra(request), request.sampling_params
    found = {
        "tenant": extra.get(TENANT),
        "route": extra.get(ROUTE),
        "lora": getattr(request.lora_request, "lora_name", None),
        "sampling": None if sampling is None else _sampling(sampling.temperature),
        "structured_output": constraint_of(request),
    }
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def request_statistics(request: Any) -> PromptStatistics:
    """What a plan's tree may ask, and what the request's report tells."""
    return statistics_of(
        request.prompt_token_ids,
        max_output_tokens=request.max_tokens,
        temperature=getattr(request.sampling_params, "temperature", 0.0),
        structured=bool(constraint_of(request)),
    )


def constraint_of(request: Any) -> str:
    """The kind of structured output that a request asks for; empty where it asks for none."""
    wanted = getattr(request.sampling_params, "structured_outputs", None)
    if wanted is None:
        return ""
    kinds = (kind for kind in _CONSTRAINTS if getattr(wanted, kind, None) not in (None, False))
    return next(kinds, "other")


def _extra(request: Any) -> dict[str, Any]:
    return getattr(request.sampling_params, "extra_args", None) or {}


def _sampling(temperature: float) -> str:
    return "greedy" if temperature < _GREEDY_BELOW else "sampled"
