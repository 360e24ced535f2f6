"""The crash-safe form of a recording: events appended one after the other.

``magic`` then, for each event, ``length (u32) | crc32 (u32) | msgpack``, big-endian. Whatever kills
the process, every event before the last flush can be read, and a torn tail is recognised.
"""

import fcntl
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from steersman_controller.events import Event

MAGIC = b"steersman-journal-1\n"
MAX_EVENT_BYTES = 4 << 20

_head = struct.Struct(">II")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """The exact bytes of an event; `decode_event` reverses it."""
    return _encoder.encode(event)


def decode_event(payload: bytes, where: str) -> Event:
    """The event in a payload. Raises ValueError naming `where` when this version cannot read it."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: holds an event that this version cannot read ({error})") from None


class JournalWriter:
    """Appends events to a new file; `flush` hands them to the operating system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("xb")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends
        self._file.write(MAGIC)
        self._file.flush()

    def append(self, payload: bytes) -> None:
        """Add one encoded event."""
        self._file.write(_head.pack(len(payload), zlib.crc32(payload)) + payload)

    def flush(self) -> None:
        """From here on a kill of this process loses nothing."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close; safe to call twice."""
        self._file.close()


def is_journal(path: Path) -> bool:
    """Whether the file begins like a journal."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def whole_bytes(path: Path) -> int:
    """How many bytes from the start hold whole, uncorrupted events; the rest is lost."""
    good = len(MAGIC)
    for payload in payloads(path):
        good += _head.size + len(payload)
    return good


def payloads(path: Path) -> Iterator[bytes]:
    """Encoded events up to the first one that is torn or corrupt."""
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        while len(head := file.read(_head.size)) == _head.size:
            length, checksum = _head.unpack(head)
            if length > MAX_EVENT_BYTES:
                return
            payload = file.read(length)
            if len(payload) != length or zlib.crc32(payload) != checksum:
                return
            yield payload
