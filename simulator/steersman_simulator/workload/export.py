"""Writes any trace as one of our own: one request a line, JSON, also compressed."""

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from steersman_policies.policy import did_you_mean
from steersman_simulator.workload.spec import read_arrivals
from steersman_simulator.workload.table import line_of
from steersman_simulator.workload.trace_file import Lost
from steersman_simulator.workload.traces import TraceSpec

FORMS = (".jsonl", ".jsonl.gz")


def import_trace(kind: type[TraceSpec], options: Mapping[str, Any], out: Path, seed: int) -> dict[str, Any]:
    """Write a trace of this kind to `out`, line by line; what was written and what was left out.

    Raises ValueError or FileNotFoundError in one line; then there is no `out`.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            hint = did_you_mean(name, kind.__struct_fields__)
            raise ValueError(f"{kind.__struct_config__.tag}: no option {name!r}{hint}")
    if not out.name.endswith(FORMS):
        raise ValueError(f"--out: {out}: unknown format; allowed are {' and '.join(FORMS)}")
    spec, lost, encoder, count = kind(**options), Lost(), msgspec.json.Encoder(), 0
    part = out.with_name(out.name + ".part")
    if out.exists():
        raise ValueError(f"--out: {out} exists already; choose another file")
    try:
        with _written(part, out.suffix == ".gz") as file:
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


@contextmanager
def _written(part: Path, compress: bool) -> Iterator[IO[bytes]]:
    with part.open("wb") as plain:
        if not compress:
            yield plain
            return
        # Neither name nor time goes in: the same trace, the same bytes.
        with gzip.GzipFile("", "wb", 6, plain, mtime=0) as packed:
            yield cast(IO[bytes], packed)
