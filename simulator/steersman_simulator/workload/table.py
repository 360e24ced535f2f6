"""Our own format of a workload: CSV, JSON lines or Parquet with one request a row.

`arrival_s` (from the start), `prompt_tokens`, `output_tokens`, and where known `segment`, `stops`,
`hash_ids` with `hash_block_tokens`, `request_id`. The per-request file of a simulated run is one, so runs
can be chained.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from steersman_policies.policy import did_you_mean
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.trace_file import Lost, RowFile, in_order, placed_rows
from steersman_simulator.workload.values import Cells, segment_name

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("segment", "stops", "hash_ids", "hash_block_tokens", "request_id")


class Table(RowFile, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="table"):
    """One such file, or one with other names for these columns."""

    columns: dict[str, str] = {}
    """Ours to theirs."""


class Line(Struct, omit_defaults=True):
    """One line as we write it."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    segment: str = "unknown"
    stops: bool = False
    hash_ids: tuple[int, ...] = ()
    hash_block_tokens: int = 0
    request_id: str = ""


def line_of(arrival: Arrival) -> Line:
    """A request as a line of this format; `read_table` reverses it."""
    return Line(
        arrival.at_s,
        arrival.prompt_tokens,
        arrival.output_tokens,
        arrival.segment,
        arrival.stops,
        arrival.hash_ids,
        arrival.hash_block_tokens,
        arrival.request_id,
    )


def read_table(spec: Table, path: Path, lost: Lost) -> Iterator[Arrival]:
    """Its requests at the times that the file says."""
    known = (*COLUMNS, *OPTIONAL)
    for name in spec.columns:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"workload.columns: no {name!r}{hint}; allowed: {', '.join(known)}")
    needed = (*COLUMNS, *(name for name in spec.columns if name not in COLUMNS))
    return in_order(spec, path, placed_rows(spec, path, needed, _arrival, spec.columns), lost)


def _arrival(cells: Cells, values: Mapping[str, Any]) -> Arrival:
    ids = cells.ids("hash_ids", values.get("hash_ids"))
    block = cells.tokens("hash_block_tokens", values.get("hash_block_tokens") or 0)
    if ids and not block:
        raise cells.error("hash_block_tokens", block, "the tokens of a block, where there are hash_ids")
    return Arrival(
        at_s=cells.seconds("arrival_s", values["arrival_s"]),
        segment=segment_name(values.get("segment")),
        prompt_tokens=cells.tokens("prompt_tokens", values["prompt_tokens"]),
        output_tokens=cells.tokens("output_tokens", values["output_tokens"]),
        stops=cells.flag("stops", values.get("stops")),
        hash_ids=ids,
        hash_block_tokens=block if ids else 0,
        request_id=str(values.get("request_id") or ""),
    )
