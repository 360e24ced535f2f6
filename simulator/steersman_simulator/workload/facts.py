"""What a workload amounts to: how many, how fast, how bursty, how long, how much of it is shared."""

from collections import Counter
from collections.abc import Iterable
from math import sqrt
from typing import Any

from steersman_simulator.workload.arrival import Arrival

MAX_BLOCKS = 20_000_000
"""Prefix blocks that are remembered; beyond, the shared fraction is not told."""


def workload_facts(flow: Iterable[Arrival]) -> dict[str, Any]:
    """The facts in one pass, as a JSON tree; units are in the keys. Memory grows with distinct lengths only.

    `interarrival_cv` is the standard deviation of the gaps over their mean. `shared_prompt_fraction` is the
    share of prompt tokens in leading blocks that an earlier request had (None where no prefixes are known).
    """
    prompt, output, segments = Counter[int](), Counter[int](), Counter[str]()
    seen = set[int]()
    gaps = _Gaps()
    shared_tokens = known_tokens = 0
    for arrival in flow:
        prompt[arrival.prompt_tokens] += 1
        output[arrival.output_tokens] += 1
        segments[arrival.segment] += 1
        gaps.add(arrival.at_s)
        if arrival.hash_ids and len(seen) < MAX_BLOCKS:
            known_tokens += arrival.prompt_tokens
            shared_tokens += _shared(arrival, seen)
            seen.update(arrival.hash_ids)
    return {
        "requests": gaps.count,
        "first_s": gaps.first_s,
        "last_s": gaps.last_s,
        "requests_per_s": (gaps.count - 1) / gaps.span_s if gaps.span_s else None,
        "interarrival_cv": gaps.cv,
        "prompt_tokens": _spread(prompt),
        "output_tokens": _spread(output),
        "requests_by_segment": dict(sorted(segments.items())),
        "shared_prompt_fraction": shared_tokens / known_tokens if known_tokens else None,
        "prefix_blocks": len(seen),
    }


def facts_lines(found: dict[str, Any]) -> list[str]:
    """The facts for people."""
    return [f"{key.replace('_', ' ')}: {_text(value)}" for key, value in found.items()]


class _Gaps:
    """Mean and spread of gaps in one pass (Welford)."""

    def __init__(self) -> None:
        self.count = 0
        self.first_s = self.last_s = 0.0
        self._mean = self._squares = 0.0

    def add(self, at_s: float) -> None:
        if self.count:
            gap = at_s - self.last_s
            step = gap - self._mean
            self._mean += step / self.count
            self._squares += step * (gap - self._mean)
        else:
            self.first_s = at_s
        self.count += 1
        self.last_s = at_s

    @property
    def span_s(self) -> float:
        return self.last_s - self.first_s

    @property
    def cv(self) -> float | None:
        gaps = self.count - 1
        return sqrt(self._squares / gaps) / self._mean if gaps > 0 and self._mean else None


def _shared(arrival: Arrival, seen: set[int]) -> int:
    blocks = 0
    for block in arrival.hash_ids:
        if block not in seen:
            break
        blocks += 1
    return min(blocks * arrival.hash_block_tokens, arrival.prompt_tokens)


def _spread(counts: Counter[int]) -> dict[str, float]:
    total, ordered = counts.total(), sorted(counts.items())
    found: dict[str, float] = {"mean": sum(value * count for value, count in ordered) / max(1, total)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        below = 0
        for value, count in ordered:
            below += count
            if below >= share * total:
                found[name] = value
                break
    return found


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(count)}" for key, count in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return "unknown" if value is None else str(value)
