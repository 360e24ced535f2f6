"""Everything that a simulated run leaves: figures, and the files of `--out`.

It is told of arrivals, steps and requests as they happen, so a long run needs no more memory than a short
one, but for four numbers a request.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from steersman_controller.events import Event
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_policies.messages import StepReport
from steersman_simulator.report.page import write_page
from steersman_simulator.report.perfetto import MAX_EVENTS, TraceWriter
from steersman_simulator.report.requests import RequestWriter, finished_line, unfinished_line
from steersman_simulator.report.run_figures import RunView
from steersman_simulator.report.show import encode_result
from steersman_simulator.report.tally import (
    Metrics,
    RequestTally,
    Slo,
    StepTally,
    vllm_speculation,
)
from steersman_simulator.report.timeline import Timeline, coarse
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.outcome import Outcome, Served
from steersman_simulator.world.requests import Finished

RESULT, REQUESTS, TRACE, PAGE, JOURNAL = FILES = (
    "result.json",
    "requests.jsonl",
    "trace.json",
    "report.html",
    "journal.bin",
)
K_BINS = 20


class RunReport:
    """An observer of one arm. With a folder, requests and trace are written there while it goes on."""

    def __init__(
        self,
        *,
        slo: Slo | None = None,
        folder: Path | None = None,
        trace_events: int = MAX_EVENTS,
        wants_deliveries: bool = True,
    ) -> None:
        self.wants_steps = True
        self.wants_deliveries = wants_deliveries
        self.requests = RequestTally(slo)
        self.steps = StepTally()
        self.timeline = Timeline()
        self.arrived = self.rejected = self.unfinished = self.preemptions = 0
        self.reasons = Counter[str]()
        self._pending: dict[int, Arrival] = {}
        self._lines: RequestWriter | None = None
        self._trace: TraceWriter | None = None
        if folder is not None:
            new_folder(folder)
            self._lines = RequestWriter(folder / REQUESTS)
            self._trace = TraceWriter(folder / TRACE, trace_events) if trace_events else None

    def watch(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """The same arrivals, known from here on by their place."""
        for ordinal, arrival in enumerate(arrivals):
            self._pending[ordinal] = arrival
            yield arrival

    def on_arm(self, arm: int) -> None:
        """There is one arm only."""
        assert arm == 0

    def on_step(self, engine: int, report: StepReport) -> None:
        """An engine ended a step."""
        self.steps.add(report)
        self.timeline.add(report)
        if self._trace is not None:
            self._trace.step(self._name(engine), report)

    def on_request(self, engine: int, done: Finished | Served) -> None:
        """A request ended; its ordinal is its place among the arrivals."""
        report = done.report
        arrival = self._pending.pop(report.request)
        self.arrived += 1
        self.preemptions += done.preemptions
        self.requests.add(report, done.deliveries)
        if self._lines is not None:
            line = finished_line(arrival, report, preemptions=done.preemptions, engine=self._name(engine))
            self._lines.write(report.request, line)
        if self._trace is not None:
            self._trace.request(self._name(engine), report, arrival.request_id or str(report.request))

    def on_reject(self, ordinal: int, reason: str) -> None:
        """A request was turned away."""
        arrival = self._pending.pop(ordinal)
        self.arrived += 1
        self.rejected += 1
        self.reasons[reason] += 1
        if self._lines is not None:
            self._lines.write(ordinal, unfinished_line(ordinal, arrival, "rejected", reason))

    def _name(self, engine: int) -> str:
        return f"engine {engine}"

    def end(self, duration_s: float, engines: int = 1) -> Metrics:
        """All figures of the run; every request that came and did not end is counted as running."""
        for ordinal, arrival in sorted(self._pending.items()):
            # Read, but not come yet when the run was stopped.
            if arrival.at_s <= duration_s:
                self.arrived += 1
                self.unfinished += 1
                if self._lines is not None:
                    self._lines.write(ordinal, unfinished_line(ordinal, arrival, "running", ""))
        self._pending.clear()
        self._close()
        return (
            {
                "arrived": self.arrived,
                "failed": self.rejected,
                "rejected_by_reason": dict(sorted(self.reasons.items())),
                "unfinished": self.unfinished,
                "preemptions": self.preemptions,
            }
            | self.requests.metrics(duration_s)
            | self.steps.metrics(duration_s, engines)
            | self.requests.latencies()
            | self.steps.speculation()
            | vllm_speculation(self.steps.segments.values())
            | {"k_by_segment": {n: coarse(k, K_BINS) for n, k in self.timeline.k_by_segment().items()}}
        )

    def view(self) -> RunView:
        """What the page draws."""
        segments = sorted(self.steps.segments.items())
        return RunView(
            timeline=self.timeline,
            seconds=self.requests.seconds,
            position_acceptance={name: each.position_acceptance() for name, each in segments},
        )

    def abandon(self) -> None:
        """The run failed: take away what was written of it."""
        for writer in (self._lines, self._trace):
            if writer is not None:
                writer.abandon()

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.close()
        if self._trace is not None:
            self._trace.close()


def write_files(
    folder: Path, result: dict[str, Any], report: RunReport, events: Iterable[Event] | None
) -> None:
    """What is written once all is known: the result, its page, and a recording of the events."""
    if events is not None:
        writer = JournalWriter(folder / JOURNAL)
        for event in events:
            writer.append(encode_event(event))
        writer.close()
    write_page(folder / PAGE, result, report.view())
    (folder / RESULT).write_bytes(encode_result(result) + b"\n")


def write_run(folder: Path, result: dict[str, Any], outcome: Outcome, arrivals: Iterable[Arrival]) -> None:
    """The same files of a run of one arm that was kept in memory. Raises ValueError where there are some."""
    report = RunReport(folder=folder)
    for _ in report.watch(arrivals):
        pass
    for step in outcome.steps:
        report.on_step(step.engine, step.report)
    for served in outcome.served:
        report.on_request(served.engine, served)
    for rejected in outcome.rejected:
        report.on_reject(rejected.request, rejected.reason)
    start_s, end_s = outcome.spans[0]
    report.end(end_s - start_s)
    write_files(folder, result, report, outcome.events)


def new_folder(folder: Path) -> None:
    """Make it, or take it if it holds no run. Raises ValueError where it does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (folder / name).exists():
            raise ValueError(f"--out: {folder / name} exists already; choose another folder")
