"""Any workload as data, and its arrivals."""

import heapq
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from steersman_policies.executor import mix as mixed
from steersman_policies.units import MAX_SEGMENTS
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.made_up import Gamma, MadeUp, OnOff, Poisson, Ramp, made_up, pieces_of
from steersman_simulator.workload.servegen import Rates, rate_pieces
from steersman_simulator.workload.trace_file import Lost
from steersman_simulator.workload.traces import TraceSpec, read_trace
from steersman_simulator.workload.transform import Traffic, transformed
from steersman_simulator.world.chance import stream

_SORTING, _READING = 1, 2


class Mix(Traffic, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mix"):
    """Several workloads at the same time."""

    of: Annotated[tuple["WorkloadSpec", ...], Meta(min_length=1, max_length=64)]


WorkloadSpec: TypeAlias = TraceSpec | Poisson | Gamma | OnOff | Ramp | Rates | Mix
"""Where requests come from; `kind` says which."""


def read_arrivals(
    spec: WorkloadSpec, folder: Path, seed: int, *, lost: Lost | None = None
) -> Iterator[Arrival]:
    """The arrivals of a workload in the order of time, read as they are asked for.

    `folder` is where its paths begin. The same spec, files and seed give the same arrivals. Rows that hold no
    request that can be served are left out and counted in `lost`. Raises ValueError or FileNotFoundError with
    one line (file and line, what is allowed) as soon as it is read that far; without any request, too.
    """
    segments: dict[str, None] = {}
    last: Arrival | None = None
    for last in _flow(spec, folder, seed, Lost() if lost is None else lost):
        if last.segment not in segments:
            segments[last.segment] = None
            if len(segments) > MAX_SEGMENTS:
                raise ValueError(f"workload: more than {MAX_SEGMENTS} segments: {', '.join(segments)}")
        yield last
    if last is None:
        path = getattr(spec, "path", "")
        where = f"{folder / path}" if path else f"workload ({spec.__struct_config__.tag})"
        raise ValueError(f"{where}: no request to serve")


def _flow(spec: WorkloadSpec, folder: Path, seed: int, lost: Lost) -> Iterator[Arrival]:
    def again() -> Iterator[Arrival]:
        match spec:
            case Mix(of=parts):
                flows = (_flow(part, folder, mixed(seed, number), lost) for number, part in enumerate(parts))
                return heapq.merge(*flows, key=attrgetter("at_s"))
            case Rates():
                return made_up(spec, rate_pieces(spec, folder / spec.path), folder, seed, lost)
            case Poisson() | Gamma() | OnOff() | Ramp():
                return made_up(spec, pieces_of(spec), folder, seed, lost)
            case _:
                return read_trace(spec, folder, stream(seed, _READING), lost)

    if isinstance(spec, MadeUp) and not isinstance(spec, Rates) and not (spec.requests or spec.to_s):
        raise ValueError("workload: made-up traffic has no end; say how many `requests`, or `to_s`")
    return transformed(spec, again, stream(seed, _SORTING))
