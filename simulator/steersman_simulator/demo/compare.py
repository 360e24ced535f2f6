"""Arms against each other, on identical requests. A ratio is a ratio of speeds: above 1 is better."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from steersman_simulator.demo.arms import FIXED, OFF, STEERED, ArmRun
from steersman_simulator.demo.measure import Figures, busy, by_segment, decode_s_per_token

Runs = Mapping[str, Sequence[ArmRun]]
"""The runs of each arm, one a round, rounds in order."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom; 1.96 is approached from above.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
_T95_BEYOND = 2.16

MIN_REQUESTS = 5
"""Fewer answers of a segment in a phase show their own texts and stalls, not what an arm does to them."""


def steered_vs_best(runs: Runs) -> Figures:
    """Speed of the steered arm over that of the better other arm, with its 95 % interval.

    `ratio` divides busy seconds per token of the other arm by those of the steered one, both pooled.
    The interval is that of a ratio estimate over paired rounds (Cochran, Sampling Techniques, 6.4),
    on the logarithm, since a ratio of seconds is skewed.
    `low` and `high` are None, with a `reason`, where there are fewer than two rounds.
    """
    others = {arm: busy_per_token(runs[arm]) for arm in (OFF.name, FIXED.name)}
    best = min(others, key=lambda arm: others[arm])
    steered = busy_per_token(runs[STEERED.name])
    pairs = _paired(runs, best)
    result: Figures = {
        "ratio": others[best] / steered,
        "low": None,
        "high": None,
        "best": best,
        "confidence": 0.95,
        "unit": "rounds",
        "units": len(pairs),
        "other_arms": {arm: seconds / steered for arm, seconds in others.items()},
        "by_unit": [above / below for above, below in pairs],
    }
    half_width = _log_half_width(pairs)
    if half_width is None:
        return result | {"reason": f"{len(pairs)} round: an interval needs at least two"}
    factor = math.exp(half_width)
    return result | {"low": result["ratio"] / factor, "high": result["ratio"] * factor}


def busy_per_token(runs: Sequence[ArmRun]) -> float:
    """Busy seconds per committed token, pooled over rounds. Raises ValueError where nothing came out."""
    found = busy(step for run in runs for step in run.reports()).s_per_token
    if found is None:
        raise ValueError(f"arm {runs[0].arm}: no token was committed, so there is nothing to compare")
    return found


def contrast(runs: Runs) -> Figures:
    """Where off and fixed win against each other; without that a workload shows nothing.

    By phase: busy seconds per token. By segment, within each phase: the clients' seconds per token,
    where every arm served at least `MIN_REQUESTS`.
    `loses_fraction` is 1 - (speed over the other's speed), at the worst place of each arm.
    """
    phases = [phase.name for phase in runs[OFF.name][0].schedule.phases]
    by_phase = {
        phase: {
            arm: busy(step for run in found for step in run.reports(phase)).s_per_token
            for arm, found in runs.items()
        }
        for phase in phases
    }
    by_phase_and_segment = {phase: _segments(runs, phase) for phase in phases}
    places = by_phase | {
        f"{phase}/{segment}": seconds
        for phase, segments in by_phase_and_segment.items()
        for segment, seconds in segments.items()
    }
    return {
        "busy_s_per_token_by_phase": by_phase,
        "decode_s_per_token_by_phase_and_segment": by_phase_and_segment,
        "off_loses": _worst(places, OFF.name, FIXED.name),
        "fixed_loses": _worst(places, FIXED.name, OFF.name),
    }


def equal_outputs(runs: Runs) -> Figures:
    """Greedy decoding must not depend on K: whether each request has one text in all arms and rounds."""
    texts: dict[int, set[str]] = defaultdict(set)
    times: dict[int, int] = defaultdict(int)
    every = [run for found in runs.values() for run in found]
    for run in every:
        for outcome in run.served:
            texts[outcome.number].add(outcome.text)
            times[outcome.number] += 1
    complete = [number for number in sorted(texts) if times[number] == len(every)]
    different = [number for number in complete if len(texts[number]) > 1]
    return {
        "requests": len(complete),
        "equal": len(complete) - len(different),
        "different": len(different),
        "different_requests": different,
        "not_served_everywhere": len(every[0].outcomes) - len(complete),
    }


def _paired(runs: Runs, best: str) -> list[tuple[float, float]]:
    """(other, steered) busy seconds per token of each round; its phases share what the round suffered."""
    rounds = zip(runs[best], runs[STEERED.name], strict=True)
    return [(busy_per_token([other]), busy_per_token([mine])) for other, mine in rounds]


def _log_half_width(pairs: Sequence[tuple[float, float]]) -> float | None:
    count = len(pairs)
    if count < 2:
        return None
    above, below = (sum(pair[i] for pair in pairs) for i in (0, 1))
    ratio = above / below
    residual = sum((x - ratio * y) ** 2 for x, y in pairs)
    error = math.sqrt(residual * count / (count - 1)) / above
    quantile = _T95[count - 2] if count - 2 < len(_T95) else _T95_BEYOND
    return quantile * error


def _segments(runs: Runs, phase: str) -> dict[str, dict[str, float | None]]:
    found = {
        arm: by_segment(o for run in of_arm for o in run.served if o.phase == phase)
        for arm, of_arm in runs.items()
    }
    few = {s for groups in found.values() for s, served in groups.items() if len(served) < MIN_REQUESTS}
    segments = sorted({segment for groups in found.values() for segment in groups} - few)
    return {
        segment: {arm: decode_s_per_token(groups.get(segment, [])) for arm, groups in found.items()}
        for segment in segments
    }


def _worst(places: Mapping[str, Mapping[str, float | None]], mine: str, other: str) -> dict[str, Any] | None:
    """The place where `mine` is slowest against `other`; None where no place has both."""
    losses = {
        where: 1.0 - theirs_s / mine_s
        for where, seconds in places.items()
        if (theirs_s := seconds.get(other)) is not None and (mine_s := seconds.get(mine))
    }
    if not losses:
        return None
    where = max(losses, key=lambda place: losses[place])
    return {"where": where, "to": other, "loses_fraction": losses[where]}
