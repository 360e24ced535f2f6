"""Rows of somebody's file, one at a time: CSV, JSON lines or Parquet, gzipped or not.

A file of any size is read in constant memory. Whatever is wrong becomes one line that names the file
and the line (of a Parquet file: the row).
"""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from steersman_policies.policy import did_you_mean

MAX_LINE_CHARACTERS = 16 << 20
"""No request is described by a longer line; a file without line ends is not read into memory."""

_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_BATCH_ROWS = 8192


class Row(NamedTuple):
    """What a line says, and which one it was."""

    number: int
    values: Mapping[str, Any]


def kind_of(path: Path) -> str:
    """`csv`, `jsonl` or `parquet`, by the first bytes. Raises FileNotFoundError, or ValueError if empty."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; allowed is a CSV, JSONL or Parquet file, or one as .gz")
    check_regular(path)
    with path.open("rb") as file:
        if file.read(4) == _PARQUET:
            return "parquet"
    first = next((line for _, line in lines(path) if line.strip()), "")
    if not first:
        raise ValueError(f"{path}: is empty; allowed are CSV, JSONL or Parquet, also as .gz")
    return "jsonl" if first.lstrip().startswith("{") else "csv"


def rows(path: Path, needed: Sequence[str], renamed: Mapping[str, str] | None = None) -> Iterator[Row]:
    """The rows of a file that has at least the `needed` columns; `renamed` maps them to the file's names.

    CSV values are text, the others what they are. Raises ValueError or FileNotFoundError in one line.
    """
    renamed = renamed or {}
    reader = {"csv": csv_rows, "jsonl": json_rows, "parquet": parquet_rows}[kind_of(path)]
    back = {theirs: ours for ours, theirs in renamed.items()}
    for row in reader(path, [renamed.get(name, name) for name in needed]):
        values = {back.get(name, name): value for name, value in row.values.items()} if back else row.values
        yield Row(row.number, values)


def csv_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """Rows of a CSV file (comma, semicolon or tab) whose first line names the columns; values are text."""
    source = lines(path)
    number, head = next(source, (1, ""))
    if not head.strip():
        raise ValueError(f"{path}:1: is empty; the first line names the columns, at least {_listed(needed)}")
    delimiter = max(",;\t", key=head.count)
    names = [name.strip() for name in next(csv.reader([head], delimiter=delimiter))]
    _check_columns(path, number, names, needed)
    reader = csv.reader((text for _, text in source), delimiter=delimiter, strict=True)
    while True:
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: unreadable CSV ({error})") from None
        if values is None:
            return
        at = reader.line_num + 1
        if not values:
            continue
        if len(values) != len(names):
            raise ValueError(f"{path}:{at}: {len(values)} values, the first line names {len(names)} columns")
        yield Row(at, dict(zip(names, values, strict=True)))


def json_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """Objects of a JSON lines file; blank lines are skipped. NaN and Infinity are no JSON."""
    found = False
    for number, line in lines(path):
        if not line.strip():
            continue
        found = True
        try:
            values = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: not JSON ({error}); allowed is one object a line") from None
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise ValueError(f"{path}:{number}: expected an object with {_listed(needed)}, found {kind}")
        _check_columns(path, number, list(values), needed)
        yield Row(number, values)
    if not found:
        raise ValueError(f"{path}:1: is empty; allowed is one object a line with {_listed(needed)}")


def parquet_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """Rows of a Parquet file, a batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, 1, list(file.schema_arrow.names), needed)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(number, values)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}:{number + 1}: unreadable Parquet ({reason})") from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file, also a gzipped one, with their line ends."""
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(MAX_LINE_CHARACTERS):
                number += 1
                if len(line) == MAX_LINE_CHARACTERS:
                    raise ValueError(f"{path}:{number}: longer than {MAX_LINE_CHARACTERS} characters")
                yield number, line
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number + 1}: not UTF-8 text ({error.reason})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:{number + 1}: truncated or damaged gzip ({error})") from None


def check_regular(path: Path) -> None:
    """Raise ValueError for a pipe or device: it is opened several times, and its reader may wait for ever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: is a pipe or a device; allowed is a file, so write it to one first")


def is_gzip(path: Path) -> bool:
    """Whether the file begins like one."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def _open(path: Path) -> IO[str]:
    if is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open("rt", encoding="utf-8-sig", newline="")


def _check_columns(path: Path, number: int, names: Sequence[str], needed: Sequence[str]) -> None:
    for name in needed:
        if names.count(name) > 1:
            raise ValueError(f"{path}:{number}: column {name!r} is there {names.count(name)} times")
        if name not in names:
            hint = did_you_mean(name, names)
            raise ValueError(f"{path}:{number}: no column {name!r}{hint}; it has {_listed(names)}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:12])
    return shown + (", ..." if len(names) > 12 else "")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")
