"""`requests.jsonl`: every request of a run, one a line, in the order of arrival.

A line is also a line of our workload format (`workload/table.py`), so a run can be served again:
`output_tokens` is what the request asked for, whatever became of it.
"""

from pathlib import Path
from typing import IO, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steersman_policies.messages import RequestReport
from steersman_simulator.workload.arrival import Arrival

RequestEnd: TypeAlias = Literal["finished", "rejected", "running"]


class RequestLine(Struct, omit_defaults=True):
    """One request. Latencies are None where it did not come so far."""

    request_id: str
    segment: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    outcome: RequestEnd
    queue_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    engine: str
    finish_reason: str
    stops: bool = False
    hash_ids: tuple[int, ...] = ()
    hash_block_tokens: int = 0


def finished_line(
    arrival: Arrival, report: RequestReport, *, preemptions: int = 0, engine: str = ""
) -> RequestLine:
    """The line of a finished request."""
    asked = unfinished_line(report.request, arrival, "finished", report.finish_reason)
    return replace(
        asked,
        queue_s=report.queue_s,
        ttft_s=report.ttft_s,
        tpot_s=report.tpot_s,
        e2e_s=report.e2e_s,
        steps=report.steps,
        drafted_tokens=report.drafted,
        accepted_tokens=report.accepted,
        preemptions=preemptions,
        engine=engine,
    )


def unfinished_line(ordinal: int, arrival: Arrival, outcome: RequestEnd, reason: str) -> RequestLine:
    """The line of a request that was rejected, or is still running or waiting at the end."""
    return RequestLine(
        request_id=arrival.request_id or str(ordinal),
        segment=arrival.segment,
        arrival_s=arrival.at_s,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=arrival.output_tokens,
        outcome=outcome,
        queue_s=None,
        ttft_s=None,
        tpot_s=None,
        e2e_s=None,
        steps=0,
        drafted_tokens=0,
        accepted_tokens=0,
        preemptions=0,
        engine="",
        finish_reason=reason,
        stops=arrival.stops,
        hash_ids=arrival.hash_ids,
        hash_block_tokens=arrival.hash_block_tokens,
    )


class RequestWriter:
    """Writes lines in the order of their ordinals, each as soon as all before it are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("xb")
        self._encoder = msgspec.json.Encoder()
        self._held: dict[int, RequestLine] = {}
        self._next = 0

    def write(self, ordinal: int, line: RequestLine) -> None:
        """The line of request `ordinal`; held back while an earlier one is on its way."""
        self._held[ordinal] = line
        while (ready := self._held.pop(self._next, None)) is not None:
            self._file.write(self._encoder.encode(ready) + b"\n")
            self._next += 1

    def abandon(self) -> None:
        """Leave no file."""
        self._file.close()
        self._path.unlink()

    def close(self) -> None:
        """Close the file; every request must have its line by now."""
        assert not self._held, f"request {self._next} has no line"
        self._file.close()
