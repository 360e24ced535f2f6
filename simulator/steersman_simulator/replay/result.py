"""What a replay found, as a JSON tree."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from steersman_simulator.replay.calibrate import calibration
from steersman_simulator.replay.estimate import Estimate
from steersman_simulator.replay.evidence import Evidence
from steersman_simulator.replay.logged import Floats, Targets, policy_label
from steersman_simulator.replay.refusal import SegmentSupport, effective_of, refusal
from steersman_simulator.world.chance import generator

Choice: TypeAlias = tuple[str, dict[str, Any]]
"""A policy and its parameters."""

NOTE = (
    "Step goodput: committed tokens per busy second at the recorded batch sizes. It says nothing of queueing "
    "or latency; for these, simulate."
)


class Settings(Struct, frozen=True):
    """What `steersman replay` was asked for."""

    trace: Path
    policies: tuple[Choice, ...]
    engine_id: str = ""
    under: tuple[str, ...] = ()
    """Score only steps that were recorded under these policies; empty: all."""
    allow_model: bool = False
    """Take the model's word where exploration never reached."""
    draws: int = 1000
    seed: int = 0


def result_of(
    evidence: Evidence,
    choices: Sequence[Choice],
    targets: Sequence[Targets],
    estimates: Sequence[Estimate],
    settings: Settings,
) -> dict[str, Any]:
    """The last choice is `off`."""
    actual = evidence.actual
    logged = evidence.logged
    seconds = float((actual.draft_s + actual.verify_s + actual.other_s).sum())
    tokens = float(evidence.work.committed_tokens.sum())
    off = estimates[-1]
    policies = [
        _policy(evidence, choice, target, found, off, settings)
        for choice, target, found in zip(choices[:-1], targets, estimates, strict=False)
    ]
    return {
        "notes": [NOTE],
        "under": list(settings.under),
        "seed": settings.seed,
        "draws": settings.draws,
        "allow_model": settings.allow_model,
        "recorded": {
            "policies": [logged.policies[at] for at in np.unique(logged.under)],
            "steps": len(logged.under),
            "steps_without_predecessor": logged.missing,
            "unpaired_request_steps": logged.unpaired,
            "committed_tokens": tokens,
            "busy_s": seconds,
            "goodput_tokens_per_busy_s": tokens / seconds,
            "explored_steps": len(np.unique(logged.at[_moved(evidence)])),
            "mean_k": float((logged.k * logged.requests).sum() / logged.requests.sum()),
            "off": _ratio(seconds / off.seconds, off.recorded_draws / off.draws, off.by_model, settings.seed),
        },
        "policies": policies,
        "refused": [p["policy"] for p in policies if p["refused"]],
        "calibration": calibration(evidence, settings.draws, settings.seed),
    }


def _policy(
    evidence: Evidence,
    choice: Choice,
    targets: Targets,
    found: Estimate,
    off: Estimate,
    settings: Settings,
) -> dict[str, Any]:
    logged, rows = evidence.logged, found.rows
    segments = _segments(evidence, targets, found)
    supports = [segment.pop("support") for segment in segments]
    steps = len(logged.under)
    drafted = bool((logged.k > 0).any())
    refused = refusal(steps, supports, allow_model=settings.allow_model, drafted=drafted)
    total = float(logged.requests.sum())
    result: dict[str, Any] = {
        "policy": policy_label(*choice),
        "refused": refused,
        "effective_sample_size": effective_of(steps, supports),
        "explored_steps": len(np.unique(logged.at[rows.weight > 0.0])),
        "supported_share": 1.0 - float(rows.unsupported.sum()) / total,
        "exact_share": 1.0 - float(rows.censored.sum()) / total,
        "corrected_share": float(np.where(rows.raised > 0.0, rows.censored, 0.0).sum()) / total,
        "model_share": float(np.where(rows.raised > 0.0, 0.0, rows.censored).sum()) / total,
        "same_k_share": float(logged.requests[targets.k == logged.k].sum()) / total,
        "mean_k": float((targets.k * logged.requests).sum()) / total,
        "switches_per_1000_steps": 1000.0 * float(targets.switched.mean()),
        "plans": targets.plans,
    }
    if refused:
        return result
    actual = evidence.actual
    seconds = float((actual.draft_s + actual.verify_s + actual.other_s).sum())
    goodput = float(evidence.work.committed_tokens.sum()) / found.seconds
    against_off = _ratio(
        off.seconds / found.seconds, off.draws / found.draws, off.by_model - found.by_model, settings.seed
    )
    return result | {
        "basis": _basis(steps, supports, result["explored_steps"]),
        "goodput_tokens_per_busy_s": goodput,
        "against_recorded": _ratio(
            seconds / found.seconds, found.recorded_draws / found.draws, -found.by_model, settings.seed
        ),
        "against_off": against_off,
        "segments": segments,
    }


def _segments(evidence: Evidence, targets: Targets, found: Estimate) -> list[dict[str, Any]]:
    logged, rows = evidence.logged, found.rows
    out = []
    for number, segment in enumerate(logged.segments):
        here = logged.segment == number
        requests = float(logged.requests[here].sum())
        if not requests:
            continue
        plain = float((logged.requests - logged.barren)[here].sum())
        recorded = plain + float(logged.accepted[here, 1:].sum(dtype=np.float64))
        censored = float(rows.censored[here].sum())
        explored = int((rows.weight[here] > 0.0).sum())
        unsupported = float(rows.unsupported[here].sum()) / requests
        support = SegmentSupport(
            segment=segment,
            share=requests / float(logged.requests.sum()),
            raised=float(rows.wanting[here].sum()) / requests,
            unsupported=unsupported,
            effective=float(found.effective[number]),
            explored=explored,
        )
        out.append(
            {
                "segment": segment,
                "request_steps": int(requests),
                "recorded_mean_k": float((logged.k * logged.requests)[here].sum()) / requests,
                "mean_k": float((targets.k * logged.requests)[here].sum()) / requests,
                "recorded_tokens_per_step": recorded / requests,
                "tokens_per_step": float(found.tokens_per_step[number]),
                "drafts_per_step": float(found.drafts_per_step[number]),
                "exact_share": 1.0 - censored / requests,
                "raised_share": support.raised,
                "unsupported_share": unsupported,
                "explored_steps": explored,
                "effective_sample_size": support.effective,
                "visit_factor": found.visits[number].tokens,
                "support": support,
            }
        )
    return out


def _moved(evidence: Evidence) -> Any:
    logged = evidence.logged
    base = np.array([chances.base for chances in logged.kinds_of_chance])[logged.chances]
    return logged.k != base


def _basis(steps: int, supports: Sequence[SegmentSupport], explored: int) -> str:
    if refusal(steps, supports, allow_model=False, drafted=True):
        return "model"
    return "doubly robust" if explored else "exact"


def _ratio(ratio: float, draws: Floats, by_model: Floats, seed: int) -> dict[str, float]:
    """With its 95 % interval: that of resampled steps, widened by what the models move (jackknife)."""
    folds = len(by_model)
    spread = float(np.sqrt((folds - 1) / folds * ((by_model - by_model.mean()) ** 2).sum()))
    moved = np.log(draws) + spread * generator(seed, 3).standard_normal(len(draws))
    low, high = np.exp(np.quantile(moved, (0.025, 0.975)))
    return {"ratio": ratio, "low": float(low), "high": float(high), "model_sd": spread}
