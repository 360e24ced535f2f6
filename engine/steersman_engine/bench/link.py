"""`steersman bench link`: promise 1 (what the hook costs) and promise 2 (no decision after the lease)."""

import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from steersman_engine.bench import expiry, hook
from steersman_engine.bench.expiry import Trial
from steersman_engine.bench.hook import Added, Command, HookResult
from steersman_policies.machine import machine, version

REQUESTS = (64, 256)
"""The first one is the reference load, to which the marks on the hook apply."""

MARKS = {"added_p50_us": 15.0, "added_p99_us": 60.0, "step_difference_fraction": 0.005}


def run(
    *,
    steps: int = 1_000,
    groups: int = 40,
    step_s: float = 0.007,
    trials: int = 1_000,
    real_trials: int = 100,
    seed: int = 0,
    command: Command = hook.serve_command,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The whole benchmark as one JSON-like object; `passed` says whether every mark was met.

    Raises RuntimeError where the sidecar does not start.
    """
    rng = random.Random(seed)  # noqa: S311 - chance that replays
    with tempfile.TemporaryDirectory(prefix="steersman-") as name:
        progress(f"{trials} kills on a virtual clock")
        virtual = expiry.virtual_trials(trials, rng, Path(name))
        real = expiry.real_trials(real_trials, rng, Path(name), progress=progress)
    hooks = [
        hook.measure(
            requests, rng, steps=steps, groups=groups, step_s=step_s, command=command, progress=progress
        )
        for requests in REQUESTS
    ]
    result = {
        "machine": machine(),
        "version": version(),
        **_about_hook(hooks),
        "steps_per_state": steps,
        **_about_leases(virtual, real),
        "marks": MARKS,
    }
    return {**result, **verdict(result)}


def verdict(result: dict[str, Any]) -> dict[str, Any]:
    """Whether the promises were kept, and one line for each one that was not."""
    missed = []
    for state in hook.STATES:
        for name in ("p50", "p99"):
            found, mark = result["added_us"][state][name], MARKS[f"added_{name}_us"]
            if not found <= mark:
                missed.append(f"added_us.{state}.{name}: {found} us, at most {mark:g}")
    mark = MARKS["step_difference_fraction"]
    if not result["step_difference_fraction"] <= mark:
        missed.append(f"step_difference_fraction: {result['step_difference_fraction']}, at most {mark}")
    for name in ("decisions_after_expiry", "trials_without_fallback"):
        if result[name]:
            missed.append(f"{name}: {result[name]}, must be 0")
    return {"passed": not missed, "missed": missed}


def _about_hook(hooks: Sequence[HookResult]) -> dict[str, Any]:
    added: dict[str, Any] = {}
    floor: dict[str, Any] = {}
    for requests, result in zip(REQUESTS, hooks, strict=True):
        states = {state: _rounded(value) for state, value in result.added_us.items()}
        if requests == REQUESTS[0]:
            added |= states
            floor |= _rounded(result.floor_us)
        else:
            added[f"at_{requests}"] = states
            floor[f"at_{requests}"] = _rounded(result.floor_us)
    differences = {
        f"at_{requests}": msgspec.to_builtins(result.difference)
        for requests, result in zip(REQUESTS, hooks, strict=True)
    }
    return {
        "added_us": added,
        "floor_us": floor,
        "step_difference_fraction": max(result.difference.fraction for result in hooks),
        "step_difference": differences,
    }


def _rounded(added: Added) -> dict[str, float]:
    return {"p50": round(added.p50, 2), "p99": round(added.p99, 2)}


def _about_leases(virtual: Sequence[Trial], real: Sequence[Trial]) -> dict[str, Any]:
    everything = [*virtual, *real]
    after_s = [trial.fallback_after_s for trial in real if trial.fallback_after_s is not None]
    return {
        "decisions_after_expiry": sum(trial.decisions_after_expiry for trial in everything),
        "trials": len(virtual),
        "real_trials": len(real),
        "real_trials_kill": "a stand-in process that sends one plan and leases; the hook runs on the sidecar",
        "trials_without_fallback": sum(trial.fallback_after_s is None for trial in everything),
        "lease_s": expiry.LEASE_S,
        "plan_k": expiry.PLAN_K,
        "fallback_k": expiry.FALLBACK_K,
        "fallback_after_s": {
            "p50": round(statistics.median(after_s), 4) if after_s else None,
            "max": round(max(after_s), 4) if after_s else None,
        },
    }
