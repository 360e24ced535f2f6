"""`steersman serve` as a real process."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import Hello, Lease, PlanAck, StepReport
from steersman_policies.plan import Plan

Make = Callable[..., Any]
Step = Callable[..., StepReport]
DEADLINE_S = 20.0


def test_a_second_sidecar_on_the_same_endpoint_is_told_so(
    serve: Make, run_verb: Make, tmp_path: Path
) -> None:
    """One line, exit code 2, and the first one goes on."""
    first = serve()
    second = run_verb("serve")
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert f"process {first.process.pid}" in second.stderr
    assert run_verb("policy", "status").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(
    serve: Make, engines: Make, hello: Hello, step: Step, tmp_path: Path, number: int
) -> None:
    """Exit code 0, and the recording became Parquet with every frame in it."""
    process = serve("--record", str(tmp_path / "rec"))
    engine = engines(process.ready["telemetry"])
    engine.send(hello)
    assert isinstance(engine.receive(DEADLINE_S), Plan)
    engine.send(step(1))
    while not isinstance(engine.receive(DEADLINE_S), Lease):
        pass
    assert process.stop(number) == 0
    recording = read_recording(tmp_path / "rec")
    assert recording.path.name == "trace.parquet"
    assert [report.step for report in recording.steps("gpu0")] == [1]
    assert len([e for e in recording.records() if isinstance(e.record, PlanAck)]) >= 1


def test_a_killed_sidecar_leaves_a_readable_journal_and_a_free_endpoint(
    serve: Make, engines: Make, hello: Hello, step: Step, tmp_path: Path
) -> None:
    """Everything that was answered is in the journal, and the next sidecar starts at once."""
    process = serve("--record", str(tmp_path / "rec"))
    engine = engines(process.ready["telemetry"])
    engine.send(hello)
    for number in range(1, 21):
        engine.send(step(number))
    while not isinstance(engine.receive(DEADLINE_S), Plan):
        pass
    while not isinstance(engine.receive(DEADLINE_S), Lease):
        pass
    process.stop(signal.SIGKILL)
    recording = read_recording(tmp_path / "rec")
    assert recording.path.name == "journal.bin"
    assert recording.truncated_bytes == 0
    assert len(list(recording.steps())) == 20
    again = serve("--record", str(tmp_path / "rec"))
    assert again.ready["telemetry"] == process.ready["telemetry"]
    assert again.stop() == 0
    assert len(list(read_recording(tmp_path / "rec" / "journal-1.bin").steps())) == 20


def test_an_idle_sidecar_sleeps(serve: Make) -> None:
    """Over a second of idling it uses a small part of a core: it does not spin."""
    process = serve()

    def cpu_ticks() -> int:
        fields = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(0.3)
    before = cpu_ticks()
    time.sleep(1.0)
    assert cpu_ticks() - before <= 10  # hundredths of a second
