"""`trace.json` in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

One process an engine: its steps as slices (verify and draft inside), counters (requests, KV use, K by
segment), and every request as an asynchronous slice with its phases. Times are microseconds.
"""

from pathlib import Path
from typing import IO, Any

import msgspec

from steersman_policies.messages import RequestReport, StepReport

MAX_EVENTS = 500_000
"""By default; 80 MB. Viewers are slow beyond."""

_STEPS = 1


class TraceWriter:
    """Writes events as they happen; beyond `max_events` they are counted only."""

    def __init__(self, path: Path, max_events: int = MAX_EVENTS) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("xb")
        self._encoder = msgspec.json.Encoder()
        self._left = max_events
        self.left_out = 0
        self._engines: dict[str, int] = {}
        self._counters: dict[tuple[int, str], dict[str, float]] = {}
        self._file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        self._separator = b"\n"

    def step(self, engine: str, report: StepReport) -> None:
        """A step of this engine, and the counters that changed with it."""
        pid, start = self._pid(engine), report.started_s
        k = {group.segment: group.commanded_k for group in report.groups}
        outcomes = [outcome for group in report.groups for outcome in group.outcomes]
        events = [
            _slice(
                "step",
                pid,
                start,
                report.busy_s,
                {
                    "step": report.step,
                    "k": k,
                    "batch": report.decode_requests,
                    "drafted": sum(drafted * count for drafted, _, count in outcomes),
                    "accepted": sum(accepted * count for _, accepted, count in outcomes),
                    "committed": report.committed_tokens,
                    "prefill_tokens": report.prefill_tokens,
                    "context_tokens": report.context_tokens,
                    "next_k": report.commanded,
                    "reason": report.reason,
                },
            ),
            _slice("verify", pid, start, report.verify_s, {"target_tokens": report.target_tokens}),
        ]
        if report.draft_s > 0.0:
            depth = {"depth": report.drafting_depth, "requests": report.requests_drafting}
            events.append(_slice("draft", pid, start + report.verify_s, report.draft_s, depth))
        requests = {"running": float(report.decode_requests), "waiting": float(report.waiting)}
        for name, values in (
            ("requests", requests),
            ("kv_used_fraction", {"used": round(report.kv_used_fraction, 3)}),
            ("K by segment", {segment: float(value) for segment, value in report.commanded.items()}),
        ):
            if values and self._counters.get((pid, name)) != values:
                self._counters[(pid, name)] = values
                events.append({"ph": "C", "name": name, "pid": pid, "ts": _us(start), "args": values})
        self._write(events)

    def request(self, engine: str, report: RequestReport, request_id: str) -> None:
        """A finished request: queue, prefill and decode inside one slice."""
        pid, start = self._pid(engine), report.arrived_s
        bounds = (0.0, report.queue_s, report.ttft_s, report.e2e_s)
        args = {
            "prompt_tokens": report.prompt_tokens,
            "output_tokens": report.output_tokens,
            "drafted": report.drafted,
            "accepted": report.accepted,
        }
        name = f"{report.segment} {request_id}"
        events = [_phase("b", name, pid, report.request, start, args)]
        for number, phase in enumerate(("queue", "prefill", "decode")):
            if bounds[number + 1] > bounds[number]:
                events.append(_phase("b", phase, pid, report.request, start + bounds[number]))
                events.append(_phase("e", phase, pid, report.request, start + bounds[number + 1]))
        events.append(_phase("e", name, pid, report.request, start + report.e2e_s))
        self._write(events)

    def abandon(self) -> None:
        """Leave no file."""
        self._file.close()
        self._path.unlink()

    def close(self) -> None:
        """End the file; without it the JSON is not whole."""
        self._file.write(b'\n],"otherData":')
        self._file.write(self._encoder.encode({"events_left_out": str(self.left_out)}) + b"}\n")
        self._file.close()

    def _pid(self, engine: str) -> int:
        if engine not in self._engines:
            pid = self._engines[engine] = len(self._engines) + 1
            named = [("process_name", 0, engine or "engine"), ("thread_name", _STEPS, "steps")]
            self._write(
                [
                    {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
                    for kind, tid, name in named
                ]
            )
        return self._engines[engine]

    def _write(self, events: list[dict[str, Any]]) -> None:
        # All events of one step or request, or none: a slice that never ends would be worse than none.
        if len(events) > self._left:
            self._left = 0
            self.left_out += len(events)
            return
        self._left -= len(events)
        for event in events:
            self._file.write(self._separator + self._encoder.encode(event))
            self._separator = b",\n"


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _slice(name: str, pid: int, start_s: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": _us(start_s), "dur": _us(seconds)}
    return {"ph": "X", "name": name, "cat": "step", "pid": pid, "tid": _STEPS} | times | {"args": args}


def _phase(
    ph: str, name: str, pid: int, request: int, at_s: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    event = {"ph": ph, "name": name, "cat": "request", "id": str(request), "pid": pid, "tid": 0}
    return event | {"ts": _us(at_s)} | ({"args": args} if args else {})
