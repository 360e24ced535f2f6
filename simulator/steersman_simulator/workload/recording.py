"""Recordings of `steersman serve --record`, and of simulated runs: the requests that finished in them."""

from collections.abc import Iterator
from pathlib import Path

from steersman_controller.events import PolicySet, Received, Started
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import RequestReport
from steersman_policies.policy import did_you_mean
from steersman_simulator.workload.arrival import Arrival, arrival_of
from steersman_simulator.workload.trace_file import Lost, from_first, sorted_on_disk
from steersman_simulator.workload.transform import Traffic


class Recorded(Traffic, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="recording"):
    """A journal, a Parquet file, or the folder that holds either."""

    path: str
    engine: str = ""
    """Only of this engine; empty: of all."""
    policies: tuple[str, ...] = ()
    """Only those that finished under these policies; empty: all."""


def read_recorded(spec: Recorded, path: Path, lost: Lost) -> Iterator[Arrival]:
    """Its requests by arrival, from the first one on; sorted, for a report comes when a request ends."""
    return from_first(sorted_on_disk(_finished(spec, path, lost)))


def _finished(spec: Recorded, path: Path, lost: Lost) -> Iterator[Arrival]:
    engines, policies = dict[str, None](), dict[str, None]()
    policy, of_engine, kept = "", dict[str, str](), 0
    for event in read_recording(path).events:
        if isinstance(event, Started | PolicySet):
            policies[event.policy] = None
            if isinstance(event, PolicySet) and event.engine_id:
                of_engine[event.engine_id] = event.policy
            else:
                policy, of_engine = event.policy, {}
        elif isinstance(event, Received) and isinstance(event.record, RequestReport):
            engines[event.engine_id] = None
            now = of_engine.get(event.engine_id, policy)
            if spec.engine not in ("", event.engine_id) or (spec.policies and now not in spec.policies):
                continue
            kept += 1
            if event.record.output_tokens:
                yield arrival_of(event.record, event.record.arrived_s)
            else:
                lost["no output tokens"] += 1
    for name, word, held in [
        (spec.engine, "engine", engines),
        *((p, "policy", policies) for p in spec.policies),
    ]:
        if name and name not in held and not kept:
            hint = did_you_mean(name, held)
            raise ValueError(f"{path}: no request of {word} {name!r}{hint}; held: {', '.join(held)}")
