"""An engine made of a socket, and a sidecar as a real process or step by step on a clock of the test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import zmq

from steersman_controller import cli
from steersman_controller.sidecar.config import SidecarConfig, read_config
from steersman_controller.sidecar.metrics import Metrics
from steersman_controller.sidecar.server import Sidecar
from steersman_policies.codec import Envelope, FromEngine, FromSidecar, decode, encode, fingerprint_digest
from steersman_policies.messages import Fingerprint, Group, Hello, Lease, PlanAck, RequestReport, StepReport
from steersman_policies.plan import Plan, refusal

sys.path.insert(0, str(Path(__file__).parent))  # for the made-up machine beside this file
import train_truth as truth

HELLO = Hello(
    fingerprint=Fingerprint("toy", "1", "t", "d", "1", "ngram", "none", "float32", "cpu", "eager"),
    k_max=4,
    reachable_k=(0, 1, 2, 3, 4),
    k_floor=0,
    launch_k=2,
    max_batch=8,
    per_request_k=True,
    draft_timing=True,
    confidence=False,
    drafter_state_survives_off=True,
)
DEADLINE_S = 20.0
MARK = Lease(2**53)


def step_report(step: int, segment: str = "chat", accepted: int = 2) -> StepReport:
    """Two requests, three draft tokens each."""
    group = Group(segment, 0, 2, 3, 2, ((3, accepted, 2),))
    return StepReport(
        step=step,
        started_s=0.02 * step,
        draft_s=0.001,
        verify_s=0.012,
        other_s=0.002,
        decode_requests=2,
        prefill_tokens=0,
        target_tokens=8,
        context_tokens=100 + step,
        drafting_depth=3,
        requests_drafting=2,
        waiting=0,
        kv_used_fraction=0.1,
        committed_tokens=2 * (accepted + 1),
        plan_id=0,
        groups=(group,),
        reason="table",
        commanded={segment: 3},
    )


REQUEST = RequestReport(1, "chat", 0.5, 40, 30, 0.01, 0.05, 0.02, 0.6, 12, 36, 20, "stop")


class ToyEngine:
    """Speaks the wire protocol over a real DEALER socket."""

    def __init__(self, endpoint: str, engine_id: str = "gpu0", epoch: int = 7) -> None:
        self.engine_id, self.epoch = engine_id, epoch
        self.sequence = 0
        self.refuse = ""
        """When set, the answer to every plan."""
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.setsockopt(zmq.ROUTING_ID, engine_id.encode())
        self.socket.connect(endpoint)

    def send(self, record: FromEngine, *, sequence: int | None = None, dropped: int = 0) -> None:
        """Send a record with the next sequence number, or with one chosen by the test."""
        number = self.sequence if sequence is None else sequence
        self.sequence = max(self.sequence, number + 1)
        self.send_raw(encode(b"t", number, Envelope(1, self.epoch, self.engine_id, dropped, record)))

    def send_raw(self, frames: list[bytes]) -> None:
        """Send any frames at all."""
        self.socket.send_multipart(frames)

    def receive(self, timeout_s: float = 0.0) -> FromSidecar | None:
        """The next plan or lease; a plan is acknowledged."""
        if not self.socket.poll(round(timeout_s * 1000)):
            return None
        record: Any = decode(self.socket.recv_multipart()).envelope.body
        if isinstance(record, Plan):
            reason = self.refuse or refusal(record, HELLO, fingerprint_digest(HELLO.fingerprint))
            self.send(PlanAck(record.plan_id, not reason, reason or ""))
        return record  # type: ignore[no-any-return]

    def close(self) -> None:
        """Leave; two engines of one id would take the connection from each other for ever."""
        self.socket.close()
        self.context.term()


class StepByStep:
    """A sidecar in this process, moved by the test on a clock that the test sets."""

    def __init__(self, config: SidecarConfig, **parts: Any) -> None:
        self.now_s = 100.0
        self.metrics = Metrics("0", lambda: 1e9)
        self.sidecar = Sidecar(
            config, clock=lambda: self.now_s, epoch=9, version="0", metrics=self.metrics, **parts
        )

    def frames(self, count: int) -> None:
        """Handle exactly so many frames of engines."""
        deadline_s = time.monotonic() + DEADLINE_S
        while count > 0:
            assert time.monotonic() < deadline_s, f"{count} frames never came"
            count -= self.sidecar.poll(0.05)
        assert count == 0

    def ticks(self, seconds: float, engine: ToyEngine | None = None) -> list[FromSidecar]:
        """Let time pass in steps of 50 ms; what the engine received, plans acknowledged at once."""
        received: list[FromSidecar] = []
        for _ in range(round(seconds / 0.05)):
            self.now_s += 0.05
            self.sidecar.tick()
            if engine is not None:
                received += self.delivered(engine)
        return received

    def delivered(self, engine: ToyEngine) -> list[FromSidecar]:
        """All that was sent to the engine so far; its answers have been handled when this returns."""
        assert self.sidecar.telemetry.send(engine.engine_id, MARK)
        received: list[FromSidecar] = []
        while (record := engine.receive(DEADLINE_S)) != MARK:
            assert record is not None, "the mark never came"
            received.append(record)
        self.frames(sum(isinstance(record, Plan) for record in received))
        return received

    def value(self, name: str, **labels: str) -> float | None:
        """A metric."""
        return self.metrics.registry.get_sample_value(f"steersman_{name}", labels)


class ServeProcess:
    """`steersman serve` as a real process."""

    def __init__(self, folder: Path, *args: str) -> None:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.stderr = folder / f"stderr-{time.monotonic_ns()}"
        with self.stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [*steersman(), "serve", "--json", "--metrics-port", "0", *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.stderr.read_text()
        self.ready: dict[str, Any] = json.loads(line)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def steersman() -> list[str]:
    """The console script of this environment."""
    return [str(Path(sys.executable).with_name("steersman"))]


@pytest.fixture
def hello() -> Hello:
    return HELLO


@pytest.fixture
def step() -> Callable[..., StepReport]:
    return step_report


@pytest.fixture
def request_report() -> RequestReport:
    return REQUEST


@pytest.fixture
def config(tmp_path: Path) -> SidecarConfig:
    """Steering, on sockets in the test's folder."""
    return read_config(
        None,
        {},
        {
            "telemetry": f"ipc://{tmp_path}/t.ipc",
            "admin": f"ipc://{tmp_path}/a.ipc",
            "controller.mode": "steer",
            "metrics_port": 0,
        },
    )


@pytest.fixture
def engines() -> Iterator[Callable[..., ToyEngine]]:
    """Makes engines and closes them."""
    made: list[ToyEngine] = []

    def make(*args: Any, **kwargs: Any) -> ToyEngine:
        made.append(ToyEngine(*args, **kwargs))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def sidecars() -> Iterator[Callable[..., StepByStep]]:
    """Makes sidecars that the test moves, and closes those that it left open."""
    made: list[StepByStep] = []

    def make(*args: Any, **kwargs: Any) -> StepByStep:
        made.append(StepByStep(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        if not one.sidecar.telemetry.socket.closed:
            one.sidecar.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServeProcess]]:
    """Starts sidecar processes and kills those that the test left running."""
    started: list[ServeProcess] = []

    def start(*args: str) -> ServeProcess:
        started.append(ServeProcess(tmp_path, *args))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def run_verb(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a verb as a real process without a terminal; a prompt would end it at once."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(
            [*steersman(), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )

    return run


@pytest.fixture
def train_verbs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command line with `train` and `inspect`, in this process; the exit code."""
    return _with_train_verbs(monkeypatch)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle of few cells and the table that it was trained on; to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    steps = truth.write(folder / "a.csv", truth.rows(batches=(1, 2, 4, 8, 16, 64)))
    with pytest.MonkeyPatch.context() as patch:
        train = _with_train_verbs(patch)
        out = folder / "bundle.zip"
        assert train("train", "--step-times", steps, "--out", out, "--created-at", "then", "--json") == 0
    return folder


def _with_train_verbs(patch: pytest.MonkeyPatch) -> Callable[..., int]:
    verbs = "steersman_controller.train.verbs"
    points = [EntryPoint(name, f"{verbs}:{name}", cli.ENTRY_POINTS) for name in ("train", "inspect")]
    patch.setattr(cli, "entry_points", lambda group: points)
    return lambda *args: cli.run([str(arg) for arg in args])
