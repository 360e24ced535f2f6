"""Engines and the sidecar as child processes that never outlive the demo."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType

STOP_S = 8.0
"""From the polite signal to the kill; the sidecar writes its Parquet in this time."""

POLL_S = 0.1
TAIL_LINES = 5
TAIL_CHARACTERS = 600

_EXCEPTION = re.compile(r"(?:^|\] )(\w*(?:Error|Exception): .*)")
"""At the start of a line, or behind what a logger puts there."""


class ChildError(RuntimeError):
    """A child died or never became ready. The text is one line: who, how, the end of its log, the log."""


class Child:
    """One process, and whatever it starts itself, with a log file."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, env: dict[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | env,
                # Ctrl-C reaches the demo alone, which then stops its children in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> None:
        """Raises ChildError when the process is gone."""
        code = self._process.poll()
        if code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ChildError(f"the {self.name} {how}: {self.tail()} (log: {self.log})")

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Return once `ready()` holds. Raises ChildError when the process dies or takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline_s:
                raise ChildError(
                    f"the {self.name} was not ready within {timeout_s:.0f} s: {self.tail()} (log: {self.log})"
                )
            time.sleep(POLL_S)

    def tail(self) -> str:
        """The last lines of the log, on one line, behind the first exception in it where that is earlier."""
        with self.log.open(encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        last = lines[-TAIL_LINES:]
        # The end of a long log is often only that a worker failed, and why stands far above.
        cause = next((found[1] for line in lines if (found := _EXCEPTION.search(line))), "")
        told = " | ".join(last)[-TAIL_CHARACTERS:] or "its log is empty"
        return told if not cause or cause in told else f"{cause[:TAIL_CHARACTERS]} | ... | {told}"

    def stop(self) -> None:
        """Ask the process to end, and end it when it does not; then all that it has left behind."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # It leads a group of its own, and an engine's workers do not always follow their parent.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Children:
    """Context manager: whatever happens inside, SIGTERM included, every child is stopped at its end."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._handler: object = None

    def __enter__(self) -> "Children":
        self._handler = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave a child behind.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for child in reversed(self._children):
            child.stop()
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, self._handler)  # type: ignore[arg-type]

    def start(self, name: str, verb: Sequence[str], log: Path, *, env: dict[str, str] | None = None) -> Child:
        """Start `steersman VERB...`."""
        code = "from steersman_controller.cli import main; main()"
        return self.run(name, [sys.executable, "-c", code, *verb], log, env=env)

    def run(
        self, name: str, command: Sequence[str], log: Path, *, env: dict[str, str] | None = None
    ) -> Child:
        """Start any program."""
        child = Child(name, command, log, env=env or {})
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises ChildError when one of them is gone."""
        for child in self._children:
            child.check()


def free_port() -> int:
    """A TCP port on the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
