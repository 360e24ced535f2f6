"""Prompts to run: one JSON object a line, ours or anybody's.

``{"messages": [{"role": "user", "content": "..."}], "segment": "chat", "max_tokens": 64}``

Exactly one of `messages` (chat) and `prompt` (plain completion). `segment` may be missing or null:
the request then has no tag. `arrival_s` counts from the start of an arm; it is given on every line
or on none, and where it is missing the demo spreads the lines, in file order, over its phases.
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from steersman_policies.policy import did_you_mean
from steersman_policies.units import MAX_SEGMENTS, Segment

DEFAULT_MAX_TOKENS = 64
MAX_REQUESTS = 10_000

Text = Annotated[str, Meta(min_length=1)]
ArrivalSeconds = Annotated[float, Meta(ge=0.0, le=1e6)]


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: Annotated[str, Meta(pattern=r"^(system|user|assistant)$")]
    content: Text


class WorkItem(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a workload."""

    prompt: Text | None = None
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)] | None = None
    segment: Segment | None = None
    arrival_s: ArrivalSeconds | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = DEFAULT_MAX_TOKENS


_decoder = msgspec.json.Decoder(WorkItem)
_FIELDS = [field.name for field in msgspec.structs.fields(WorkItem)]


def bundled_workload() -> tuple[WorkItem, ...]:
    """The demo's own prompts: code edits, extractions, summaries and chat."""
    text = files("steersman_simulator.demo").joinpath("workload.jsonl").read_text(encoding="utf-8")
    return parse_workload(text, "workload.jsonl")


def read_workload(path: Path) -> tuple[WorkItem, ...]:
    """The lines of a file. Raises OSError, or ValueError naming file, line, key and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    return parse_workload(text, str(path))


def parse_workload(text: str, where: str) -> tuple[WorkItem, ...]:
    """The items in `text`; blank lines are skipped. Raises ValueError, see `read_workload`.

    >>> parse_workload('{"prompt": "Once", "max_tokens": 4}', "w.jsonl")[0].max_tokens
    4
    >>> parse_workload('{"promt": "Once"}', "w.jsonl")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: w.jsonl:1: unknown key 'promt', did you mean 'prompt'?; allowed: prompt, messages, ...
    """
    items = [
        _item(line, f"{where}:{number}")
        # Not splitlines(): U+2028 and its like may stand inside a JSON string.
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not 1 <= len(items) <= MAX_REQUESTS:
        raise ValueError(f"{where}: {len(items)} requests, allowed are 1 to {MAX_REQUESTS}")
    with_arrival = sum(item.arrival_s is not None for item in items)
    if with_arrival not in (0, len(items)):
        raise ValueError(
            f"{where}: arrival_s is on {with_arrival} of {len(items)} lines; give it on all or on none"
        )
    segments = {item.segment for item in items if item.segment is not None}
    if len(segments) >= MAX_SEGMENTS:
        raise ValueError(f"{where}: {len(segments)} segments, at most {MAX_SEGMENTS - 1}")
    return tuple(items)


def _item(line: str, where: str) -> WorkItem:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where}: expected an object, found {type(found).__name__}")
    for key in found:
        if key not in _FIELDS:
            hint = did_you_mean(key, _FIELDS)
            raise ValueError(f"{where}: unknown key {key!r}{hint}; allowed: {', '.join(_FIELDS)}")
    try:
        item = _decoder.decode(line)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise ValueError(f"{where}: {place.rstrip('`') or 'line'}: {text}") from None
    if (item.prompt is None) == (item.messages is None):
        raise ValueError(f"{where}: needs exactly one of prompt and messages")
    return item
