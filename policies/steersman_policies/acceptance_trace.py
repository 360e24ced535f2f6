"""An exact acceptance trace: for every output position, how far a draft made there would have been accepted.

Whoever has a drafter writes it, whoever asks what another K had brought reads it: with such a trace any K
replays exactly. One request a line of JSONL (plain or .gz), or a row of Parquet. It holds no tokens.
"""

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from steersman_policies.policy import did_you_mean
from steersman_policies.units import K_LIMIT, UNKNOWN_SEGMENT, Count, Fraction, Name, Segment

VERSION = 1

_PARQUET_MAGIC = b"PAR1"

Lengths = Annotated[tuple[Annotated[int, Meta(ge=0, le=K_LIMIT)], ...], Meta(max_length=1 << 22)]
"""Draft tokens, by the number of output tokens that were there when the draft was made."""


class AcceptanceRecord(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One request. `read_trace` and `checked` see to it that its numbers agree with each other."""

    request_id: str | int
    prompt_tokens: Count
    output_tokens: Count
    accepted_by_position: Lengths
    """How many draft tokens a step that starts there has accepted, whatever its K: min(K, this)."""
    offered_by_position: Lengths = ()
    """How long the drafter's longest draft is there, 0 without a match; empty: not told."""
    segment: Segment = UNKNOWN_SEGMENT
    method: Name = ""
    """ngram, draft_model, eagle3, ..."""
    drafter: Name = ""
    drafter_version: Name = ""
    target: Name = ""
    """The model that wrote the output."""
    stops: bool = False
    """Ended by a stop token, so that nobody knew its length in advance."""
    max_output_tokens: Count = 0
    """This and what follows are statistics of the prompt, as in `PromptStatistics`."""
    distinct_fraction: Fraction = 0.0
    repeated_fraction: Fraction = 0.0
    temperature: float = 0.0
    structured: Annotated[int, Meta(ge=0, le=1)] = 0
    version: Annotated[int, Meta(ge=1, le=VERSION)] = VERSION
    """Of this format."""

    @property
    def offered(self) -> Sequence[int]:
        """As told; where it is not, a full draft everywhere."""
        return self.offered_by_position or (K_LIMIT,) * self.output_tokens


def checked(record: AcceptanceRecord) -> AcceptanceRecord:
    """The record. Raises ValueError where it contradicts itself.

    >>> checked(AcceptanceRecord("a", 9, 2, (1, 0), (0, 0)))
    Traceback (most recent call last):
    ValueError: 1 draft tokens accepted at output position 0, where 0 were offered
    """
    for name in ("accepted_by_position", "offered_by_position"):
        told = len(getattr(record, name))
        if told != record.output_tokens and (told or name == "accepted_by_position"):
            raise ValueError(f"{name} has {told} numbers for {record.output_tokens} output tokens")
    if record.offered_by_position:
        pairs = zip(record.accepted_by_position, record.offered_by_position, strict=True)
        wrong = next(((at, *pair) for at, pair in enumerate(pairs) if pair[0] > pair[1]), None)
        if wrong is not None:
            at, accepted, offered = wrong
            raise ValueError(
                f"{accepted} draft tokens accepted at output position {at}, where {offered} were offered"
            )
    return record


def is_acceptance_trace(path: Path) -> bool:
    """Whether a file looks like one: by its first line, or the columns of a Parquet file."""
    if not path.is_file():
        return False
    try:
        if _is_parquet(path):
            from steersman_policies.acceptance_parquet import columns

            return "accepted_by_position" in columns(path)
        with _opened(path) as file:
            return b'"accepted_by_position"' in next((line for line in file if line.strip()), b"")
    except (OSError, ValueError, EOFError):
        return False


def read_trace(path: Path) -> Iterator[AcceptanceRecord]:
    """The requests of a trace, one at a time, in order.

    Raises FileNotFoundError, or ValueError in one line that names file, line and key.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such acceptance trace")
    if _is_parquet(path):
        from steersman_policies.acceptance_parquet import rows

        yield from _checked_rows(path, "row", rows(path))
        return
    yield from _checked_rows(path, "line", _lines(path))


def write_trace(path: Path, records: Iterable[AcceptanceRecord]) -> int:
    """Write a trace; returns the number of requests. The name says how: .jsonl, .jsonl.gz or .parquet.

    The file appears whole or not at all. Raises ValueError for another name or a bad record.
    """
    name = path.name.lower()
    kind = next((kind for kind in (".jsonl", ".jsonl.gz", ".parquet") if name.endswith(kind)), "")
    if not kind:
        raise ValueError(f"{path}: unknown format; allowed are .jsonl, .jsonl.gz and .parquet")
    partial = path.with_name(path.name + ".partial")
    try:
        if kind == ".parquet":
            from steersman_policies.acceptance_parquet import write_rows

            count = write_rows(partial, map(checked, records))
        else:
            count = _write_lines(partial, map(checked, records), compress=kind.endswith(".gz"))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_lines(path: Path, records: Iterable[AcceptanceRecord], *, compress: bool) -> int:
    encoder, count = msgspec.json.Encoder(), 0
    with path.open("wb") as plain:
        # Neither the name nor the moment goes in: equal records, equal bytes.
        file: Any = gzip.GzipFile("", "wb", 6, plain, mtime=0) if compress else plain
        for record in records:
            file.write(encoder.encode(record) + b"\n")
            count += 1
        if compress:
            file.close()
    return count


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _checked_rows(
    path: Path, word: str, found: Iterable[tuple[int, bytes | dict[str, Any]]]
) -> Iterator[AcceptanceRecord]:
    decode = msgspec.json.Decoder(AcceptanceRecord).decode
    number, rows = 0, iter(found)
    while True:
        try:
            number, row = next(rows, (number, None))
        except (EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: after {word} {number}: truncated or corrupt ({error})") from None
        if row is None:
            return
        try:
            record = decode(row) if isinstance(row, bytes) else msgspec.convert(row, AcceptanceRecord)
            yield checked(record)
        except (ValueError, RecursionError) as error:  # of which msgspec's errors are
            raise ValueError(f"{path}: {word} {number}: {error}{_hint(str(error))}") from None


def _hint(error: str) -> str:
    _, _, word = error.partition("unknown field `")
    return did_you_mean(word.partition("`")[0], AcceptanceRecord.__struct_fields__) if word else ""


def _opened(path: Path) -> IO[bytes]:
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    file: IO[bytes] = opened(path, "rb")
    return file


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
