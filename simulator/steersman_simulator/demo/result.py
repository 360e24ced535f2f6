"""`result.json`: everything the demo found, as one JSON object. Units are in the keys."""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from msgspec import Struct

from steersman_simulator.demo.arms import OFF, STEERED, ArmRun
from steersman_simulator.demo.compare import contrast, equal_outputs, steered_vs_best
from steersman_simulator.demo.measure import Figures, arm_figures
from steersman_simulator.demo.predict import (
    Predicted,
    SimulatedArms,
    fidelity,
    prediction_figures,
    replay_predictions,
    simulate_arms,
)
from steersman_simulator.demo.run import Live, Settings
from steersman_simulator.demo.spans import SETTLE_S
from steersman_simulator.demo.timeline import timeline

NOTES = (
    "One engine and one sidecar served every arm; an arm is a policy push. The controller keeps learning "
    "in all arms, so the steered arm starts with what the arms before it taught.",
    "Busy seconds are the engine's own draft, verify and other seconds of its steps; waiting for arrivals "
    "costs nothing. Latencies are the clients', from the scheduled arrival on.",
    "Every arm serves the same requests at the same moments; every second round runs the arms backwards.",
    "The simulated world was fitted on the off and fixed arms and never saw a step of the steered arm; its "
    "output lengths are those of the first off arm, which decode greedily as all arms do.",
)


class Findings(Struct, frozen=True):
    """The result and the data behind the figures of the report."""

    result: Figures
    runs: tuple[ArmRun, ...]
    predictions: tuple[Predicted, ...]
    simulated: tuple[ArmRun, ...] = ()


def evaluate(live: Live, settings: Settings, *, started_at: str) -> Findings:
    """Measures, comparisons, predictions. Raises ValueError where an arm brought no token at all."""
    runs = by_arm(live.runs)
    predictions = replay_predictions(live.recording.events, live.engine_id)
    simulated, simulation = _simulation(live)
    result: Figures = {
        "version": version("steersman"),
        "machine": machine(),
        "started_at": started_at,
        "rounds": max(run.round for run in live.runs),
        "order": [f"{run.round}:{run.arm}" for run in live.runs],
        "engine": _engine(live),
        "workload": workload(live.runs, settings.workload),
        "arms": {arm: arm_figures(found) for arm, found in runs.items()},
        "steered_vs_best": steered_vs_best(runs),
        "contrast": contrast(runs),
        "outputs": equal_outputs(runs),
        "prediction": prediction_figures(predictions),
        **simulation,
        "timelines": timelines(live.runs),
        "failed_requests": failed_requests(live.runs),
        "notes": list(NOTES),
    }
    return Findings(result, live.runs, tuple(predictions), simulated)


def by_arm(runs: Sequence[ArmRun]) -> dict[str, list[ArmRun]]:
    """Runs of each arm in the order of their rounds; arms in the order of round 1."""
    found: dict[str, list[ArmRun]] = {}
    for run in sorted(runs, key=lambda run: run.round):
        found.setdefault(run.arm, []).append(run)
    return found


def timelines(runs: Sequence[ArmRun]) -> list[Figures]:
    """K and load along every run."""
    return [{"arm": run.arm, "round": run.round, **msgspec.to_builtins(timeline(run))} for run in runs]


def failed_requests(runs: Sequence[ArmRun]) -> list[Figures]:
    """What did not come to its end, and why."""
    return [
        {"arm": run.arm, "round": run.round, "request": outcome.number, "error": outcome.error}
        for run in runs
        for outcome in run.outcomes
        if outcome.error
    ]


def machine() -> Figures:
    """What the numbers were measured on."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "transformers": _installed("transformers"),
    }


def _simulation(live: Live) -> tuple[tuple[ArmRun, ...], Figures]:
    requests = [report for arm, reports in live.requests.items() if arm != STEERED.name for report in reports]
    try:
        found: SimulatedArms = simulate_arms(
            live.runs, hello=live.hello, config=live.config, requests=requests, settle_s=SETTLE_S
        )
    except ValueError as error:
        return (), {"fidelity": None, "simulation": None, "simulation_reason": str(error)}
    simulated = by_arm(found.runs)
    return found.runs, {
        "fidelity": fidelity(live.runs, found.runs),
        "simulation": {
            **found.fitted,
            "arms": {arm: arm_figures(runs) for arm, runs in simulated.items()},
            "steered_vs_best": steered_vs_best(simulated),
            "requests": len(found.runs[0].outcomes),
        },
    }


def _engine(live: Live) -> Figures:
    hello = live.hello
    return {
        "model": live.model,
        "fingerprint": msgspec.structs.asdict(hello.fingerprint),
        "k_max": hello.k_max,
        "max_batch": hello.max_batch,
        "pace": msgspec.structs.asdict(live.pace),
    }


def workload(runs: Sequence[ArmRun], source: str) -> Figures:
    """What every arm served."""
    schedule = runs[0].schedule
    kinds: Mapping[str, int] = Counter(o.segment for o in runs[0].outcomes)
    first_off = next(run for run in runs if run.arm == OFF.name)
    late_s = [o.sent_s - o.scheduled_s for run in runs for o in run.outcomes]
    sent: list[dict[str, Any]] = [
        {
            "request": o.number,
            "segment": o.segment,
            "phase": o.phase,
            "arrival_s": o.scheduled_s,
            "prompt_tokens": o.prompt_tokens,
            "output_tokens": o.tokens,
        }
        for o in first_off.outcomes
    ]
    return {
        "source": source,
        "requests_per_arm": len(schedule.requests),
        "segments": dict(sorted(kinds.items())),
        "phases": [{"phase": phase.name, "start_s": phase.start_s} for phase in schedule.phases],
        "largest_send_delay_s": max(late_s),
        "requests": sent,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
