"""`steersman bench simulator`: virtual seconds per second of a core, cost per token, memory."""

import json
import random
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from steersman_controller.events import ControllerConfig
from steersman_controller.sidecar.serving import collect_rarely
from steersman_policies.machine import machine, version
from steersman_policies.messages import StepReport
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth
from steersman_simulator.simulate import started
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.hello import plain_hello
from steersman_simulator.world.requests import Finished
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, Change, Outcome, World

BATCH = 64
FIXED_K = 3
REPEATS = 3
_MOST_PER_STEP = 4.0
"""Tokens of a request and step that this acceptance does not reach."""

AT_LEAST = {
    "realtime_factor_with_controller": 100.0,
    "realtime_factor_without": 300.0,
    "occupied_fraction": 0.95,
}
AT_MOST = {"linearity.ratio": 1.15, "requests.peak_rss_bytes": float(2 << 30)}

STEPS = ConstantSteps(
    step_s=0.0075, per_token_s=8e-6, per_context_token_s=5e-9, per_draft_token_s=5e-5, host_s=0.0004
)
"""About 10 ms a step at the batch above."""

HELLO = plain_hello(8, BATCH)


class Columns:
    """Keeps four numbers a request, and nothing of a step."""

    wants_steps = False
    wants_deliveries = False

    def __init__(self) -> None:
        self.seconds = {name: array("d") for name in ("queue", "ttft", "tpot", "e2e")}

    def on_arm(self, arm: int) -> None:
        """There is only one."""

    def on_step(self, engine: int, report: StepReport) -> None:
        """Not wanted."""

    def on_request(self, engine: int, done: Finished) -> None:
        """Keep its seconds."""
        report = done.report
        self.seconds["queue"].append(report.queue_s)
        self.seconds["ttft"].append(report.ttft_s)
        self.seconds["tpot"].append(report.tpot_s)
        self.seconds["e2e"].append(report.e2e_s)

    def on_reject(self, request: int, reason: str) -> None:
        """The world counts them."""


class Run(Struct, frozen=True):
    """One world, and what it took."""

    world: World
    outcome: Outcome
    requests: int
    wall_s: float
    cpu_s: float

    @property
    def virtual_s(self) -> float:
        """Seconds of the simulated clock."""
        return self.outcome.spans[0][1] - self.outcome.spans[0][0]

    @property
    def steps(self) -> int:
        """Steps of the engine."""
        return self.world.engines[0].batch.totals.steps

    @property
    def realtime_factor(self) -> float:
        """Virtual seconds per second of one core: the process has one thread and waits for nothing, so on
        an idle machine this is virtual over wall seconds."""
        return self.virtual_s / self.cpu_s

    @property
    def us_per_step(self) -> float:
        """What a step costs."""
        return self.cpu_s / self.steps * 1e6


def run(
    *,
    virtual_s: float = 120.0,
    segments: int = 4,
    output_tokens: int = 512,
    requests: int = 1_000_000,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure; one JSON-like object, `passed` says whether every mark was met.

    Factors are medians of `REPEATS` runs, by seconds of the core, with a queue that never empties. What a
    process compiles at its first step (`compile_s`) is not part of them.
    """
    collect_rarely()
    once = time.perf_counter()
    _run(segments, output_tokens, controller=True, horizon_s=0.5, seed=seed)
    compile_s = time.perf_counter() - once
    found: dict[bool, list[Run]] = {True: [], False: []}
    for number in range(REPEATS):
        for controller in (True, False):
            progress(f"run {number + 1} of {REPEATS}, {'with' if controller else 'without'} a controller")
            one = _run(segments, output_tokens, controller=controller, horizon_s=virtual_s, seed=seed)
            found[controller].append(one)
    with_, without = (sorted(found[c], key=lambda one: one.cpu_s)[REPEATS // 2] for c in (True, False))
    totals = with_.world.engines[0].batch.totals
    assert with_.world.sidecar is not None
    (controller_,) = with_.world.sidecar.fleet.controllers.values()
    result: dict[str, Any] = {
        "machine": machine(),
        "version": version(),
        "batch": BATCH,
        "segments": segments,
        "mean_output_tokens": output_tokens,
        "realtime_factor_with_controller": with_.realtime_factor,
        "realtime_factor_without": without.realtime_factor,
        "occupied_fraction": totals.slot_s / (BATCH * totals.busy_s),
        "steps": with_.steps,
        "reports_observed": controller_.counters["reports"],
        "plans": controller_.counters["plans"],
        "requests_finished": with_.requests,
        "mean_step_ms": totals.busy_s / totals.steps * 1e3,
        "virtual_s": with_.virtual_s,
        "cpu_s_with_controller": with_.cpu_s,
        "cpu_s_without": without.cpu_s,
        "wall_s_with_controller": with_.wall_s,
        "wall_s_without": without.wall_s,
        "us_per_step_with_controller": with_.us_per_step,
        "us_per_step_without": without.us_per_step,
        "compile_s": compile_s,
        "linearity": _linearity(segments, output_tokens, virtual_s, seed, progress),
    }
    if requests:
        progress(f"{requests:,} requests in a process of their own")
        result["requests"] = _in_child(requests, seed)
    missed = [
        f"{name}: {found_:g}, at least {mark:g}"
        for name, mark in AT_LEAST.items()
        if not (found_ := _at(result, name)) >= mark
    ]
    missed += [
        f"{name}: {found_:g}, at most {mark:g}"
        for name, mark in AT_MOST.items()
        if (requests or not name.startswith("requests.")) and not (found_ := _at(result, name)) <= mark
    ]
    if result["reports_observed"] < with_.steps - 1:
        missed.append(f"reports_observed: {result['reports_observed']}, of {with_.steps} steps")
    marks = {"at_least": AT_LEAST, "at_most": AT_MOST}
    return {**result, "marks": marks, "passed": not missed, "missed": missed}


def serve_many(requests: int, seed: int) -> dict[str, Any]:
    """Serve that many short requests under a controller; what it took, memory of this process included."""
    collect_rarely()
    once = time.perf_counter()
    # Below what the engine can do, so the queue stays short.
    arrivals = _poisson(requests, 4, output_tokens=32, per_s=200.0, seed=seed)
    one = _serve(arrivals, 4, controller=True, horizon_s=None, seed=seed)
    observer_requests = one.requests
    assert observer_requests == requests == one.outcome.arrived
    return {
        "requests": observer_requests,
        "steps": one.steps,
        "committed_tokens": one.world.engines[0].batch.totals.committed_tokens,
        "virtual_s": one.virtual_s,
        "wall_s": time.perf_counter() - once,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _in_child(requests: int, seed: int) -> dict[str, Any]:
    code = (
        "import json; from steersman_simulator.bench.simulator import serve_many; "
        f"print(json.dumps(serve_many({requests}, {seed})))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _linearity(
    segments: int, output_tokens: int, virtual_s: float, seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds per token at two lengths of a run, taken in turn; the least of `REPEATS`."""
    seconds: dict[int, list[float]] = {1: [], 4: []}
    tokens = dict.fromkeys(seconds, 0)
    for number in range(REPEATS):
        for times, found in seconds.items():
            progress(f"cost per token, {number + 1} of {REPEATS}, {times} x as long")
            horizon_s = virtual_s * times / 2
            one = _run(segments, output_tokens, controller=False, horizon_s=horizon_s, seed=seed)
            tokens[times] = one.world.engines[0].batch.totals.committed_tokens
            found.append(one.cpu_s / tokens[times])
    least = [min(found) for found in seconds.values()]
    return {"tokens": list(tokens.values()), "seconds_per_token": least, "ratio": least[1] / least[0]}


def _run(segments: int, output_tokens: int, *, controller: bool, horizon_s: float, seed: int) -> Run:
    """A queue that never empties, up to a horizon: more comes than could be served at `_MOST_PER_STEP`."""
    per_s = BATCH * _MOST_PER_STEP / STEPS.step_s / output_tokens
    backlog = 2 * BATCH
    requests = backlog + int(2.0 * per_s * horizon_s)
    arrivals = _poisson(
        requests, segments, output_tokens=output_tokens, per_s=per_s, seed=seed, backlog=backlog
    )
    return _serve(arrivals, segments, controller=controller, horizon_s=horizon_s, seed=seed)


def _serve(
    arrivals: Iterator[Arrival], segments: int, *, controller: bool, horizon_s: float | None, seed: int
) -> Run:
    observer = Columns()
    world = World(
        started=started(ControllerConfig(), "goodput", {}) if controller else None,
        hello=HELLO,
        shape=Shape(BATCH, token_budget=2048),
        truth=STEPS,
        acceptance=_acceptance(segments),
        seed=seed,
        fixed_k=FIXED_K,
        observer=observer,
        keeps_events=False,
    )
    changes = (Change(0.0, "goodput"),) if controller else ()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outcome = world.run([Arm("bench", arrivals, changes)], horizon_s=horizon_s)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return Run(world, outcome, len(observer.seconds["e2e"]), wall_s, cpu_s)


def _acceptance(segments: int) -> AcceptanceTruth:
    """Segments from hard to easy ones, in bursts, with requests that differ."""
    found = {}
    for number in range(segments):
        ease = (number + 0.5) / segments
        found[f"segment-{number}"] = SegmentTruth(
            coverage=0.5 + 0.5 * ease,
            persistence=0.5,
            offered_share=(1.0, 0.95),
            acceptance=(0.3 + 0.6 * ease, 0.25 + 0.65 * ease),
            effect_sd=0.5,
        )
    return AcceptanceTruth(found)


def _poisson(
    requests: int, segments: int, *, output_tokens: int, per_s: float, seed: int, backlog: int = 0
) -> Iterator[Arrival]:
    """The first `backlog` of them are there at once."""
    chance, at_s = random.Random(seed), 0.0  # noqa: S311 - chance that replays
    for number in range(requests):
        at_s += chance.expovariate(per_s) if number >= backlog else 0.0
        output = max(1, round(chance.uniform(0.5, 1.5) * output_tokens))
        yield Arrival(at_s, f"segment-{chance.randrange(segments)}", chance.randint(50, 400), output)


def _at(result: dict[str, Any], dotted: str) -> float:
    found: Any = result
    for key in dotted.split("."):
        found = found[key]
    return float(found)
