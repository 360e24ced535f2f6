"""What a run amounts to: latencies per request, seconds per token, K over time.

Names that `vllm bench serve` also has mean what they mean there, so existing scripts can read them.
TTFT: arrival to first token, queueing included. TPOT: (E2E - TTFT) / (output tokens - 1), per
request. ITL: the gap between two deliveries; with speculation one delivery holds several tokens, so
it is also given per token (each token of a delivery waited its equal part of the gap). Goodput:
committed tokens per *busy* second, the reverse of `busy_s_per_token`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from steersman_policies.messages import RequestReport, StepReport
from steersman_simulator.report.tally import Deliveries, Metrics, RequestTally, StepTally


def summary(
    requests: Sequence[RequestReport],
    steps: Sequence[StepReport],
    *,
    duration_s: float,
    deliveries: Sequence[Deliveries] = (),
) -> Metrics:
    """Flat metrics of one run, from the records that a live engine would have sent.

    Inter-token latencies need the `deliveries`, which no record holds; without them they are absent.
    """
    tally, step_tally = RequestTally(), StepTally()
    for number, request in enumerate(requests):
        tally.add(request, deliveries[number] if deliveries else ())
    for step in steps:
        step_tally.add(step)
    found = tally.metrics(duration_s) | step_tally.metrics(duration_s)
    return found | tally.latencies() | step_tally.speculation()


def speculation(steps: Sequence[StepReport]) -> Metrics:
    """Drafts and acceptance of a run, by segment."""
    tally = StepTally()
    for step in steps:
        tally.add(step)
    return tally.speculation()


def k_over_time(
    steps: Sequence[StepReport], *, start_s: float, end_s: float, bins: int = 20
) -> dict[str, list[float | None]]:
    """Mean commanded K by segment in equal stretches of time; None where the segment was absent.

    A row of K counts by the requests that were verified under it.
    """
    width_s = max(end_s - start_s, 1e-9) / bins
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * bins)
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * bins)
    for step in steps:
        at = min(max(int((step.started_s - start_s) / width_s), 0), bins - 1)
        for group in step.groups:
            sums[group.segment][at] += group.commanded_k * group.requests
            counts[group.segment][at] += group.requests
    return {
        segment: [s / n if n else None for s, n in zip(sums[segment], counts[segment], strict=True)]
        for segment in sorted(sums)
    }


def rounded(value: Any, digits: int = 9) -> Any:
    """The same JSON tree with floats rounded to `digits` significant digits.

    >>> rounded({"a": [0.1 + 0.2, 1]})
    {'a': [0.3, 1]}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return value
