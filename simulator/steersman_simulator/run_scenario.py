"""Runs a scenario, and leaves its files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

from steersman_controller.events import Started
from steersman_controller.sidecar.config import PriorChoice
from steersman_controller.sidecar.serving import read_given
from steersman_policies.messages import Fingerprint, Hello
from steersman_policies.policy import did_you_mean
from steersman_policies.policy import load as load_policy
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.acceptance.spec import build_acceptance, sick_engines
from steersman_simulator.report.perfetto import MAX_EVENTS
from steersman_simulator.report.run_report import RunReport, write_files
from steersman_simulator.report.tally import gap_latencies
from steersman_simulator.scenario import Scenario
from steersman_simulator.simulate import started
from steersman_simulator.truths.spec import build_truth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.spec import read_arrivals
from steersman_simulator.workload.trace_file import Lost
from steersman_simulator.world.cluster import engine_ids
from steersman_simulator.world.world import Arm, Change, World

Progress = Callable[[float, int], None]
"""Told the simulated second and the requests that came so far."""

_TOLD_EVERY = 200


def run_scenario(
    scenario: Scenario,
    folder: Path,
    *,
    out: Path | None = None,
    journal: bool = True,
    trace_events: int = MAX_EVENTS,
    deliveries: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The result as a JSON tree; with `out`, also the files of `report/run_report.py` in that folder.

    `folder` is where the scenario's paths begin. `journal`: also a recording, which is held in memory while
    it runs; `trace_events`: at most so many in trace.json, 0 for none; `deliveries`: inter-token latencies
    are exact, which takes memory for every delivery; else they are right to half a percent. The same
    scenario, files and version give the same bytes. Raises ValueError or FileNotFoundError with one line for
    what cannot be used; then nothing is left in `out`.
    """
    lost = Lost()
    first = _first(scenario, folder)
    truth, acceptance = build_truth(scenario.truth, folder), _acceptance(scenario, folder)
    report = RunReport(slo=scenario.slo, folder=out, trace_events=trace_events, wants_deliveries=deliveries)
    try:
        world = World(
            started=first,
            hello=hello_of(scenario),
            shape=scenario.engine,
            truth=truth,
            acceptance=acceptance,
            seed=scenario.seed,
            cluster=scenario.cluster,
            observer=report,
            keeps_events=out is not None and journal,
        )
        arrivals = report.watch(read_arrivals(scenario.workload, folder, scenario.seed, lost=lost))
        if progress is not None:
            arrivals = _told(arrivals, progress)
        changes = (Change(0.0, first.policy, first.params), *scenario.changes)
        outcome = world.run([Arm(scenario.name, arrivals, changes)], horizon_s=scenario.horizon_s or None)
    except BaseException:
        report.abandon()
        raise
    start_s, end_s = outcome.spans[0]
    found = report.end(end_s - start_s, scenario.cluster.engines)
    if not deliveries:
        gaps = np.sum([engine.batch.gaps for engine in world.engines], axis=0)
        found |= gap_latencies("itl", gaps[0]) | gap_latencies("itl_per_token", gaps[1])
    result = _asked(scenario, first) | found | {"left_out": dict(sorted(lost.items()))}
    if out is not None:
        write_files(out, result, report, outcome.events if journal else None)
    return result


def _acceptance(scenario: Scenario, folder: Path) -> Sequence[Acceptance]:
    """Of each engine; those that no phase names share one. Raises ValueError for an engine not there."""
    engines, named = engine_ids(scenario.cluster), sick_engines(scenario.acceptance)
    for name in named:
        if name not in engines:
            hint = did_you_mean(name, engines)
            raise ValueError(
                f"acceptance.phases.engine: no {name!r}{hint}; allowed: {', '.join(engines[:8])}"
            )
    others = build_acceptance(scenario.acceptance, folder)
    return [build_acceptance(scenario.acceptance, folder, e) if e in named else others for e in engines]


def _first(scenario: Scenario, folder: Path) -> Started:
    priors = read_given(_placed(scenario.prior, folder))
    for change in scenario.changes:
        load_policy(change.policy, change.params)
    return started(scenario.controller, scenario.policy.name, scenario.policy.params, priors)


def _asked(scenario: Scenario, first: Started) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "version": first.version,
        "policy": first.policy,
        "params": first.params,
        "seed": scenario.seed,
        "load": scenario.workload.load,
        "workload": str(scenario.workload.__struct_config__.tag),
        "engines": scenario.cluster.engines,
        "max_batch": scenario.engine.max_batch,
        "slo": asdict(scenario.slo),
        "horizon_s": scenario.horizon_s,
        "prior": first.priors[0].source if first.priors else "",
    }


def hello_of(scenario: Scenario) -> Hello:
    """What the engines of a scenario say of themselves."""
    can = scenario.speculation
    return Hello(
        fingerprint=Fingerprint(
            engine="simulated",
            engine_version="1",
            target=can.target,
            drafter=can.drafter,
            drafter_version="1",
            method=can.method,
            quantisation="none",
            dtype="bfloat16",
            device=can.device,
            graph_mode="graph" if scenario.engine.graph_sizes else "eager",
            data_parallel=scenario.cluster.engines,
        ),
        k_max=can.k_max,
        reachable_k=can.reachable_k or tuple(range(can.k_max + 1)),
        k_floor=can.k_floor,
        launch_k=can.launch_k,
        max_batch=scenario.engine.max_batch,
        per_request_k=can.per_request_k,
        draft_timing=True,
        confidence=False,
        drafter_state_survives_off=scenario.engine.off != "cold",
        lockstep_group="ranks" if scenario.cluster.lockstep else "",
    )


def _placed(prior: PriorChoice, folder: Path) -> PriorChoice:
    files = {name: getattr(prior, name) for name in ("bundle", "target_config", "drafter_config")}
    return replace(prior, **{name: str(folder / path) for name, path in files.items() if path})


def _told(arrivals: Iterable[Arrival], progress: Progress) -> Iterator[Arrival]:
    for number, arrival in enumerate(arrivals):
        if number % _TOLD_EVERY == 0:
            progress(arrival.at_s, number)
        yield arrival
