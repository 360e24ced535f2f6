"""When a recording cannot say what a policy would have brought, and what to record instead."""

import math
from collections.abc import Sequence

from msgspec import Struct

LEAST_EFFECTIVE = 200.0
"""Effective number of explored steps, or of steps where none are needed."""

LEAST_SHARE = 0.05
"""A segment with fewer of the requests, or fewer raised ones in a segment, cannot move the result much."""


class SegmentSupport(Struct, frozen=True):
    """How well the recording covers what a policy wants in one segment."""

    segment: str
    share: float
    """Of all request-steps."""
    raised: float
    """Share of its request-steps that want a K above the recorded one."""
    unsupported: float
    """Share of its request-steps that want one that exploration never reached."""
    effective: float
    """Effective number of explored steps that reached the wanted K."""
    explored: int
    """Their number."""


def effective_of(steps: int, supports: Sequence[SegmentSupport]) -> float:
    """The effective sample size behind an estimate: the smallest of those that it hangs on."""
    return min([float(steps), *(s.effective for s in supports if _hangs_on(s))])


def refusal(
    steps: int, supports: Sequence[SegmentSupport], *, allow_model: bool, drafted: bool
) -> str | None:
    """Why there is no estimate, in one line that says what to do; None where there is one.

    `drafted`: whether any scored step was under a K above 0; without one there is no model at all.
    """
    if steps < LEAST_EFFECTIVE:
        return f"{steps} scored steps, at least {LEAST_EFFECTIVE:.0f}: record for longer, or widen --under"
    if not drafted and any(support.raised for support in supports):
        return (
            "no scored step drafted, so nothing says what drafts cost or bring: record some, or widen --under"
        )
    if allow_model:
        return None
    poor = [s for s in supports if _hangs_on(s) and s.effective < LEAST_EFFECTIVE]
    if not poor:
        return None
    worst = min(poor, key=lambda s: s.effective)
    more = math.ceil(LEAST_EFFECTIVE - worst.effective)
    raised = f"segment {worst.segment}: {worst.raised:.0%} of its steps want a K above the recorded one"
    if worst.explored and worst.unsupported < worst.raised:
        times = LEAST_EFFECTIVE / max(worst.effective, 1.0)
        return (
            f"{raised}, which {worst.explored} explored steps reached, an effective sample of "
            f"{worst.effective:.0f}; at least {LEAST_EFFECTIVE:.0f}: needs {more} more probes, so record "
            f"{times:.1f} times as long, or explore more"
        )
    return (
        f"{raised} and no explored step reached it, so there are no propensities to go by; needs {more} "
        "probes: record with exploration (goodput, or fixed with explore=0.05), or take the model's word "
        "with --allow-model"
    )


def _hangs_on(support: SegmentSupport) -> bool:
    return support.share >= LEAST_SHARE and support.raised >= LEAST_SHARE
