"""`steersman serve` as a real process."""

import io
import signal
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import train_truth as truth

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
    engine.send(step(1))  # before the answer to the plan, which the lease waits for
    assert isinstance(engine.receive(DEADLINE_S), Plan)
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


RULES = """
controller:
  segmenter:
    version: {version}
    rules:
      - {{attribute: tenant, value: acme, segment: {segment}}}
      - {{attribute: structured_output, value: json, segment: code}}
"""


@pytest.mark.parametrize("policy", ["goodput", "off"])
def test_segment_rules_reach_the_engine(
    serve: Make, engines: Make, hello: Hello, step: Step, tmp_path: Path, policy: str
) -> None:
    """Rules of the file stand in the plan and in the recording; a restart with others changes the plan
    and keeps what was learned."""

    def planned(version: int, segment: str, epoch: int) -> Plan:
        file = tmp_path / f"{version}.yaml"
        file.write_text(RULES.format(version=version, segment=segment))
        folders = ("--state-dir", str(tmp_path / "state"), "--record", str(tmp_path / f"rec{version}"))
        process = serve("--config", str(file), "--policy", policy, *folders)
        engine = engines(process.ready["telemetry"], epoch=epoch)
        engine.send(hello)
        engine.send(step(1))
        plan = engine.receive(DEADLINE_S)
        assert isinstance(plan, Plan)
        while not isinstance(engine.receive(DEADLINE_S), Lease):
            pass
        assert process.stop() == 0
        engine.close()
        started = read_recording(tmp_path / f"rec{version}").started
        assert started.config.segmenter == plan.segmenter
        return plan

    first = planned(1, "vip", 7)
    assert first.segmenter.version == 1
    assert first.segmenter.segment_of("", {"tenant": "acme"}) == "vip"
    assert first.segmenter.segment_of("", {"tenant": "other", "structured_output": "json"}) == "code"
    second = planned(2, "gold", 8)
    assert second.plan_id > first.plan_id
    assert second.segmenter.segment_of("", {"tenant": "acme"}) == "gold"


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


@pytest.fixture
def bundle(tmp_path: Path, train_verbs: Make, hello: Hello) -> Path:
    """Trained for the engine of these tests."""
    steps = truth.write(tmp_path / "steps.csv", truth.rows(batches=(1, 2, 4, 8)))
    said = msgspec.structs.asdict(hello.fingerprint)
    named = ",".join(f"{name}={value}" for name, value in said.items())
    out = tmp_path / "bundle.zip"
    assert train_verbs("train", "--step-times", steps, "--fingerprint", named, "--out", out) == 0
    return out


def test_a_bundle_is_what_an_engine_begins_with(
    serve: Make, engines: Make, run_verb: Make, hello: Hello, bundle: Path, tmp_path: Path
) -> None:
    """It is said in the log, in the status and in the recording; another engine's is refused in one line."""
    process = serve("--bundle", str(bundle), "--record", str(tmp_path / "rec"))
    assert process.ready["prior"].startswith("bundle.zip (")
    engine = engines(process.ready["telemetry"])
    engine.send(hello)
    other = engines(process.ready["telemetry"], "gpu1")
    fingerprint = msgspec.structs.replace(hello.fingerprint, target="another")
    other.send(msgspec.structs.replace(hello, fingerprint=fingerprint))
    for one in (engine, other):
        assert isinstance(one.receive(DEADLINE_S), Plan)
    status = run_verb("policy", "status").stdout
    assert "a model of this very engine" in status
    assert "not used: made for target 't', this is 'another'" in status
    assert process.stop() == 0
    log = process.stderr.read_text()
    assert "engine gpu0: prior: bundle.zip" in log
    assert "engine gpu1: prior: bundle.zip" in log
    prior = read_recording(tmp_path / "rec").started.priors[0]
    assert prior.cost is not None
    assert prior.fingerprint == hello.fingerprint


def test_what_is_no_bundle_is_refused(run_verb: Make, bundle: Path, tmp_path: Path) -> None:
    """Missing, cut, changed, a foreign archive, text: one line that names the file, exit code 2."""
    content = bundle.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    foreign = io.BytesIO()
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("model.pkl", b"cos\nsystem\n")
    path = tmp_path / "given.zip"
    for wrong in (b"", content[:-100], bytes(changed), foreign.getvalue(), b"hello"):
        if wrong:
            path.write_bytes(wrong)
        done = run_verb("serve", "--bundle", str(path), "--metrics-port", "0")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "given.zip" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--device", "h100"], "--target-config: needs --device"),
        (["--bundle", "b.zip", "--device", "h100"], "--bundle: excludes"),
        (["--bundle-group", "a"], "--bundle-group: needs --bundle"),
        (["--target-config", "none.json", "--device", "h10"], "did you mean 'h100'"),
    ],
)
def test_priors_that_make_no_sense_are_refused(run_verb: Make, args: list[str], said: str) -> None:
    """One line, exit code 2."""
    done = run_verb("serve", *args)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
