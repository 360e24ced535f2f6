"""Runs along their time axis: K by segment, and how busy the engine was."""

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from steersman_simulator.demo.arms import ArmRun

BIN_S = 1.0


class Timeline(Struct, frozen=True):
    """Equal stretches of one run; None where a stretch holds no step (of that segment)."""

    bin_s: float
    phases: tuple[tuple[str, float], ...]
    """(name, start)"""
    k_by_segment: dict[str, list[float | None]]
    """Mean commanded K over the request-steps verified under it."""
    live_requests: list[float | None]
    waiting_requests: list[float | None]


def timeline(run: ArmRun, bin_s: float = BIN_S) -> Timeline:
    """The timeline of a run, from its start to its last step."""
    end_s = max((step.at_s for step in run.steps), default=0.0)
    bins = int(end_s / bin_s) + 1
    k_sum: dict[str, list[float]] = defaultdict(lambda: [0.0] * bins)
    k_count: dict[str, list[int]] = defaultdict(lambda: [0] * bins)
    live, waiting, count = [0] * bins, [0] * bins, [0] * bins
    for step in run.steps:
        at = max(0, int(step.at_s / bin_s))
        count[at] += 1
        live[at] += step.report.decode_requests
        waiting[at] += step.report.waiting
        for group in step.report.groups:
            k_sum[group.segment][at] += group.commanded_k * group.requests
            k_count[group.segment][at] += group.requests
    return Timeline(
        bin_s=bin_s,
        phases=tuple((phase.name, phase.start_s) for phase in run.schedule.phases),
        k_by_segment={segment: _means(k_sum[segment], k_count[segment]) for segment in sorted(k_sum)},
        live_requests=_means(live, count),
        waiting_requests=_means(waiting, count),
    )


def _means(sums: Sequence[float], counts: Sequence[int]) -> list[float | None]:
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]
