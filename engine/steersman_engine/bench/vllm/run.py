"""The whole benchmark, and whether every promise was kept."""

import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steersman_engine.bench.hook import STATES as HOOK_STATES
from steersman_engine.bench.vllm.outside import find_python, run_part
from steersman_engine.bench.vllm.spec import Sizes
from steersman_engine.decode.bundled import bundled_model
from steersman_policies.machine import machine, version

STATES = (*HOOK_STATES[:3], "restarted")
MODES = ("synchronous", "asynchronous")

STEP_S = 0.007
MARKS = {
    "hook_us.p50": 30.0,
    "hook_us.p99": 150.0,
    "driven_hook_us.p50": 35.0,
    "step_difference_fraction": 0.005,
    "throughput_ratio": 0.99,
    "speed_ratio": 0.99,
}
"""`driven_hook_us.p50` is `step_difference_fraction` of a step of `STEP_S`. Speeds count by the upper end
of their interval: what is below the mark even there is slower beyond noise."""


def run(
    *,
    vllm_python: Path | None = None,
    model: Path | None = None,
    requests: int = 16,
    groups: int = 8,
    block_tokens: int = 24,
    kills: int = 20,
    driven_requests: int = 256,
    steps: int = 500,
    driven_groups: int = 20,
    virtual_kills: int = 1_000,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """One JSON-like object; `passed` says whether every mark was met.

    Raises ValueError where there is no vLLM, RuntimeError where vLLM or a sidecar does not start.
    """
    python = find_python(vllm_python)
    folder = bundled_model() if model is None else model
    driven = Sizes(
        part="driven",
        requests=driven_requests,
        groups=driven_groups,
        kills=math.ceil(virtual_kills / len(MODES)),
        steps=steps,
        step_s=STEP_S,
    )
    live = Sizes(part="live", requests=requests, groups=groups, kills=kills, block_tokens=block_tokens)
    found = {}
    for sizes in (driven, live):
        with tempfile.TemporaryDirectory(prefix="steersman-") as name:
            found[sizes.part] = run_part(python, folder, Path(name), sizes, seed, progress)
    result = {
        "machine": machine(),
        "version": version(),
        **arranged(found["driven"], found["live"]),
        "driven_requests": driven_requests,
        "step_s": STEP_S,
        "marks": MARKS,
    }
    return {**result, **verdict(result)}


def arranged(driven: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """The figures of both parts, those that were promised by name in front."""
    modes = {mode: driven[mode] for mode in MODES}
    kills = (live["kills"], *(figures["virtual"] for figures in modes.values()))
    return {
        "vllm_version": live["vllm_version"],
        "hook_us": live["hook_us"],
        "throughput_ratio": live["throughput"]["ratio"],
        "step_difference_fraction": modes["synchronous"]["difference"]["fraction"],
        "decisions_after_expiry": sum(found["decisions_after_expiry"] for found in kills),
        "live": {name: found for name, found in live.items() if name not in ("hook_us", "vllm_version")},
        "driven": modes,
    }


def verdict(result: dict[str, Any]) -> dict[str, Any]:
    """Whether the promises were kept, and one line for each one that was not."""
    missed = [f"{name}: {found}, {what}" for name, found, what, kept in _judged(result) if not kept]
    return {"passed": not missed, "missed": missed}


def _judged(result: dict[str, Any]) -> Iterator[tuple[str, Any, str, bool]]:
    """Name, figure, mark in words, and whether it was met. Written so that NaN misses."""
    for name, found, mark in _at_most(result):
        yield name, found, f"at most {mark:g}", found <= mark
    for name, found, mark in _at_least(result):
        yield name, found, f"at least {mark:g}", found >= mark
    for name, found in _zero(result):
        yield name, found, "must be 0", found == 0


def _at_most(result: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    for state in STATES:
        for quantile in ("p50", "p99"):
            found = result["hook_us"][state][quantile]
            yield f"hook_us.{state}.{quantile}", found, MARKS[f"hook_us.{quantile}"]
        for mode in MODES:
            found = result["driven"][mode]["hook_us"][state]["p50"]
            yield f"driven.{mode}.hook_us.{state}.p50", found, MARKS["driven_hook_us.p50"]
    name = "step_difference_fraction"
    yield name, result[name], MARKS[name]


def _at_least(result: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    yield "throughput_ratio", result["throughput_ratio"], MARKS["throughput_ratio"]
    for state, found in result["live"]["speed"].items():
        yield f"live.speed.{state}.high", found["high"], MARKS["speed_ratio"]


def _zero(result: dict[str, Any]) -> Iterator[tuple[str, int]]:
    live = result["live"]
    yield "decisions_after_expiry", result["decisions_after_expiry"]
    yield "live.requests.lost", live["requests"]["lost"]
    yield from _harm("live", live, live["kills"])
    for mode in MODES:
        figures = result["driven"][mode]
        yield from _harm(f"driven.{mode}", figures, figures["virtual"])
        yield f"driven.{mode}.reports_wrong", figures["virtual"]["reports_wrong"]


def _harm(where: str, figures: dict[str, Any], kills: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name in ("without_fallback", "without_return", "over_k"):
        yield f"{where}.{name}", kills[name]
    yield f"{where}.telemetry.unaccounted", kills["telemetry"]["unaccounted"]
    yield f"{where}.errors", figures["errors"] + kills.get("errors", 0)
    yield f"{where}.refused", sum(figures["refused"].values())
