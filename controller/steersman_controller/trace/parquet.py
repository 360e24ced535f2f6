"""The form of a recording for people: one row per event, columns for pandas and DuckDB.

The column `payload` holds the exact event, so nothing is lost; all others are copies for queries.
A column that does not apply to the kind of a row is null.
"""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from steersman_controller.events import Event, Received, Ticked
from steersman_controller.trace.journal import decode_event, is_journal, payloads, whole_bytes
from steersman_policies.messages import StepReport

ROWS_PER_GROUP = 16_384

SCHEMA = pa.schema(
    [("kind", pa.string()), ("at_s", pa.float64()), ("engine_id", pa.string()), ("policy", pa.string())]
    + [(name, pa.int64()) for name in ("epoch", "sequence", "dropped", "plan_id", "step")]
    + [(name, pa.float64()) for name in ("started_s", "draft_s", "verify_s", "other_s")]
    + [(name, pa.int64()) for name in ("decode_requests", "prefill_tokens", "target_tokens")]
    + [(name, pa.int64()) for name in ("context_tokens", "drafting_depth", "waiting", "committed_tokens")]
    + [("kv_used_fraction", pa.float64()), ("reason", pa.string()), ("explored", pa.bool_())]
    + [(name, pa.map_(pa.string(), pa.int64())) for name in ("commanded", "would_be")]
    + [(name, pa.int64()) for name in ("drafted", "accepted", "request")]
    + [("segment", pa.string()), ("arrived_s", pa.float64())]
    + [(name, pa.int64()) for name in ("prompt_tokens", "output_tokens", "steps")]
    + [(name, pa.float64()) for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s")]
    + [("finish_reason", pa.string()), ("applied", pa.bool_()), ("mode", pa.string())]
    + [("payload", pa.binary())]
)

_COPIED = [name for name in SCHEMA.names if name not in {"kind", "payload"}]
_MAPS = {"commanded", "would_be"}


def convert(journal: Path, parquet: Path | None = None) -> Path:
    """Write the whole events of a journal as Parquet (zstd), by default as `trace.parquet` beside it.

    The file appears whole or not at all. Raises ValueError where `journal` is none.
    """
    if not is_journal(journal):
        raise ValueError(f"{journal}: no steersman journal")
    target = parquet if parquet is not None else journal.with_name("trace.parquet")
    partial = target.with_name(target.name + ".partial")
    where = {"source": journal.name, "lost_bytes": str(journal.stat().st_size - whole_bytes(journal))}
    with pq.ParquetWriter(
        partial,
        SCHEMA.with_metadata(where),
        compression="zstd",
        use_dictionary=_COPIED,
        write_page_checksum=True,
    ) as writer:
        rows = _rows(payloads(journal), str(journal))
        while batch := list(islice(rows, ROWS_PER_GROUP)):
            columns = {name: [row.get(name) for row in batch] for name in SCHEMA.names}
            writer.write_table(pa.table(columns, schema=SCHEMA.with_metadata(where)))
    os.replace(partial, target)
    return target


def parquet_payloads(path: Path) -> Iterator[bytes]:
    """Encoded events of a Parquet recording. Raises ValueError with one line for a bad file."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if "payload" not in file.schema_arrow.names:
                raise ValueError(f"{path}: no steersman recording (it has no column 'payload')")
            if not pa.types.is_binary(file.schema_arrow.field("payload").type):
                raise ValueError(f"{path}: no steersman recording (its column 'payload' holds no bytes)")
            for batch in file.iter_batches(columns=["payload"]):
                if batch.column(0).null_count:
                    raise ValueError(f"{path}: no steersman recording (its column 'payload' has nulls)")
                yield from batch.column(0).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        beside = path.with_name("journal.bin")
        advice = f"{beside} beside it can be read" if beside.exists() else "no journal.bin is beside it"
        reason = str(error).splitlines()[0][:120]
        raise ValueError(f"{path}: truncated or corrupt Parquet ({reason}); {advice}") from None


def lost_bytes(path: Path) -> int:
    """Bytes of the journal that were already unreadable when this file was made of it."""
    found = pq.read_schema(path).metadata or {}
    return int(found.get(b"lost_bytes", b"0"))


def kind_of(event: Event) -> str:
    """The word in the column `kind`: what was received, or what the sidecar did.

    >>> from steersman_controller.events import ModeSet
    >>> kind_of(ModeSet(at_s=1.0, engine_id="a", mode="steer"))
    'mode_set'
    """
    described = event.record if isinstance(event, Received) else event
    return str(described.__struct_config__.tag)


def _rows(encoded: Iterable[bytes], where: str) -> Iterator[dict[str, Any]]:
    for payload in encoded:
        event = decode_event(payload, where)
        yield {"kind": kind_of(event), "payload": payload, **_copies(event)}


def _copies(event: Event) -> dict[str, Any]:
    """The columns of an event, and of the record or plan inside it."""
    out = _fields(event)
    if isinstance(event, Received):
        out.update(_fields(event.record))
        if isinstance(event.record, StepReport):
            counts = [outcome for group in event.record.groups for outcome in group.outcomes]
            out["drafted"] = sum(drafted * count for drafted, _, count in counts)
            out["accepted"] = sum(accepted * count for _, accepted, count in counts)
    elif isinstance(event, Ticked) and event.plan is not None:
        out.update(_fields(event.plan))
    return out


def _fields(record: Any) -> dict[str, Any]:
    out = {name: getattr(record, name) for name in _copied(record.__struct_fields__)}
    for name in _MAPS & out.keys():
        out[name] = list(out[name].items())
    return out


@cache
def _copied(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in fields if name in _COPIED)
