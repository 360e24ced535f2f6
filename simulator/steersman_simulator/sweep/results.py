"""What a sweep has found: one row per cell, kept as soon as it is there.

A finished cell is a small file of its own in the folder of parts, written whole or not at all and
with its hash, so that a killed sweep loses the cells in flight and nothing else. At the end all parts
and what was there before become one Parquet file, and the parts go.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from steersman_controller.whole_file import write_whole

Row: TypeAlias = dict[str, Any]
"""Flat: texts, numbers, booleans and lists of numbers by column; what is None is left out."""

CELL, STATUS, ERROR, OK, FAILED = "cell", "status", "error", "ok", "failed"
TABLE, PARTS, LOCK = "results.parquet", "parts", "lock"
_PART = ".json"


class _Part(Struct, frozen=True):
    sha256: str
    row: msgspec.Raw


class Kept(Struct, frozen=True):
    """What an earlier run left."""

    rows: dict[str, Row]
    """By cell, those of the Parquet file first."""
    torn: tuple[str, ...]
    """Parts that hold no whole row; their cells run again."""


class Results(Struct, frozen=True):
    """Where the rows of a sweep lie."""

    table: Path
    parts: Path

    @classmethod
    def at(cls, out: Path) -> "Results":
        """In a folder, or in a Parquet file with its parts beside it until they are merged."""
        if out.suffix == ".parquet":
            return cls(out, out.with_name(out.name + "." + PARTS))
        return cls(out / TABLE, out / PARTS)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else sweeps into here meanwhile. Raises OSError or ValueError where that cannot be."""
        import fcntl

        self.parts.mkdir(parents=True, exist_ok=True)
        with (self.parts / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"{self.table}: another sweep is writing there") from None
            yield

    def kept(self) -> Kept:
        """All rows that are there already. Raises ValueError for a Parquet file that is no sweep."""
        rows = {row[CELL]: row for row in read_rows(self.table)} if self.table.exists() else {}
        torn = []
        for path in sorted(self.parts.glob("*" + _PART)):
            row = _whole_row(path)
            if row is None:
                torn.append(path.name)
            else:
                rows[row[CELL]] = row
        return Kept(rows, tuple(torn))

    def keep(self, row: Row) -> None:
        """Put a row where no crash can take it."""
        encoded = msgspec.json.encode(row)
        part = _Part(hashlib.sha256(encoded).hexdigest(), msgspec.Raw(encoded))
        write_whole(self.parts / (row[CELL] + _PART), msgspec.json.encode(part))

    def merge(self, order: Sequence[str]) -> None:
        """All rows in one Parquet file: those of `order` first, then those of other sweeps as they were."""
        rows = self.kept().rows
        first = [rows[cell] for cell in order if cell in rows]
        wanted = frozenset(order)
        partial = self.table.with_name(self.table.name + ".partial")
        table = table_of([*first, *(row for cell, row in rows.items() if cell not in wanted)])
        pq.write_table(table, partial, compression="zstd", write_page_checksum=True)
        os.replace(partial, self.table)
        for path in self.parts.glob("*" + _PART):
            path.unlink()
        (self.parts / LOCK).unlink(missing_ok=True)
        self.parts.rmdir()


def read_rows(path: Path) -> list[Row]:
    """The rows of a Parquet file that a sweep wrote. Raises ValueError in one line for any other file."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ValueError(f"{path}: truncated or corrupt Parquet ({reason}); move it away") from None
    if not {CELL, STATUS} <= set(table.column_names):
        raise ValueError(f"{path}: not the results of a sweep (no columns {CELL!r} and {STATUS!r})")
    return [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table: every column that any row has, null where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    return pa.table(columns)


def _column(values: list[Any]) -> pa.Array:
    present = [value for value in values if value is not None]
    if _are(present, bool):
        return pa.array(values, pa.bool_())
    if not any(isinstance(value, bool) for value in present):
        if _are(present, int):
            return pa.array(values, pa.int64())
        if _are(present, int | float):
            return pa.array(values, pa.float64())
        if all(isinstance(value, list) and _are(_known(value), int | float) for value in present):
            return pa.array(values, pa.list_(pa.float64()))
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _are(values: Iterable[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _text(value: Any) -> str:
    """A text stays one, so that a column read and written again is the same."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _whole_row(path: Path) -> Row | None:
    try:
        part = msgspec.json.decode(path.read_bytes(), type=_Part)
        if hashlib.sha256(bytes(part.row)).hexdigest() != part.sha256:
            return None
        row: Mapping[str, Any] = msgspec.json.decode(part.row)
        return dict(row)
    except (msgspec.DecodeError, OSError):
        return None
