"""From outcomes and step reports to the figures of an arm. Live and simulated runs go the same way.

Busy seconds are what the engine says it was occupied by its steps (draft + verify + other), so idle
time between arrivals costs nothing. Latencies are the client's, from the *scheduled* arrival on.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from steersman_policies.messages import StepReport
from steersman_simulator.demo.arms import ArmRun
from steersman_simulator.demo.client import Outcome
from steersman_simulator.demo.schedule import SATURATED
from steersman_simulator.report.summary import speculation

Figures = dict[str, Any]
"""A JSON object; None where there was nothing to measure."""

FIDELITY = (
    "busy_s_per_token",
    "ttft_p50_s",
    "tpot_p50_s",
    "e2e_p50_s",
    "e2e_p99_s",
    "saturated_tokens_per_s",
)
"""The figures that a simulation is held against."""


class Busy(Struct, frozen=True):
    """What a set of steps cost and brought."""

    draft_s: float
    verify_s: float
    other_s: float
    tokens: int
    steps: int

    @property
    def seconds(self) -> float:
        """Draft, verify and other together."""
        return self.draft_s + self.verify_s + self.other_s

    @property
    def s_per_token(self) -> float | None:
        """Busy seconds per committed token; None where nothing was committed."""
        return self.seconds / self.tokens if self.tokens else None


def busy(steps: Iterable[StepReport]) -> Busy:
    """The sum over steps."""
    draft_s = verify_s = other_s = 0.0
    tokens = count = 0
    for step in steps:
        draft_s += step.draft_s
        verify_s += step.verify_s
        other_s += step.other_s
        tokens += step.committed_tokens
        count += 1
    return Busy(draft_s, verify_s, other_s, tokens, count)


def arm_figures(runs: Sequence[ArmRun]) -> Figures:
    """All figures of one arm, pooled over its rounds."""
    served = [outcome for run in runs for outcome in run.served]
    spent = busy(step for run in runs for step in run.reports())
    phases = [phase.name for phase in runs[0].schedule.phases]
    return {
        "requests": sum(len(run.outcomes) for run in runs),
        "failed_requests": sum(bool(o.error) for run in runs for o in run.outcomes),
        "output_tokens": sum(outcome.tokens for outcome in served),
        "committed_tokens": spent.tokens,
        "steps": spent.steps,
        "busy_s": spent.seconds,
        "draft_s": spent.draft_s,
        "verify_s": spent.verify_s,
        "other_s": spent.other_s,
        "busy_s_per_token": spent.s_per_token,
        **latencies(served),
        "saturated_tokens_per_s": saturated_tokens_per_s(runs),
        **_drafting([step for run in runs for step in run.reports()]),
        "by_phase": {phase: _phase_figures(runs, phase) for phase in phases},
        "by_segment": _by_segment(runs),
        "by_round": [
            {
                "round": run.round,
                "busy_s_per_token": busy(run.reports()).s_per_token,
                "saturated_tokens_per_s": saturated_tokens_per_s([run]),
                "drained_after_s": max((o.last_token_s or 0.0 for o in run.served), default=None),
            }
            for run in runs
        ],
    }


def busy_by_place(result: Figures) -> dict[str, dict[str, float | None]]:
    """Busy seconds per token by arm, in each phase and in the whole arm, from a result's `arms`."""
    arms = result["arms"]
    phases = next(iter(arms.values()))["by_phase"]
    places = {
        phase: {arm: figures["by_phase"][phase]["busy_s_per_token"] for arm, figures in arms.items()}
        for phase in phases
    }
    return places | {"whole arm": {arm: figures["busy_s_per_token"] for arm, figures in arms.items()}}


def most_drafting(result: Figures, steered: str) -> str:
    """The other arm of a result whose drafts say most about acceptance."""
    drafted: dict[str, int] = {arm: found["drafted_tokens"] for arm, found in result["arms"].items()}
    return max((arm for arm in drafted if arm != steered), key=lambda arm: drafted[arm])


def latencies(outcomes: Sequence[Outcome]) -> Figures:
    """Medians and tails over requests."""
    ttft_s = [o.ttft_s for o in outcomes if o.ttft_s is not None]
    tpot_s = [o.tpot_s for o in outcomes if o.tpot_s is not None]
    e2e_s = [o.e2e_s for o in outcomes if o.e2e_s is not None]
    return {
        "ttft_p50_s": quantile(ttft_s, 0.5),
        "ttft_p99_s": quantile(ttft_s, 0.99),
        "tpot_p50_s": quantile(tpot_s, 0.5),
        "tpot_p99_s": quantile(tpot_s, 0.99),
        "e2e_p50_s": quantile(e2e_s, 0.5),
        "e2e_p99_s": quantile(e2e_s, 0.99),
        "e2e_mean_s": float(np.mean(e2e_s)) if e2e_s else None,
    }


def quantile(values: Sequence[float], at: float) -> float | None:
    """The quantile with linear interpolation; None without values."""
    return float(np.quantile(values, at)) if len(values) else None


def saturated_tokens_per_s(runs: Sequence[ArmRun]) -> float | None:
    """Tokens of the saturated phase's requests over the time from the first arrival to the last token.

    None where a run has no such phase.
    """
    tokens, seconds = 0, 0.0
    for run in runs:
        burst = [o for o in run.served if o.phase == SATURATED and o.last_token_s is not None]
        if not burst:
            return None
        tokens += sum(o.tokens for o in burst)
        seconds += max(o.last_token_s or 0.0 for o in burst) - min(o.scheduled_s for o in burst)
    return tokens / seconds if seconds > 0.0 else None


def decode_s_per_token(outcomes: Iterable[Outcome]) -> float | None:
    """Seconds between tokens, weighted by tokens: what the readers of these answers waited for one."""
    seconds, tokens = 0.0, 0
    for outcome in outcomes:
        if outcome.tpot_s is not None:
            seconds += outcome.tpot_s * (outcome.tokens - 1)
            tokens += outcome.tokens - 1
    return seconds / tokens if tokens else None


def by_segment(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by segment, segments sorted."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.segment].append(outcome)
    return dict(sorted(groups.items()))


def mean_k(steps: Iterable[StepReport]) -> dict[str, float]:
    """Mean K by segment, over the request-steps that were verified under it."""
    k_sum: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for step in steps:
        for group in step.groups:
            k_sum[group.segment] += group.commanded_k * group.requests
            count[group.segment] += group.requests
    return {segment: k_sum[segment] / count[segment] for segment in sorted(count)}


def _phase_figures(runs: Sequence[ArmRun], phase: str) -> Figures:
    steps = [step for run in runs for step in run.reports(phase)]
    spent = busy(steps)
    outcomes = [o for run in runs for o in run.served if o.phase == phase]
    live_s = sum(step.decode_requests * step.busy_s for step in steps)
    return {
        "busy_s": spent.seconds,
        "committed_tokens": spent.tokens,
        "busy_s_per_token": spent.s_per_token,
        "mean_live_requests": live_s / spent.seconds if spent.seconds else None,
        "mean_k_by_segment": mean_k(steps),
        **latencies(outcomes),
    }


def _by_segment(runs: Sequence[ArmRun]) -> Figures:
    served = [outcome for run in runs for outcome in run.served]
    return {
        segment: {
            "requests": len(outcomes),
            "decode_s_per_token": decode_s_per_token(outcomes),
            **latencies(outcomes),
        }
        for segment, outcomes in by_segment(served).items()
    }


def _drafting(steps: Sequence[StepReport]) -> Figures:
    found = speculation(steps)
    return {
        "drafted_tokens": found["drafted_tokens"],
        "accepted_tokens": found["accepted_tokens"],
        "tokens_per_step": found["tokens_per_step"],
        "mean_k_by_segment": mean_k(steps),
        "position_acceptance_by_segment": {
            segment: figures["position_acceptance"] for segment, figures in found["segments"].items()
        },
        "tokens_per_step_by_segment": {
            segment: figures["tokens_per_step"] for segment, figures in found["segments"].items()
        },
    }
