"""`steersman bench belief`: what learning and planning cost, from the socket to the next plan."""

import gc
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from steersman_controller.belief.belief import FOLD_AT
from steersman_controller.bench import ingest
from steersman_controller.bench.traffic import (
    FINGERPRINT,
    HELLO,
    REQUESTS,
    SEGMENTS,
    STEPS_PER_S,
    patterns,
    stream,
)
from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig
from steersman_controller.sidecar.serving import collect_rarely
from steersman_controller.warm_up import warm_up
from steersman_policies import policy
from steersman_policies.codec import SCHEMA, Envelope, decode_payload, fingerprint_digest
from steersman_policies.codec import encode as encode_frames
from steersman_policies.machine import machine, resident_bytes, version

WARM_FRACTION = 0.1
"""Of the reports, before anything is timed or memory is looked at."""

AT_MOST = {
    "observe_us.mean": 20.0,
    "plan_incremental_ms.mean": 1.0,
    "compile_full_ms": 20.0,
    "memory_growth_bytes": 2 << 20,
    "object_growth": 1_000,
    "ingest.lost": 0,
}
AT_LEAST = {"ingest.ingest_per_s": 15_000.0}


def run(
    *,
    reports: int = 1_000_000,
    frames: int = 60_000,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure; one JSON-like object, `passed` says whether every mark was met.

    `observe_us` holds all that a report costs once it is decoded, its share of every folding included.
    `plan_incremental_ms` is all of `Controller.plan` with the policy `goodput`, tables included, when the
    usual number of reports came since the last plan and has been folded; `compile_full_ms` the same for a
    controller that was just restored, which decides every cell and has all there is to fold.
    """
    collect_rarely()
    known = patterns(random.Random(seed))  # noqa: S311 - chance that replays
    progress("compiling")
    warm_up()
    progress(f"{frames:,} frames through a socket")
    taken = ingest.measure(frames)
    progress(f"{reports:,} reports into a belief")
    learned = _learn(known, reports, progress)
    result = {
        "machine": machine(),
        "version": version(),
        "steps_per_s": STEPS_PER_S,
        "requests": REQUESTS,
        "segments": len(SEGMENTS),
        **learned,
        "decode_us": _decode_us(known),
        "ingest": taken,
        "marks": {"at_most": AT_MOST, "at_least": AT_LEAST},
    }
    missed = [
        f"{name}: {_at(result, name):g}, at most {mark:g}"
        for name, mark in AT_MOST.items()
        if not _at(result, name) <= mark
    ]
    missed += [
        f"{name}: {_at(result, name):g}, at least {mark:g}"
        for name, mark in AT_LEAST.items()
        if not _at(result, name) >= mark
    ]
    return {**result, "passed": not missed, "missed": missed}


def _learn(known: list[Any], reports: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Feed a controller, asking for plans as often as a sidecar does."""
    controller = _controller()
    per_plan = round(STEPS_PER_S * controller.config.plan_interval_s)
    blocks_us, plans_ms = array("d"), array("d")
    source = stream(known, reports)
    warm_bytes = warm_objects = 0
    blocks = reports // per_plan
    for block in range(blocks):
        if block == int(blocks * WARM_FRACTION):
            gc.collect()  # what was garbage before is not freed on our account
            warm_bytes, warm_objects = resident_bytes(), sys.getallocatedblocks()
            blocks_us, plans_ms = array("d"), array("d")
        if block % max(1, blocks // 10) == 0:
            progress(f"{block * per_plan:,} of {reports:,} reports")
        batch = [next(source) for _ in range(per_plan)]
        started_ns = time.perf_counter_ns()
        for report in batch:
            controller.observe(report, report.started_s)
        controller.belief.fold()
        folded_ns = time.perf_counter_ns()
        controller.plan(batch[-1].started_s)
        planned_ns = time.perf_counter_ns()
        blocks_us.append((folded_ns - started_ns) / 1e3 / per_plan)
        plans_ms.append((planned_ns - folded_ns) / 1e6)
    if controller.counters["planner_errors"] + controller.counters["plans_unfit"]:
        raise RuntimeError("bench belief: a plan failed")
    gc.collect()
    growth_bytes = resident_bytes() - warm_bytes
    object_growth = sys.getallocatedblocks() - warm_objects
    return {
        "reports": blocks * per_plan,
        "observe_us": {
            "mean": statistics.fmean(blocks_us),
            "p50": statistics.median(blocks_us),
            "reports_per_folding": per_plan,
        },
        "plan_incremental_ms": {
            "mean": statistics.fmean(plans_ms),
            "p50": statistics.median(plans_ms),
            "p99": sorted(plans_ms)[int(0.99 * len(plans_ms))],
            "reports_per_plan": per_plan,
        },
        "compile_full_ms": _compile_full_ms(controller, known),
        "memory_growth_bytes": growth_bytes,
        "object_growth": object_growth,
    }


def _compile_full_ms(controller: Controller, known: list[Any]) -> float:
    """From nothing but a snapshot and as many reports as can wait, to a plan."""
    snapshot, took_ms = controller.snapshot(), []
    for _ in range(9):
        fresh = _controller()
        fresh.restore(snapshot)
        for report in stream(known, FOLD_AT - 1):
            fresh.observe(report, report.started_s)
        started_ns = time.perf_counter_ns()
        fresh.plan(2.0)
        took_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
    return statistics.median(took_ms)


def _decode_us(known: list[Any]) -> float:
    """Typed decoding of one report: no sidecar can be faster."""
    payloads = [encode_frames(b"", 0, Envelope(SCHEMA, 1, "bench", 0, report))[2] for report in known]
    best_us = float("inf")
    for _ in range(9):
        started_ns = time.perf_counter_ns()
        for payload in payloads:
            decode_payload(payload)
        best_us = min(best_us, (time.perf_counter_ns() - started_ns) / 1e3 / len(payloads))
    return best_us


def _controller() -> Controller:
    return Controller(
        HELLO, fingerprint_digest(FINGERPRINT), policy.load("goodput", {}), ControllerConfig(mode="steer")
    )


def _at(result: dict[str, Any], dotted: str) -> float:
    found: Any = result
    for key in dotted.split("."):
        found = found[key]
    return float(found)
