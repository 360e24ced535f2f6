"""Reads what a sidecar recorded: a journal, a Parquet file, or the folder that holds either."""

from collections.abc import Iterator
from pathlib import Path

from steersman_controller.events import Event, Received, Started, Ticked
from steersman_controller.stream import Stream
from steersman_controller.trace.journal import decode_event, is_journal, payloads, whole_bytes
from steersman_policies.codec import FromEngine
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_policies.plan import Plan

JOURNAL, PARQUET = "journal.bin", "trace.parquet"
PARQUET_MAGIC = b"PAR1"


class Recording:
    """Events of one sidecar from its start, read from disk again on every pass.

    `truncated_bytes` is what was lost at the end of the file; everything before it is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated_bytes = 0
        self._is_journal = is_journal(path)
        if self._is_journal:
            self.truncated_bytes = path.stat().st_size - whole_bytes(path)
        else:
            from steersman_controller.trace.parquet import lost_bytes

            next(self._payloads(), None)  # a bad file is refused here, in one line
            self.truncated_bytes = lost_bytes(path)
        first = next(self.events, None)
        if not isinstance(first, Started):
            found = "is empty" if first is None else f"begins with {type(first).__name__}"
            raise ValueError(f"{path}: no steersman recording (it {found})")
        self.started: Started = first

    @property
    def events(self) -> Iterator[Event]:
        """All events in order, `Started` first; lazily, so that big files fit in memory."""
        where = str(self.path)
        return (decode_event(payload, where) for payload in self._payloads())

    def records(self, engine_id: str | None = None) -> Iterator[Received]:
        """What engines sent, each frame once, of one engine or of all."""
        streams: dict[str, Stream] = {}
        for event in self.events:
            if not isinstance(event, Received) or engine_id not in (None, event.engine_id):
                continue
            if streams.setdefault(event.engine_id, Stream()).accept(event):
                yield event

    def steps(self, engine_id: str | None = None) -> Iterator[StepReport]:
        """Step reports of one engine, or of all."""
        return (r for r in self._bodies(engine_id) if isinstance(r, StepReport))

    def requests(self, engine_id: str | None = None) -> Iterator[RequestReport]:
        """Finished requests of one engine, or of all."""
        return (r for r in self._bodies(engine_id) if isinstance(r, RequestReport))

    def hello(self, engine_id: str) -> Hello | None:
        """The first hello of an engine."""
        return next((r for r in self._bodies(engine_id) if isinstance(r, Hello)), None)

    @property
    def engines(self) -> list[str]:
        """Ids of the engines that sent anything, in order of appearance."""
        return list(dict.fromkeys(event.engine_id for event in self.records()))

    @property
    def plans(self) -> list[Plan]:
        """Every plan that was made, in order."""
        return [e.plan for e in self.events if isinstance(e, Ticked) and e.plan is not None]

    @property
    def warning(self) -> str | None:
        """One line about what was lost, where something was."""
        if not self.truncated_bytes:
            return None
        return f"{self.path}: the last {self.truncated_bytes} bytes are torn; every event before them is used"

    def _bodies(self, engine_id: str | None) -> Iterator[FromEngine]:
        return (event.record for event in self.records(engine_id))

    def _payloads(self) -> Iterator[bytes]:
        if self._is_journal:
            return payloads(self.path)
        from steersman_controller.trace.parquet import parquet_payloads

        return parquet_payloads(self.path)


def read_recording(path: Path) -> Recording:
    """The recording in a journal, a Parquet file or a folder that `steersman serve --record` filled.

    Raises FileNotFoundError or ValueError with one line: what the path is and what is allowed.
    """
    if path.is_dir():
        for name in (PARQUET, JOURNAL):
            if (path / name).exists():
                return Recording(path / name)
        raise ValueError(f"{path}: holds no recording; allowed are {PARQUET} or {JOURNAL}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such recording")
    if not path.is_file() or not is_recording(path):
        raise ValueError(
            f"{path}: no steersman recording; allowed are a {JOURNAL}, a {PARQUET} or their folder"
        )
    return Recording(path)


def is_recording(path: Path) -> bool:
    """Whether the file begins like one."""
    return is_journal(path) or _is_parquet(path)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
