"""Real sidecars at one endpoint, one after the other, each with a recording of its own."""

import os
import signal
import struct
import subprocess
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from steersman_engine.bench.hook import last_line
from steersman_engine.bench.vllm.policy import NAME

MAGIC = b"steersman-journal-1\n"
JOURNAL = "journal.bin"
ATTACH_S = 60.0

_head = struct.Struct(">II")


class Sidecars:
    """Starts, stops and kills. `command` starts one that steers; its words are in `log`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: Path) -> None:
        self.log = folder / "sidecar.log"
        self._command = command
        self._environment = environment
        self._folder = folder
        self._started = 0
        self._process: subprocess.Popen[bytes] | None = None

    def steer(self, k: int, other_k: int, fallback_k: int) -> None:
        """Start one that asks for these K, see `policy`."""
        params = {"k": k, "other_k": other_k, "fallback_k": fallback_k}
        given = [word for name, value in params.items() for word in ("--param", f"{name}={value}")]
        self._start([*self._command, "--policy", NAME, *given])

    def shadow(self) -> None:
        """Start one with its own policy that only looks on."""
        self._start([word for word in self._command if word != "--steer"])

    def kill(self) -> None:
        """SIGKILL, also one that was stopped."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def check(self, deadline_s: float) -> None:
        """Raise RuntimeError where it has ended by itself, or monotonic `deadline_s` has passed."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"sidecar: ended with code {self._process.returncode}: {last_line(self.log)}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"sidecar: gave no lease within {ATTACH_S:.0f} s: {last_line(self.log)}")

    def frames(self) -> Iterator["Frame"]:
        """What all of them have received, in order."""
        for number in range(self._started):
            yield from read_journal(self._recording(number) / JOURNAL)

    def _start(self, command: Sequence[str]) -> None:
        recording = self._recording(self._started)
        self._started += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                [*command, "--record", str(recording)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
            )

    def _signal(self, number: int) -> None:
        assert self._process is not None, "there is one to send it to"
        os.kill(self._process.pid, number)

    def _recording(self, number: int) -> Path:
        return self._folder / f"recording-{number}"


class Frame(NamedTuple):
    """A frame that a sidecar has taken."""

    sequence: int
    kind: str


def read_journal(path: Path) -> Iterator[Frame]:
    """The frames in a sidecar's recording, up to where a kill has torn it; none where there is no file.

    A reader of its own: the sidecar is not asked how well it counts.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.startswith(MAGIC):
        raise RuntimeError(f"{path}: is no recording")
    at = len(MAGIC)
    while at + _head.size <= len(content):
        length, checksum = _head.unpack_from(content, at)
        payload = content[at + _head.size : at + _head.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        at += _head.size + length
        event = msgspec.msgpack.decode(payload)
        if event["type"] == "received":
            yield Frame(event["sequence"], event["record"][0])
