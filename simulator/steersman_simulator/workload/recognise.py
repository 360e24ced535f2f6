"""Which kind of trace a file is, by what it begins with."""

import csv
import gzip
import zlib
from pathlib import Path
from typing import get_args

from steersman_controller.trace.journal import is_journal
from steersman_controller.trace.recording import is_recording
from steersman_controller.train.foreign import MARKS
from steersman_policies.policy import did_you_mean
from steersman_simulator.workload import azure, burstgpt, mooncake, table
from steersman_simulator.workload.rows import check_regular, is_gzip
from steersman_simulator.workload.traces import TraceSpec
from steersman_simulator.workload.vllm_bench import VllmBench

KINDS: dict[str, type[TraceSpec]] = {str(kind.__struct_config__.tag): kind for kind in get_args(TraceSpec)}

_COLUMNS = {
    "azure": azure.COLUMNS,
    "burstgpt": burstgpt.COLUMNS,
    "mooncake": mooncake.COLUMNS,
    "table": table.COLUMNS,
}
_HEAD_BYTES = 1 << 16


def trace_kind(name: str) -> type[TraceSpec]:
    """The spec of this kind of trace. Raises ValueError with what it may have meant."""
    if name not in KINDS:
        raise ValueError(f"--from: no {name!r}{did_you_mean(name, KINDS)}; allowed: {', '.join(KINDS)}")
    return KINDS[name]


def recognised(path: Path) -> type[TraceSpec]:
    """The kind of a file or a recording's folder. What does not exist counts as a recording.

    Raises ValueError where it is none that we know.
    """
    check_regular(path)
    if path.is_dir() or not path.exists():
        return KINDS["recording"]
    if is_recording(path):
        return KINDS["table" if _is_table(path) else "recording"]
    if kind := _by_head(_head(path)):
        return KINDS[kind]
    known = "; ".join(f"{kind} has {', '.join(columns)}" for kind, columns in _COLUMNS.items())
    raise ValueError(f"{path}: no steersman recording and no known trace; {known}; vllm_bench has input_lens")


def _is_table(path: Path) -> bool:
    if is_journal(path):
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(table.COLUMNS) <= set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return False


def _by_head(head: str) -> str:
    if head.lstrip().startswith("{"):
        if '"input_lens"' in head or any(f'"{mark}"' in head for mark in MARKS):
            return str(VllmBench.__struct_config__.tag)
        first = head.lstrip().split("\n", 1)[0]
        return next((k for k, columns in _COLUMNS.items() if all(f'"{c}"' in first for c in columns)), "")
    line = head.split("\n", 1)[0]
    names = [name.strip() for name in next(csv.reader([line], delimiter=max(",;\t", key=line.count)), [])]
    return next((kind for kind, columns in _COLUMNS.items() if set(columns) <= set(names)), "")


def _head(path: Path) -> str:
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:1: truncated or damaged gzip ({error})") from None
