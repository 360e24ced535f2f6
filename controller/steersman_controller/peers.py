"""Engines of one kind, side by side: what they have in common, and which of them is sick.

Engines that serve the same target with the same drafter should accept alike in a segment; and on the same
device steps of the same size should last alike. One whose acceptance or speed lies clearly outside what its
peers show is flagged: it is planned alone, and nobody learns from it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import Struct

from steersman_controller.belief.estimate import NORMAL_Q95, PRIOR, Estimate
from steersman_controller.core import Controller
from steersman_policies.messages import Fingerprint
from steersman_policies.view import SegmentBelief

Complaint: TypeAlias = Literal["acceptance", "cost"]

KNOWN_WEIGHT = 200.0
"""Drafts behind the belief about a segment before engines are compared in it."""

KNOWN_STEPS = 500
KNOWN_SIZE_STEPS = 100
"""Steps of about the same number of tokens that two engines must have had before they are compared."""

SICK_ACCEPTANCE = 0.06
"""By how much the acceptance of the first position has to be lower, averaged over the common segments."""

DEVIATIONS = 4.0
SICK_SECONDS = 1.25
"""How many times as long as on its peers a step has to take."""

FEWEST = 3
"""Engines of a kind before one can be the odd one."""


class Health(Struct, frozen=True):
    """Of one engine."""

    peers: Estimate
    """Acceptance of its healthy peers; the prior where it has none, or is sick itself."""
    complaints: tuple[Complaint, ...] = ()


def examine(controllers: Mapping[str, Controller]) -> dict[str, Health]:
    """The health of every engine, by id."""
    found: dict[str, Health] = {}
    by_kind = sorted(controllers, key=lambda name: (_kind(controllers[name]), name))
    for _, names in groupby(by_kind, key=lambda name: _kind(controllers[name])):
        found |= _examine_kind({name: controllers[name] for name in names})
    return found


def _examine_kind(kind: Mapping[str, Controller]) -> dict[str, Health]:
    sick: dict[str, tuple[Complaint, ...]] = dict.fromkeys(kind, ())
    if len(kind) >= FEWEST:
        beliefs = {
            name: {found.segment: found for found in controller.segments()}
            for name, controller in kind.items()
        }
        for name in kind:
            others = [other for other in kind if other != name]
            complaints: list[Complaint] = []
            if _accepts_less(beliefs[name], [beliefs[other] for other in others]):
                complaints.append("acceptance")
            if _is_slower(kind[name], [kind[other] for other in others]):
                complaints.append("cost")
            sick[name] = tuple(complaints)
    return {
        name: Health(
            PRIOR
            if complaints
            else _common([c for other, c in kind.items() if other != name and not sick[other]]),
            complaints,
        )
        for name, complaints in sick.items()
    }


def _common(peers: Sequence[Controller]) -> Estimate:
    reached = accepted = 0.0
    for peer in peers:
        totals = peer.belief.acceptance.totals()
        accepted, reached = accepted + totals[0], reached + totals[1]
    return PRIOR.refined(accepted, reached, PRIOR.weight) if reached else PRIOR


def _accepts_less(one: Mapping[str, SegmentBelief], others: Sequence[Mapping[str, SegmentBelief]]) -> bool:
    """Whether an engine accepts clearly less than the median of the others, over the segments they share;
    what is believed of each, by segment."""
    differences, variances, weights = [], [], []
    for segment, mine in one.items():
        theirs = [found[segment] for found in others if segment in found]
        theirs = [found for found in theirs if found.weight >= KNOWN_WEIGHT]
        if mine.weight < KNOWN_WEIGHT or len(theirs) < FEWEST - 1 or not mine.acceptance:
            continue
        usual = statistics.median(found.acceptance[0] for found in theirs)
        width = mine.acceptance_high[0] - mine.acceptance_low[0]
        widths = [found.acceptance_high[0] - found.acceptance_low[0] for found in theirs]
        differences.append(mine.acceptance[0] - usual)
        variances.append((width**2 + statistics.fmean(widths) ** 2) / (2.0 * NORMAL_Q95) ** 2)
        weights.append(mine.weight)
    total = sum(weights)
    if not total:
        return False
    difference = sum(w * d for w, d in zip(weights, differences, strict=True)) / total
    deviation = math.sqrt(sum(w * w * v for w, v in zip(weights, variances, strict=True))) / total
    return difference < -max(SICK_ACCEPTANCE, DEVIATIONS * deviation)


def _is_slower(one: Controller, others: Sequence[Controller]) -> bool:
    """Whether steps take an engine far longer than most of the others, on one device."""
    if one.belief.cost.steps < KNOWN_STEPS:
        return False
    same = [c for c in others if c.fingerprint == one.fingerprint and c.belief.cost.steps >= KNOWN_STEPS]
    ratios = [ratio for other in same if (ratio := _slowness(one, other)) is not None]
    return len(ratios) >= FEWEST - 1 and statistics.median(ratios) > SICK_SECONDS


def _slowness(one: Controller, other: Controller) -> float | None:
    """How many times as long a plain step takes, of a size that both know; None where there is none: beyond
    what an engine has seen its steps are a guess."""
    mine, theirs = one.belief.cost, other.belief.cost
    known = [min(pair) for pair in zip(mine.seen(), theirs.seen(), strict=False)]
    if max(known) < KNOWN_SIZE_STEPS:
        return None
    tokens = mine.middle(known.index(max(known)))
    return _step_s(one, tokens, like=one) / _step_s(other, tokens, like=one)


def _step_s(controller: Controller, target_tokens: float, like: Controller) -> float:
    """Seconds of a step of that size with the load of `like`, drafting left out."""
    load = like.belief.load
    requests = min(max(load.mean_requests, 1.0), target_tokens)
    return controller.belief.cost.predict(
        target_tokens=target_tokens,
        context_tokens=requests * load.mean_context_tokens,
        prefill_tokens=0,
        depth=0,
        requests_drafting=0,
        decode_requests=requests,
    ).step_s


def _kind(controller: Controller) -> tuple[str, ...]:
    """What engines must share to be compared."""
    held: Fingerprint = controller.hello.fingerprint
    return (held.target, held.drafter, held.drafter_version, held.method, held.quantisation)
