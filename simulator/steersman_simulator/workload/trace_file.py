"""What all readers of traces share: which file, its order in time, and rows that hold no request."""

import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.rows import rows
from steersman_simulator.workload.transform import Traffic
from steersman_simulator.workload.values import Cells, segment_name

SORTED_AT_ONCE = 200_000
"""Requests in memory while a file is sorted; the rest waits in a temporary folder."""

Lost = Counter[str]
"""Rows of a trace that are no request that can be served, by reason."""


class TraceFile(Traffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace on disk. `path` is relative to the folder of the scenario."""

    path: str
    sort: bool = False
    """For a file that is not in the order of time: sort it first, on disk where it is large."""


class RowFile(TraceFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace with one request a row."""

    segment_column: str = ""
    """Where a row says its segment; empty: it says none."""


class Placed(NamedTuple):
    """A request and the line that it comes from."""

    line: int
    arrival: Arrival


Build = Callable[[Cells, Mapping[str, Any]], Arrival]
"""From a row to a request."""


def placed_rows(
    spec: RowFile, path: Path, needed: Sequence[str], build: Build, renamed: Mapping[str, str] | None = None
) -> Iterator[Placed]:
    """The requests of a file as they stand in it."""
    cells = Cells(path)
    column = spec.segment_column
    for number, values in rows(path, [*needed, *([column] if column else [])], renamed):
        cells.at = number
        arrival = build(cells, values)
        yield Placed(number, replace(arrival, segment=segment_name(values[column])) if column else arrival)


def in_order(spec: TraceFile, path: Path, placed: Iterable[Placed], lost: Lost) -> Iterator[Arrival]:
    """In the order of time, without rows that cannot be served, which are counted in `lost`.

    Raises ValueError for a row that comes before the one above it, unless `spec.sort`.
    """
    servable = _servable(placed, lost)
    if spec.sort:
        yield from sorted_on_disk(arrival for _, arrival in servable)
        return
    before = Placed(0, Arrival(float("-inf"), UNKNOWN_SEGMENT, 1, 1))
    for each in servable:
        if each.arrival.at_s < before.arrival.at_s:
            raise ValueError(
                f"{path}:{each.line}: arrives {before.arrival.at_s - each.arrival.at_s:.6g} s before line "
                f"{before.line}; allowed is ascending time, or `sort: true`"
            )
        before = each
        yield each.arrival


def from_first(flow: Iterable[Arrival]) -> Iterator[Arrival]:
    """The same, with time counted from the first one."""
    start_s: float | None = None
    for arrival in flow:
        start_s = arrival.at_s if start_s is None else start_s
        yield replace(arrival, at_s=arrival.at_s - start_s)


def sorted_on_disk(flow: Iterable[Arrival], at_once: int = SORTED_AT_ONCE) -> Iterator[Arrival]:
    """By time, equal times as they came. Holds `at_once` requests in memory, the others on disk."""
    source = iter(flow)
    with tempfile.TemporaryDirectory(prefix="steersman-sort-") as folder:
        runs: list[Iterator[Arrival]] = []
        files: list[IO[bytes]] = []
        try:
            while chunk := sorted(islice(source, at_once), key=attrgetter("at_s")):
                if len(chunk) < at_once:
                    runs.append(iter(chunk))
                    break
                file: IO[bytes] = (Path(folder) / f"{len(files)}.jsonl").open("wb+")
                files.append(file)
                runs.append(_spilled(file, chunk))
            yield from heapq.merge(*runs, key=attrgetter("at_s"))
        finally:
            for file in files:
                file.close()


def _spilled(file: IO[bytes], chunk: Sequence[Arrival]) -> Iterator[Arrival]:
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(tuple[float, Arrival])
    for arrival in chunk:
        # Its time apart: as a field it must not be negative, but a row above the first one is.
        file.write(encoder.encode((arrival.at_s, replace(arrival, at_s=0.0))) + b"\n")

    def read() -> Iterator[Arrival]:
        file.seek(0)
        for line in file:
            at_s, arrival = decoder.decode(line)
            yield replace(arrival, at_s=at_s)

    return read()


def _servable(placed: Iterable[Placed], lost: Lost) -> Iterator[Placed]:
    for each in placed:
        if not each.arrival.output_tokens:
            lost["no output tokens"] += 1
        elif not each.arrival.prompt_tokens:
            lost["no prompt tokens"] += 1
        else:
            yield each
