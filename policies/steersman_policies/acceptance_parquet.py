"""The Parquet form of an acceptance trace: the fields of a record as columns. Needs pyarrow."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from steersman_policies.acceptance_trace import AcceptanceRecord

ROWS_PER_GROUP = 4_096

_KINDS: dict[str, Any] = {
    "request_id": pa.string(),
    "accepted_by_position": pa.list_(pa.uint8()),
    "offered_by_position": pa.list_(pa.uint8()),
    **dict.fromkeys(("segment", "method", "drafter", "drafter_version", "target"), pa.string()),
    **dict.fromkeys(("distinct_fraction", "repeated_fraction", "temperature"), pa.float64()),
    "stops": pa.bool_(),
}
SCHEMA = pa.schema([(name, _KINDS.get(name, pa.int64())) for name in AcceptanceRecord.__struct_fields__])


def columns(path: Path) -> list[str]:
    """Names of the columns of a Parquet file. Raises ValueError in one line where it is damaged."""
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: unreadable Parquet ({str(error).splitlines()[0][:120]})") from None


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(Row from 1, its fields), those that are null left out. Raises ValueError for a damaged file."""
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1_024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: value for name, value in row.items() if value is not None}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: unreadable Parquet ({str(error).splitlines()[0][:120]})") from None


def write_rows(path: Path, records: Iterable[AcceptanceRecord]) -> int:
    """Write the records; returns how many. A request's id becomes text."""
    count, found = 0, iter(records)
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        while batch := list(islice(found, ROWS_PER_GROUP)):
            told = [msgspec.structs.asdict(record) for record in batch]
            columns = {name: [row[name] for row in told] for name in SCHEMA.names}
            columns["request_id"] = [str(each) for each in columns["request_id"]]
            writer.write_table(pa.table(columns, schema=SCHEMA))
            count += len(batch)
    return count
