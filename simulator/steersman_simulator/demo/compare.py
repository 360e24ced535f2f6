"""Arms against each other, on identical requests. A ratio is a ratio of speeds: above 1 is better."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steersman_simulator.demo.arms import FIXED, OFF, STEERED, ArmRun
from steersman_simulator.demo.measure import Figures, busy, by_segment, decode_s_per_token

Runs = Mapping[str, Sequence[ArmRun]]
"""The runs of each arm, one a round, rounds in order."""

Cost = Callable[[Sequence[ArmRun]], float]
"""Seconds that some runs needed for what all arms did; smaller is better."""

PhaseCost = Callable[[Sequence[ArmRun], str | None], float]
"""The same in one phase, or in all with None."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom; 1.96 is approached from above.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
_T95_BEYOND = 2.16

MIN_REQUESTS = 5
"""Fewer answers of a segment in a phase show their own texts and stalls, not what an arm does to them."""


def steered_vs_best(runs: Runs) -> Figures:
    """Speed of the steered arm over that of the better of off and fixed, in busy seconds per token."""
    return against_best(runs, (OFF.name, FIXED.name), busy_per_token)


def against_best(runs: Runs, others: Sequence[str], cost: Cost) -> Figures:
    """Speed of the steered arm over that of the cheapest of the other arms; see `against`."""
    costs = {arm: cost(runs[arm]) for arm in others}
    best = min(others, key=lambda arm: costs[arm])
    steered = cost(runs[STEERED.name])
    every = {arm: seconds / steered for arm, seconds in costs.items()}
    return against(runs, best, cost) | {"best": best, "other_arms": every}


def against(runs: Runs, other: str, cost: Cost, *, mine: str = STEERED.name) -> Figures:
    """Speed of one arm over that of another, with its 95 % interval.

    `ratio` divides the cost of the other arm by that of mine, both pooled over rounds. The interval is
    that of a ratio estimate over paired rounds (Cochran, Sampling Techniques, 6.4), on the logarithm,
    since a ratio of seconds is skewed; the phases of a round share what the round suffered.
    `low` and `high` are None, with a `reason`, where there are fewer than two rounds.
    """
    pairs = [(cost([theirs]), cost([own])) for theirs, own in zip(runs[other], runs[mine], strict=True)]
    result: Figures = {
        "ratio": cost(runs[other]) / cost(runs[mine]),
        "low": None,
        "high": None,
        "confidence": 0.95,
        "unit": "rounds",
        "units": len(pairs),
        "by_unit": [above / below for above, below in pairs],
    }
    half_width = _log_half_width(pairs)
    if half_width is None:
        return result | {"reason": f"{len(pairs)} round: an interval needs at least two"}
    factor = math.exp(half_width)
    return result | {"low": result["ratio"] / factor, "high": result["ratio"] * factor}


def busy_per_token(runs: Sequence[ArmRun], phase: str | None = None) -> float:
    """Busy seconds per committed token of a phase or of all, pooled over rounds.

    Raises ValueError where nothing came out.
    """
    found = busy(step for run in runs for step in run.reports(phase)).s_per_token
    if found is None:
        where = f" in phase {phase}" if phase else ""
        raise ValueError(f"arm {runs[0].arm}: no token was committed{where}, so there is nothing to compare")
    return found


def mean_e2e(runs: Runs) -> PhaseCost:
    """A cost: mean seconds from scheduled arrival to last token over the requests that every run served.

    It raises ValueError where there is none of them in a phase.
    """
    common = served_everywhere(runs)

    def mean_s(found: Sequence[ArmRun], phase: str | None = None) -> float:
        seconds = [
            outcome.e2e_s
            for run in found
            for outcome in run.served
            if outcome.number in common and phase in (None, outcome.phase) and outcome.e2e_s is not None
        ]
        if not seconds:
            where = f" in phase {phase}" if phase else ""
            raise ValueError(f"arm {found[0].arm}: no request{where} was served in every arm and round")
        return sum(seconds) / len(seconds)

    return mean_s


def served_everywhere(runs: Runs) -> frozenset[int]:
    """The numbers of the requests that came to their end in every arm and round."""
    served = [{outcome.number for outcome in run.served} for found in runs.values() for run in found]
    return frozenset.intersection(*map(frozenset, served))


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
    every = [run for found in runs.values() for run in found]
    complete = sorted(served_everywhere(runs))
    texts = _texts(every, complete)
    different = [number for number in complete if len(texts[number]) > 1]
    return {
        "requests": len(complete),
        "equal": len(complete) - len(different),
        "different": len(different),
        "different_requests": different,
        "not_served_everywhere": len(every[0].outcomes) - len(complete),
    }


def texts_against(runs: Runs, arm: str) -> Figures:
    """Greedy decoding must not depend on drafting: whose texts one arm never gave in any round.

    A pair of tokens that the target finds equally good can be decided by how a batch was composed, also
    without drafts; `differing_in_itself` counts the requests for which the arm has several texts itself.
    """
    common = sorted(served_everywhere(runs))
    texts = {name: _texts(found, common) for name, found in runs.items()}
    differing = {
        name: [number for number in common if mine[number] - texts[arm][number]]
        for name, mine in texts.items()
        if name != arm
    }
    return {
        "requests": len(common),
        "against": arm,
        "differing_in_itself": sum(len(found) > 1 for found in texts[arm].values()),
        "differing": {name: len(numbers) for name, numbers in differing.items()},
        "differing_requests": differing,
    }


def _texts(runs: Sequence[ArmRun], numbers: Sequence[int]) -> dict[int, set[str]]:
    texts: dict[int, set[str]] = {number: set() for number in numbers}
    for run in runs:
        for outcome in run.served:
            if outcome.number in texts:
                texts[outcome.number].add(outcome.text)
    return texts


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
