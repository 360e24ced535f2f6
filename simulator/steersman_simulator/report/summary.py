"""What a run amounts to: latencies per request, seconds per token, K over time.

Names that `vllm bench serve` also has mean what they mean there, so existing scripts can read them.
TTFT: arrival to first token, queueing included. TPOT: (E2E - TTFT) / (output tokens - 1), per
request. ITL: the gap between two deliveries; with speculation one delivery holds several tokens, so
it is also given per token (each token of a delivery waited its equal part of the gap). Goodput:
committed tokens per *busy* second, the reverse of `busy_s_per_token`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from steersman_policies.messages import RequestReport, StepReport

Metrics = dict[str, Any]
Deliveries = Sequence[tuple[float, int]]


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
    busy_s = sum(s.busy_s for s in steps)
    committed = sum(s.committed_tokens for s in steps)
    prompt, output = sum(r.prompt_tokens for r in requests), sum(r.output_tokens for r in requests)
    metrics: Metrics = {
        "duration": duration_s,
        "completed": len(requests),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _ratio(len(requests), duration_s),
        "output_throughput": _ratio(output, duration_s),
        "total_token_throughput": _ratio(prompt + output, duration_s),
        "num_steps": len(steps),
        "committed_tokens": committed,
        "busy_s": busy_s,
        "busy_fraction": _ratio(busy_s, duration_s),
        "busy_s_per_token": _ratio(busy_s, committed),
        "goodput_tokens_per_busy_s": _ratio(committed, busy_s),
        "mean_batch": _ratio(sum(s.decode_requests * s.busy_s for s in steps), busy_s),
    }
    metrics |= _latencies("ttft", [r.ttft_s for r in requests])
    metrics |= _latencies("tpot", [r.tpot_s for r in requests if r.output_tokens > 1])
    metrics |= _latencies("e2el", [r.e2e_s for r in requests])
    metrics |= _latencies("queue", [r.queue_s for r in requests])
    if deliveries:
        metrics |= _latencies("itl", [gap for d in deliveries for gap in _gaps(d)])
        metrics |= _latencies("itl_per_token", [gap for d in deliveries for gap in _token_gaps(d)])
    return metrics | speculation(steps)


def speculation(steps: Sequence[StepReport]) -> Metrics:
    """Drafts and acceptance of a run, by segment."""
    drafts: dict[str, int] = defaultdict(int)
    rows: dict[str, int] = defaultdict(int)
    tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for step in steps:
        for group in step.groups:
            rows[group.segment] += group.requests
            drafts[group.segment] += group.requests_drafted
            for drafted, accepted, count in group.outcomes:
                tokens[group.segment][0] += drafted * count
                tokens[group.segment][1] += accepted * count
    drafted, accepted = (sum(pair[i] for pair in tokens.values()) for i in (0, 1))
    return {
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "draft_acceptance_rate": _ratio(accepted, drafted),
        "tokens_per_step": 1.0 + _ratio(accepted, sum(rows.values())),
        "segments": {
            segment: {
                "request_steps": rows[segment],
                "drafts": drafts[segment],
                "drafted_tokens": tokens[segment][0],
                "accepted_tokens": tokens[segment][1],
                "tokens_per_step": 1.0 + _ratio(tokens[segment][1], rows[segment]),
                "position_acceptance": position_acceptance(steps, segment),
            }
            for segment in sorted(rows)
        },
    }


def position_acceptance(steps: Sequence[StepReport], segment: str) -> list[float]:
    """accepted / reached for position 1, 2, ... of one segment; positions never reached are absent."""
    reached: dict[int, int] = defaultdict(int)
    accepted_at: dict[int, int] = defaultdict(int)
    for step in steps:
        for group in step.groups:
            if group.segment != segment:
                continue
            for drafted, accepted, count in group.outcomes:
                for position in range(1, min(drafted, accepted + 1) + 1):
                    reached[position] += count
                    accepted_at[position] += count if position <= accepted else 0
    return [accepted_at[j] / reached[j] for j in sorted(reached)]


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


def _latencies(name: str, seconds: Sequence[float]) -> Metrics:
    if not len(seconds):
        return {}
    values = np.array(seconds) * 1e3
    quantiles = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 95, 99)}
    figures = {"mean": float(values.mean()), "median": quantiles["p50"], "std": float(values.std())}
    return {f"{figure}_{name}_ms": value for figure, value in (figures | quantiles).items()}


def _gaps(deliveries: Deliveries) -> list[float]:
    return [later[0] - earlier[0] for earlier, later in pairwise(deliveries)]


def _token_gaps(deliveries: Deliveries) -> list[float]:
    gaps = zip(_gaps(deliveries), deliveries[1:], strict=True)
    return [gap / tokens for gap, (_, tokens) in gaps for _ in range(tokens)]


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0
