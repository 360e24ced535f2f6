"""Opens somebody's table (CSV, CSV.gz, JSONL or Parquet) in DuckDB, every column as text.

Column names are looked up with a did-you-mean, and nothing in a file is guessed at: a ragged line of a
CSV file is an error, never a row that is left out.
"""

import csv
import gzip
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from steersman_policies.policy import did_you_mean

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold before it spills to a temporary folder."""

_POLL_S = 0.1

Report = Callable[[float], None]
"""Told the fraction that is done, from 0 to 1."""


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database in memory that fetches nothing and leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="steersman-train-") as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": folder,
        }
        connection = duckdb.connect(":memory:", config=settings)
        try:
            # It is asked how far it is, but must never write to standard output itself.
            connection.execute("set enable_progress_bar = true; set enable_progress_bar_print = false")
            yield connection
        finally:
            connection.close()


class TableFile:
    """A file whose columns are known. Raises ValueError or OSError in one line for anything else."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        self.path = path
        kind = "jsonl" if path.is_dir() else _kind(path)
        try:
            if kind == "parquet":
                self.names = list(pq.read_schema(path).names)
                self.scan = f"read_parquet({_literal(path)})"
            elif kind == "jsonl":
                self.names = _json_names(members(path))
                self.scan = _json_scan(members(path), self.names)
            else:
                self.names, delimiter = _csv_header(path)
                self.scan = _csv_scan(path, self.names, delimiter)
        except (pa.ArrowException, duckdb.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: unreadable {kind} ({_first_line(error)})") from None
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"{path}: two columns are called {twice!r}")

    def column(self, name: str, option: str) -> str:
        """`name`, if the file has such a column; else ValueError with what it may have meant."""
        if name in self.names:
            return name
        hint = did_you_mean(name, self.names).removeprefix(", ") or f"it has {', '.join(self.names)}"
        raise ValueError(f"{self.path}: no column {name!r} ({option}); {hint}")

    def run(self, connection: duckdb.DuckDBPyConnection, sql: str, report: Report | None = None) -> None:
        """Run a statement that reads the file; `report` hears how far it is."""
        failed: list[BaseException] = []

        def work() -> None:
            try:
                connection.execute(sql)
            except BaseException as error:  # handed to the caller below
                failed.append(error)

        thread = Thread(target=work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                # Before and after a statement the database knows no progress.
                done = connection.query_progress() / 100.0
                if report is not None and done > 0.0:
                    report(done)
        except KeyboardInterrupt:
            connection.interrupt()
            thread.join()
            raise
        if failed and isinstance(failed[0], duckdb.Error):
            raise ValueError(f"{self.path}: {_first_line(failed[0])}") from None
        if failed:
            raise failed[0]


def members(path: Path) -> list[Path]:
    """The file itself, or the JSON files of a folder by name. Raises ValueError where a folder has none."""
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.suffix.lower() in (".json", ".jsonl"))
    if not found:
        raise ValueError(f"{path}: no .json in this folder; a file may be .csv, .jsonl (or .gz) or .parquet")
    return found


def identifier(name: str) -> str:
    """A column name in SQL.

    >>> print(identifier('a "b" c'))
    "a ""b"" c"
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string in SQL.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """``a=b,c=d`` (once or several times) as a mapping.

    >>> pairs(["a=b,c=d", "e=f"], "--columns")
    {'a': 'b', 'c': 'd', 'e': 'f'}
    """
    found: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, value = part.partition("=")
        if not (part and name and equals and value):
            raise ValueError(f"{option}: {part!r} is not of the form name=value")
        if name in found:
            raise ValueError(f"{option}: {name!r} is given twice")
        found[name] = value
    return found


def known(names: Mapping[str, Any] | Sequence[str], name: str, option: str) -> str:
    """`name`, if it is one of `names`; else ValueError with what it may have meant."""
    if name in names:
        return name
    hint = did_you_mean(name, names).removeprefix(", ")
    guess = f"; {hint}" if hint else ""
    raise ValueError(f"{option}: no {name!r}{guess} allowed are {', '.join(names)}")


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    suffix = suffixes[-1] if suffixes else ""
    if suffix in (".jsonl", ".ndjson", ".json"):
        return "jsonl"
    if suffix in (".csv", ".tsv", ".txt"):
        return "csv"
    raise ValueError(f"{path}: unknown format; allowed are .csv, .csv.gz, .jsonl, .jsonl.gz and .parquet")


def _csv_header(path: Path) -> tuple[list[str], str]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        line = file.readline(1 << 20)
    if not line.strip():
        raise ValueError(f"{path}: is empty; the first line names the columns")
    delimiter = max(",;\t", key=line.count)
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter))], delimiter


def _csv_scan(path: Path, names: list[str], delimiter: str) -> str:
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
    return (
        f"read_csv({_literal(path)}, columns={{{columns}}}, auto_detect=false, header=true, "
        f"delim={literal(delimiter)}, quote='\"', escape='\"', strict_mode=true)"
    )


def _json_names(paths: Sequence[Path]) -> list[str]:
    with database() as connection:
        described = connection.execute(
            f"select * from read_ndjson({_literals(paths)}, sample_size=-1, union_by_name=true, "
            "map_inference_threshold=-1) limit 0"
        ).description
    return [str(column[0]) for column in described or ()]


def _json_scan(paths: Sequence[Path], names: list[str]) -> str:
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
    return f"read_ndjson({_literals(paths)}, columns={{{columns}}})"


def _literals(paths: Sequence[Path]) -> str:
    return f"[{', '.join(map(_literal, paths))}]"


def _literal(path: Path) -> str:
    return literal(str(path))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:240]
