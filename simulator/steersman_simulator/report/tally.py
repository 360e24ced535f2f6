"""A run summed up while it goes on: latencies of requests, seconds of steps, drafts by segment.

Memory: four numbers a request, and nothing per step.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from steersman_policies.messages import RequestReport, StepReport
from steersman_policies.units import Seconds
from steersman_simulator.world.gaps import gap_quantile_s, middles_s
from steersman_simulator.world.kernels import Ints

Metrics = dict[str, Any]
Deliveries = Sequence[tuple[float, int]]


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must keep to be a good one; None: nothing is asked."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None

    @property
    def asks(self) -> bool:
        """Whether anything is asked."""
        return (self.ttft_s, self.tpot_s, self.e2e_s) != (None, None, None)

    def met(self, request: RequestReport) -> bool:
        """Whether a request kept all of it; TPOT is 0 where there is one output token."""
        pairs = ((self.ttft_s, request.ttft_s), (self.tpot_s, request.tpot_s), (self.e2e_s, request.e2e_s))
        return all(asked is None or seen <= asked for asked, seen in pairs)


class RequestTally:
    """Finished requests."""

    def __init__(self, slo: Slo | None = None) -> None:
        self.slo = slo or Slo()
        self.completed = self.prompt_tokens = self.output_tokens = self.good = 0
        self.seconds = {name: array("d") for name in ("ttft", "tpot", "e2el", "queue")}
        self.gaps = {name: array("d") for name in ("itl", "itl_per_token")}
        self.by_segment: dict[str, list[int]] = {}
        """[finished, good]"""

    def add(self, request: RequestReport, deliveries: Deliveries = ()) -> None:
        """One more; with its `deliveries`, inter-token latencies are exact."""
        good = self.slo.met(request)
        self.completed += 1
        self.good += good
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        counts = self.by_segment.setdefault(request.segment, [0, 0])
        counts[0] += 1
        counts[1] += good
        self.seconds["ttft"].append(request.ttft_s)
        if request.output_tokens > 1:
            self.seconds["tpot"].append(request.tpot_s)
        self.seconds["e2el"].append(request.e2e_s)
        self.seconds["queue"].append(request.queue_s)
        for earlier, (at_s, tokens) in pairwise(deliveries):
            gap_s = at_s - earlier[0]
            self.gaps["itl"].append(gap_s)
            # Each token of a delivery waited its equal part of the gap.
            self.gaps["itl_per_token"].extend([gap_s / tokens] * tokens)

    def metrics(self, duration_s: float) -> Metrics:
        """The names of `vllm bench serve` where they mean the same."""
        found: Metrics = {
            "duration": duration_s,
            "completed": self.completed,
            "total_input_tokens": self.prompt_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": ratio(self.completed, duration_s),
            "output_throughput": ratio(self.output_tokens, duration_s),
            "total_token_throughput": ratio(self.prompt_tokens + self.output_tokens, duration_s),
        }
        if self.slo.asks:
            shares = {name: good / all_ for name, (all_, good) in sorted(self.by_segment.items())}
            found["request_goodput"] = ratio(self.good, duration_s)
            found["slo_attainment"] = ratio(self.good, self.completed)
            found["slo_attainment_by_segment"] = shares
        return found

    def latencies(self) -> Metrics:
        """Mean, spread and quantiles in milliseconds, of what was seen."""
        found: Metrics = {}
        for name, seconds in (self.seconds | self.gaps).items():
            found |= latencies(name, seconds)
        return found


class StepTally:
    """Steps, by segment where drafts are concerned."""

    def __init__(self) -> None:
        self.steps = self.committed_tokens = self.preempted_steps = 0
        self.busy_s = self._requests_s = 0.0
        self.segments: dict[str, SegmentTally] = {}

    def add(self, step: StepReport) -> None:
        """One more."""
        busy_s = step.busy_s
        self.steps += 1
        self.committed_tokens += step.committed_tokens
        self.preempted_steps += step.preemption
        self.busy_s += busy_s
        self._requests_s += step.decode_requests * busy_s
        for group in step.groups:
            segment = self.segments.get(group.segment)
            if segment is None:
                segment = self.segments[group.segment] = SegmentTally()
            segment.request_steps += group.requests
            segment.drafts += group.requests_drafted
            for drafted, accepted, count in group.outcomes:
                key = (drafted, accepted)
                segment.outcomes[key] = segment.outcomes.get(key, 0) + count

    def metrics(self, duration_s: float, engines: int = 1) -> Metrics:
        """Goodput: committed tokens per *busy* second, the reverse of `busy_s_per_token`.

        `busy_fraction` is that of one engine, `mean_batch` too; the others are over all engines.
        """
        return {
            "num_steps": self.steps,
            "committed_tokens": self.committed_tokens,
            "busy_s": self.busy_s,
            "busy_fraction": ratio(self.busy_s, duration_s * engines),
            # Without a token there is no cost of one; 0 would beat every engine that works.
            "busy_s_per_token": self.busy_s / self.committed_tokens if self.committed_tokens else None,
            "goodput_tokens_per_busy_s": ratio(self.committed_tokens, self.busy_s),
            "mean_batch": ratio(self._requests_s, self.busy_s),
        }

    def speculation(self) -> Metrics:
        """Drafts and acceptance, over all and by segment."""
        segments = dict(sorted(self.segments.items()))
        drafted = sum(each.drafted_tokens for each in segments.values())
        accepted = sum(each.accepted_tokens for each in segments.values())
        return {
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
            "draft_acceptance_rate": ratio(accepted, drafted),
            "tokens_per_step": 1.0 + ratio(accepted, sum(each.request_steps for each in segments.values())),
            "segments": {name: each.metrics() for name, each in segments.items()},
        }


class SegmentTally:
    """The drafts of one segment."""

    def __init__(self) -> None:
        self.request_steps = self.drafts = 0
        self.outcomes: dict[tuple[int, int], int] = {}

    @property
    def drafted_tokens(self) -> int:
        """Draft tokens that were verified."""
        return sum(drafted * count for (drafted, _), count in self.outcomes.items())

    @property
    def accepted_tokens(self) -> int:
        """Those that were accepted."""
        return sum(accepted * count for (_, accepted), count in self.outcomes.items())

    def metrics(self) -> Metrics:
        """As a JSON tree; positions never reached are absent."""
        return {
            "request_steps": self.request_steps,
            "drafts": self.drafts,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "tokens_per_step": 1.0 + ratio(self.accepted_tokens, self.request_steps),
            "position_acceptance": self.position_acceptance(),
        }

    def position_acceptance(self) -> list[float]:
        """accepted / reached for position 1, 2, ..."""
        reached: dict[int, int] = {}
        accepted_at: dict[int, int] = {}
        for (drafted, accepted), count in self.outcomes.items():
            for position in range(1, min(drafted, accepted + 1) + 1):
                reached[position] = reached.get(position, 0) + count
                accepted_at[position] = accepted_at.get(position, 0) + (count if position <= accepted else 0)
        return [accepted_at[j] / reached[j] for j in sorted(reached)]


def vllm_speculation(segments: Iterable[SegmentTally]) -> Metrics:
    """The keys of `vllm bench serve` about drafts; none where nothing was drafted.

    There the rate is a percentage, the length counts the bonus token, and acceptance by position is over all
    drafts, not over those that reached the position.
    """
    found = list(segments)
    drafts = sum(each.drafts for each in found)
    drafted = sum(each.drafted_tokens for each in found)
    accepted = sum(each.accepted_tokens for each in found)
    if not drafted:
        return {}
    outcomes = [(a, count) for each in found for (_, a), count in each.outcomes.items()]
    longest = max(d for each in found for d, _ in each.outcomes)
    return {
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_acceptance_rate": accepted / drafted * 100.0,
        "spec_decode_acceptance_length": 1.0 + accepted / drafts,
        "spec_decode_per_position_acceptance_rates": [
            sum(count for a, count in outcomes if a >= position) / drafts
            for position in range(1, longest + 1)
        ],
    }


def latencies(name: str, seconds: Sequence[float]) -> Metrics:
    """Mean, median, standard deviation and quantiles in milliseconds; nothing for nothing."""
    if not len(seconds):
        return {}
    values = np.array(seconds) * 1e3
    quantiles = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 95, 99)}
    figures = {"mean": float(values.mean()), "median": quantiles["p50"], "std": float(values.std())}
    return {f"{figure}_{name}_ms": value for figure, value in (figures | quantiles).items()}


def gap_latencies(name: str, counts: Ints) -> Metrics:
    """The same from a histogram of gaps (`world/gaps.py`), right to half a percent."""
    total = int(counts.sum())
    if not total:
        return {}
    middles = middles_s() * 1e3
    mean = float(middles @ counts) / total
    spread = float(np.sqrt((middles - mean) ** 2 @ counts / total))
    quantiles = {f"p{q}": gap_quantile_s(counts, q / 100.0) * 1e3 for q in (50, 90, 95, 99)}
    figures = {"mean": mean, "median": quantiles["p50"], "std": spread}
    return {f"{figure}_{name}_ms": value for figure, value in (figures | quantiles).items()}


def ratio(above: float, below: float) -> float:
    """above / below, 0 for nothing over nothing."""
    return above / below if below else 0.0
