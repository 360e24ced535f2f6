"""Prompts and outputs as others log them: JSONL (or .gz) of token ids, or of text and a tokenizer."""

import difflib
import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from steersman_policies.units import UNKNOWN_SEGMENT, Count, Name, Segment

Encode = Callable[[str, bool], list[int]]
"""Token ids of a text; True for a prompt, which may begin with special tokens."""

MAX_LINE_BYTES = 64 << 20


class Pair(Struct, frozen=True):
    """A request that was served."""

    request_id: str | int
    prompt_token_ids: list[Count]
    output_token_ids: list[Count]
    segment: Segment = UNKNOWN_SEGMENT
    finish_reason: Name = ""
    """stop: by a token; then nobody knew the length in advance."""
    max_output_tokens: Count = 0
    temperature: float = 0.0


class Pairs:
    """A file of pairs, read once. Raises FileNotFoundError, or ValueError naming file, line and key."""

    def __init__(self, path: Path, columns: Mapping[str, str], encode: Encode | None = None) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file of prompts and outputs")
        self.path, self.encode = path, encode
        self._ours = {theirs: ours for ours, theirs in columns.items()}
        self._known = (*Pair.__struct_fields__, *(("prompt", "output") if encode is not None else ()))
        for ours in columns:
            if ours not in self._known:
                raise ValueError(f"--columns: no {ours!r}{_hint(ours, self._known)}")
        self.ignored: Counter[str] = Counter()
        """Fields that mean nothing here, by how many lines have them."""
        self.read_bytes = 0

    def __iter__(self) -> Iterator[Pair]:
        opened: Any = gzip.open if self.path.suffix.lower() == ".gz" else open
        with self.path.open("rb") as raw, opened(raw, "rb") if opened is gzip.open else raw as file:
            number = 0
            try:
                while line := file.readline(MAX_LINE_BYTES):
                    number += 1
                    self.read_bytes = raw.tell()
                    if line.strip():
                        yield self._pair(line, number)
            except (EOFError, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{self.path}: after line {number}: truncated or corrupt ({error})"
                ) from None

    def _pair(self, line: bytes, number: int) -> Pair:
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            return msgspec.convert(self._named(fields, number), Pair)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}: line {number}: {error}") from None

    def _named(self, fields: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Fields under our names; without an id a line's number is one."""
        found: dict[str, Any] = {"request_id": number}
        for theirs, value in fields.items():
            name = self._ours.get(theirs, theirs)
            if name in self._known:
                found[name] = value
                continue
            near = difflib.get_close_matches(theirs, self._known, 1, 0.8)
            if near and near[0] not in fields and near[0] not in self._ours.values():
                raise ValueError(f"unknown field {theirs!r}, did you mean {near[0]!r}?")
            self.ignored[theirs] += 1
        for text, ids, is_prompt in (
            ("prompt", "prompt_token_ids", True),
            ("output", "output_token_ids", False),
        ):
            if ids not in found and isinstance(found.get(text), str) and self.encode is not None:
                found[ids] = self.encode(found[text], is_prompt)
            elif ids not in found:
                how = "" if self.encode is not None else f", or text in {text!r} and --tokenizer"
                raise ValueError(f"no {ids!r}{how}; it has {', '.join(map(repr, fields)) or 'nothing'}")
            found.pop(text, None)
        return found


def columns_of(given: list[str]) -> dict[str, str]:
    """``ours=theirs,...`` as a mapping.

    >>> columns_of(["output_token_ids=generated,request_id=id"])
    {'output_token_ids': 'generated', 'request_id': 'id'}
    """
    found: dict[str, str] = {}
    for part in (part.strip() for text in given for part in text.split(",")):
        ours, _, theirs = part.partition("=")
        if not ours or not theirs or ours in found:
            raise ValueError(f"--columns: {part!r} is not ours=theirs, each of ours once")
        found[ours] = theirs
    return found


def _hint(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else f"; allowed are {', '.join(known)}"
