"""Frames on the wire: ``topic | 8-byte big-endian sequence | msgpack``.

The framing is that of vLLM's KV events; the envelope adds what it lacks: the schema version first,
the sender's boot id (epoch), and how many frames the sender had to drop. Everything is decoded
typed: what does not fit its contract is a `WireError` with a closed set of reasons, never another
exception, so that a receiver can count and go on.
"""

import hashlib
import re
import struct
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from steersman_policies.messages import Fingerprint, Hello, Lease, PlanAck, RequestReport, StepReport
from steersman_policies.plan import Plan
from steersman_policies.units import SEGMENT_PATTERN, Count, Name

SCHEMA = 1
"""Version of the records. A peer one version older or newer is understood."""

MAX_FRAME_BYTES = 1 << 20

MAX_KNOWN_SEGMENTS = 4096

MAX_SEQUENCE = 2**53
"""The bound of `Count`, as which a recording keeps it."""

FromEngine: TypeAlias = Hello | StepReport | RequestReport | PlanAck
FromSidecar: TypeAlias = Plan | Lease
Record: TypeAlias = FromEngine | FromSidecar

WireReason: TypeAlias = Literal["frame_count", "frame_size", "sequence", "schema", "not_msgpack", "contract"]


class WireError(ValueError):
    """A frame that is refused. `reason` is one of a closed set; the text says what was wrong."""

    def __init__(self, reason: WireReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Envelope(Struct, frozen=True, array_like=True, gc=False):
    """Who sent a record, in which boot, and how much it could not send before."""

    schema: Count
    epoch: Count
    """Boot id of the sender: a sequence number means nothing across two boots."""
    sender: Name
    dropped: Count
    body: Record


class _SchemaOnly(Struct, frozen=True, array_like=True):
    schema: Count


class Frame(Struct, frozen=True, gc=False):
    """A decoded message."""

    topic: bytes
    sequence: int
    envelope: Envelope


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_schema_decoder = msgspec.msgpack.Decoder(_SchemaOnly)
_sequence = struct.Struct(">Q")
_segment = re.compile(SEGMENT_PATTERN)
_segments: set[str] = set()
"""Names that were found to match: a memo, which changes no answer."""


def encode(topic: bytes, sequence: int, envelope: Envelope) -> list[bytes]:
    """The three frames of a message."""
    return [topic, _sequence.pack(sequence), _encoder.encode(envelope)]


def decode(frames: Sequence[bytes]) -> Frame:
    """The message in three frames. Raises `WireError` for anything else."""
    if len(frames) != 3:
        raise WireError("frame_count", f"{len(frames)} frames, expected 3")
    topic, sequence, payload = frames
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError("frame_size", f"{len(payload)} bytes, at most {MAX_FRAME_BYTES}")
    if len(sequence) != _sequence.size:
        raise WireError("sequence", f"{len(sequence)} bytes, expected {_sequence.size}")
    number: int = _sequence.unpack(sequence)[0]
    if number > MAX_SEQUENCE:  # a recording could not be read again
        raise WireError("sequence", f"{number}, at most {MAX_SEQUENCE}")
    return Frame(topic, number, decode_payload(payload))


def decode_payload(payload: bytes) -> Envelope:
    """The envelope in a msgpack payload. Raises `WireError`."""
    try:
        envelope = _decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise _contract_error(payload, error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("not_msgpack", str(error)) from None
    if abs(envelope.schema - SCHEMA) > 1:
        raise _schema_error(envelope.schema)
    if isinstance(envelope.body, StepReport):
        _check_segments(envelope.body)
    return envelope


def _check_segments(report: StepReport) -> None:
    """Raise `WireError` where a segment is no name. Matching each of them anew would take most of the time
    that decoding takes."""
    names = {group.segment for group in report.groups}
    names.update(report.commanded, report.would_be)
    if names <= _segments:
        return
    for name in names - _segments:
        if not _segment.fullmatch(name):
            raise WireError("contract", f"segment {name!r}, must match {SEGMENT_PATTERN}")
        if len(_segments) < MAX_KNOWN_SEGMENTS:
            _segments.add(name)


def fingerprint_digest(fingerprint: Fingerprint) -> str:
    """A short name for a fingerprint, equal on every machine.

    >>> one = Fingerprint("e", "1", "t", "d", "1", "ngram", "none", "float32", "cpu", "eager")
    >>> len(fingerprint_digest(one)), fingerprint_digest(one) == fingerprint_digest(one)
    (16, True)
    """
    return hashlib.blake2b(_encoder.encode(fingerprint), digest_size=8).hexdigest()


def _contract_error(payload: bytes, error: msgspec.ValidationError) -> WireError:
    # A record from a far schema version fails its contract first; naming the version helps more.
    try:
        schema = _schema_decoder.decode(payload).schema
    except (msgspec.DecodeError, RecursionError):
        return WireError("contract", str(error))
    return _schema_error(schema) if abs(schema - SCHEMA) > 1 else WireError("contract", str(error))


def _schema_error(schema: int) -> WireError:
    return WireError("schema", f"version {schema}, understood are {SCHEMA - 1} to {SCHEMA + 1}")
