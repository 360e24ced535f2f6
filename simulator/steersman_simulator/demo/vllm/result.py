"""`result.json` of `steersman demo --vllm`. Units are in the keys."""

from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from steersman_simulator.demo.compare import (
    Cost,
    PhaseCost,
    Runs,
    against,
    against_best,
    busy_per_token,
    mean_e2e,
    texts_against,
)
from steersman_simulator.demo.measure import Figures, arm_figures
from steersman_simulator.demo.predict import prediction_figures, replay_predictions
from steersman_simulator.demo.result import Findings, by_arm, failed_requests, machine, timelines, workload
from steersman_simulator.demo.vllm.launch import OFF, STATIC, STEERED
from steersman_simulator.demo.vllm.run import K0, Live, Settings
from steersman_simulator.demo.vllm.sweep import Point

LEAST_OF_BEST = 0.97
"""Promised speed against the best other arm of each phase, as a lower 95 % bound."""

LEAST_ROUNDS = 5
OVERALL = "overall"

NOTES = (
    "One vLLM server a way of launching, all at once, each with the adapter and one sidecar; one at a time "
    "got traffic. k0 and steered are two policies on the same server; the others were paused: vLLM's own "
    "setting ruled them, and the adapter only reported.",
    "Busy seconds are those of the adapter's step reports; waiting for arrivals costs nothing. Latencies are "
    "the clients', from the scheduled arrival on.",
    "Every arm served the same requests at the same moments; every second round ran the arms backwards. No "
    "server cached prefixes.",
    "vLLM's batch table is the best K of a sweep on other prompts of the same mix. The steered server served "
    "the sweep, so its controller had seen the same evidence.",
    "A ratio is one arm's speed over another's: above 1 is better. Its bounds are those of a 95 % interval "
    "over paired rounds.",
)


def evaluate(live: Live, settings: Settings, *, started_at: str) -> Findings:
    """Measures, comparisons, marks. Raises ValueError where an arm brought nothing to compare."""
    runs = by_arm(live.runs)
    predictions = replay_predictions(live.recording.events, STEERED)
    result: Figures = {
        "version": version("steersman"),
        "machine": machine(),
        "started_at": started_at,
        "rounds": max(run.round for run in live.runs),
        "order": [f"{run.round}:{run.arm}" for run in live.runs],
        "engine": _engines(live, settings),
        "workload": workload(live.runs, settings.workload.source)
        | {"sweep_requests": len(settings.workload.split.sweep)},
        "sweep": sweep_figures(live.points) | {"table": live.table},
        "arms": {arm: arm_figures(found) for arm, found in runs.items()},
        "speed": speeds(runs),
        "outputs": texts_against(runs, OFF.engine_id),
        "prediction": prediction_figures(predictions),
        "timelines": timelines(live.runs),
        "failed_requests": failed_requests(live.runs),
        "notes": list(NOTES),
    }
    missed = missed_marks(result)
    return Findings(
        result | {"passed": not missed, "missed": missed}, live.runs, predictions=tuple(predictions)
    )


def speeds(runs: Runs) -> Figures:
    """By measure, then by phase and over all: the steered arm against the others, and off against K = 0."""
    phases = [phase.name for phase in next(iter(runs.values()))[0].schedule.phases]
    costs: dict[str, PhaseCost] = {
        "busy_s_per_token": busy_per_token,
        "e2e_mean_s": mean_e2e(runs),
    }
    others = [arm for arm in runs if arm != STEERED]
    found: Figures = {}
    for measure, cost in costs.items():
        found[measure] = {}
        for place, phase in ((OVERALL, None), *((name, name) for name in phases)):
            there = _at(cost, phase)
            found[measure][place] = {
                "steered_vs_best": against_best(runs, others, there),
                "steered_vs": {arm: against(runs, arm, there) for arm in others},
                "off_vs_k0": against(runs, K0.name, there, mine=OFF.engine_id),
            }
    return found


def sweep_figures(points: Sequence[Point]) -> Figures:
    """Busy seconds per token by batch size and K, and on how many steps each stands."""
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    steps: dict[str, dict[str, int]] = defaultdict(dict)
    for point in sorted(points, key=lambda point: (point.batch, point.k)):
        seconds[str(point.batch)][str(point.k)] = point.s_per_token
        steps[str(point.batch)][str(point.k)] = point.steps
    return {"busy_s_per_token_by_batch_and_k": dict(seconds), "steps_by_batch_and_k": dict(steps)}


def missed_marks(result: Figures) -> list[str]:
    """One line for each mark that was not met."""
    missed = []
    if result["rounds"] < LEAST_ROUNDS:
        missed.append(f"rounds: {result['rounds']}, at least {LEAST_ROUNDS}")
    if result["failed_requests"]:
        missed.append(f"failed_requests: {len(result['failed_requests'])}, must be 0")
    for arm, figures in result["arms"].items():
        if figures["committed_tokens"] != figures["output_tokens"]:
            missed.append(
                f"arms.{arm}.committed_tokens: {figures['committed_tokens']}, "
                f"but the clients received {figures['output_tokens']}: reports are missing"
            )
        drafted, drafts = figures["drafted_tokens"], arm in (STATIC.engine_id, STEERED)
        if arm in (OFF.engine_id, K0.name) and drafted:
            missed.append(f"arms.{arm}.drafted_tokens: {drafted}, must be 0")
        if drafts and not drafted:
            missed.append(f"arms.{arm}.drafted_tokens: 0, must be above 0: nothing was compared")
    return missed + _slow(result["speed"])


def _slow(speed: Figures) -> list[str]:
    missed = []
    for measure, places in speed.items():
        for place, found in places.items():
            best = found["steered_vs_best"]
            if place != OVERALL and not (best["low"] or 0.0) >= LEAST_OF_BEST:
                where = f"{measure}.{place}: lower bound {_shown(best['low'])} against {best['best']}"
                missed.append(f"{where}, at least {LEAST_OF_BEST}")
        low = places[OVERALL]["steered_vs"][STATIC.engine_id]["low"]
        if not (low or 0.0) > 1.0:
            where = f"{measure}.{OVERALL}: lower bound {_shown(low)} against {STATIC.engine_id}"
            missed.append(f"{where}, must be above 1")
    return missed


def _engines(live: Live, settings: Settings) -> Figures:
    hello = live.hellos[STEERED]
    return {
        "model": settings.model,
        "fingerprint": msgspec.structs.asdict(hello.fingerprint),
        "runner": hello.runner,
        "k_max": hello.k_max,
        "max_batch": hello.max_batch,
        "pace": msgspec.structs.asdict(live.pace),
        "commands": {name: list(command) for name, command in live.commands.items()},
        "observe_only": {name: hello.observe_only for name, hello in live.hellos.items()},
    }


def _at(cost: PhaseCost, phase: str | None) -> Cost:
    return lambda runs: cost(runs, phase)


def _shown(low: float | None) -> str:
    return "unknown" if low is None else f"{low:.4f}"
