"""Operators who say stop, sidecars that die, faults in the adapter: vLLM serves on."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from vllm_sidecar import ENGINE_ID, Sidecar
from vllm_world import CODE, K_MAX, Server, longest, until

from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import RequestReport, StepReport

pytestmark = pytest.mark.vllm
Start = Callable[..., Sidecar]
Launch = Callable[..., Server]


def reasons(steersman: Sidecar) -> set[str]:
    return {report.reason for report in steersman.steps()}


def test_the_pause_verb_puts_vllms_own_table_back(server: Server, sidecar: Start) -> None:
    """`steersman pause` does, `steersman resume` steers again."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=2)
    assert longest(server.complete(CODE)) == 2
    steersman.verb("pause", ENGINE_ID)
    assert longest(server.complete(CODE)) == K_MAX
    steersman.verb("resume", ENGINE_ID)
    assert longest(server.complete(CODE)) == 2


def test_the_pause_file_puts_vllms_own_table_back(server: Server, sidecar: Start) -> None:
    """For as long as it is there."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=2)
    file = server.state_dir / f"{ENGINE_ID}.pause"
    file.touch()
    try:
        until(lambda: longest(server.complete(CODE)) == K_MAX, "vLLM's own K")
        assert "pause" in reasons(steersman)
    finally:
        file.unlink()
    until(lambda: longest(server.complete(CODE)) == 2, "the plan's K again")


def test_a_killed_sidecar(server: Server, sidecar: Start) -> None:
    """Fallback K after the lease, no request lost, attached again after a restart, every gap counted."""
    first = sidecar("--steer", lease_s=1.0).attached()
    first.push("by_segment", other=6, fallback=1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.complete, CODE, 200, ignore_eos=True)
        until(lambda: len(first.steps()) > 5, "it is being served")
        first.stop(signal.SIGKILL)
        interrupted = running.result()
    assert interrupted.output_tokens == 200
    until(lambda: longest(server.complete(CODE)) == 1, "the fallback K")
    second = sidecar("--steer", lease_s=1.0).attached()
    second.push("by_segment", other=6, fallback=1)
    until(lambda: longest(server.complete(CODE)) == 6, "the plan's K again")
    engine = second.engine()
    assert engine is not None
    assert engine.about.counters["decisions_after_expiry"] == 0
    assert {"lease"} <= {report.reason for report in read_recording(second.recording).steps()}
    second.requests(1)
    assert_gap_is_counted(first.recording, second.recording)


def assert_gap_is_counted(before: Path, after: Path) -> None:
    """What two recordings lack of one engine is what it says it dropped, and what was lost on the way."""
    records = [list(read_recording(path).records()) for path in (before, after)]
    bodies = [event.record for events in records for event in events]
    steps = sorted(body.step for body in bodies if isinstance(body, StepReport))
    requests = sorted(body.request for body in bodies if isinstance(body, RequestReport))
    missing = missing_of(steps) + missing_of(requests)
    dropped = records[1][-1].dropped - records[0][-1].dropped
    on_the_way = records[1][0].sequence - records[0][-1].sequence - 1
    assert dropped <= missing <= dropped + on_the_way


def missing_of(numbers: list[int]) -> int:
    return numbers[-1] - numbers[0] + 1 - len(set(numbers)) if numbers else 0


def test_a_stopped_sidecar(server: Server, sidecar: Start) -> None:
    """One that hangs is as good as dead: the lease ends, and it is followed again when it goes on."""
    steersman = sidecar("--steer", lease_s=1.0).attached()
    steersman.push("by_segment", other=6, fallback=1)
    steersman.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: longest(server.complete(CODE)) == 1, "the fallback K")
    finally:
        steersman.process.send_signal(signal.SIGCONT)
    until(lambda: longest(server.complete(CODE)) == 6, "the plan's K again")


def test_a_fault_in_the_adapter(launch: Launch, sidecar: Start) -> None:
    """Logged once; then vLLM's own K, every request completes, and the sidecar is told."""
    server = launch(scheduler="planted.Faulty").wait()
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=2)
    first = server.complete(CODE, 8)
    assert longest(first) == 2
    during, after = (server.complete(CODE, 64, ignore_eos=True) for _ in range(2))
    assert during.output_tokens == after.output_tokens == 64
    assert longest(after) == K_MAX
    assert server.text().count("Steersman stopped steering") == 1
    assert server.text().count("RuntimeError: planted fault") >= 1
    engine = until(
        lambda: (found := steersman.engine()) and found.about.observe_only and found, "the sidecar is told"
    )
    assert engine.about.observe_only == "stopped: RuntimeError: planted fault"
