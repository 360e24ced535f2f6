"""Writes any trace as one of our own: one request a line, JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from steersman_policies.policy import did_you_mean
from steersman_simulator.workload.spec import read_arrivals
from steersman_simulator.workload.table import line_of
from steersman_simulator.workload.trace_file import Lost
from steersman_simulator.workload.traces import TraceSpec


def import_trace(kind: type[TraceSpec], options: Mapping[str, Any], out: Path, seed: int) -> dict[str, Any]:
    """Write a trace of this kind to `out`, line by line; what was written and what was left out.

    Raises ValueError or FileNotFoundError in one line; then there is no `out`.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            hint = did_you_mean(name, kind.__struct_fields__)
            raise ValueError(f"{kind.__struct_config__.tag}: no option {name!r}{hint}")
    spec, lost, encoder, count = kind(**options), Lost(), msgspec.json.Encoder(), 0
    part = out.with_name(out.name + ".part")
    if out.exists():
        raise ValueError(f"--out: {out} exists already; choose another file")
    try:
        with part.open("wb") as file:
            for arrival in read_arrivals(spec, Path(), seed, lost=lost):
                file.write(encoder.encode(line_of(arrival)) + b"\n")
                count += 1
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)
    return {
        "out": str(out),
        "kind": str(kind.__struct_config__.tag),
        "requests": count,
        "left_out": dict(lost),
    }
