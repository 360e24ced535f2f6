"""The link with real sockets, threads and processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from link_world import HELLO, REPORT, load, rows

from steersman_engine import publisher as publisher_module
from steersman_engine.bench.stand_in import StandIn
from steersman_engine.link import Link
from steersman_policies import codec
from steersman_policies.messages import Hello, StepReport


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/t.ipc"


@pytest.fixture
def real(tmp_path: Path, endpoint: str) -> Iterator[Link]:
    link = Link("engine-1", HELLO, endpoint, state_dir=tmp_path)
    link.start()
    yield link
    link.close()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that happens in another thread or process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.002)


def k_of(link: Link) -> int:
    return link.decide(load()).proposal_length["chat"]


def spawn(endpoint: str, lease_s: float = 0.4) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "steersman_engine.bench.stand_in", endpoint, "6", "1", str(lease_s)]
    return subprocess.Popen(command)


def test_a_sidecar_that_dies_and_comes_back(real: Link, endpoint: str) -> None:
    """Launch K while absent, plan K while alive, fallback K when killed or stopped, plan K afterwards."""
    assert k_of(real) == 2
    sidecar = spawn(endpoint)
    try:
        until(lambda: k_of(real) == 6)
        os.kill(sidecar.pid, signal.SIGSTOP)
        until(lambda: k_of(real) == 1)
        os.kill(sidecar.pid, signal.SIGCONT)
        until(lambda: k_of(real) == 6)
        sidecar.kill()
        until(lambda: k_of(real) == 1)
        sidecar.wait()
        sidecar = spawn(endpoint)
        until(lambda: k_of(real) == 6)
    finally:
        sidecar.kill()
        sidecar.wait()
    assert real.publisher.all_counters()["decisions_after_expiry"] == 0
    assert real.publisher.all_counters()["publisher_errors"] == 0


def test_everything_sent_arrives_in_order(real: Link, endpoint: str) -> None:
    """Also what was handed over just before `close`."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(endpoint)
    assert router.poll(10_000)
    for step in range(500):
        real.record(rows(step))
        if step % 50 == 0:
            time.sleep(0.02)
    real.finished(REPORT)
    closing = threading.Thread(target=real.close)
    closing.start()
    received = []
    while router.poll(1_000):
        engine, *frames = router.recv_multipart()
        assert engine == b"engine-1"
        received.append(codec.decode(frames))
    closing.join()
    router.close(0)
    context.term()
    dropped = received[-1].envelope.dropped
    bodies = [frame.envelope.body for frame in received]
    steps = [body.step for body in bodies if isinstance(body, StepReport)]
    assert [frame.sequence for frame in received] == list(range(len(received)))
    assert isinstance(bodies[0], Hello)
    assert bodies[-1] == REPORT
    assert len(steps) + dropped == 500
    assert steps == sorted(steps)


def test_an_error_in_the_publisher_is_logged_once_and_the_loop_goes_on(
    real: Link, endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted each time; plans and leases still arrive."""

    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(publisher_module, "aggregate", boom)
    stand_in = StandIn(endpoint, plan_k=6, fallback_k=1, lease_s=5.0, epoch=1, clock=time.monotonic)
    try:
        for step in range(3):
            real.record(rows(step))

        def steered() -> bool:
            stand_in.turn(0.01)
            return k_of(real) == 6 and real.publisher.counters["publisher_errors"] == 3

        until(steered)
    finally:
        stand_in.close()
    assert len([r for r in caplog.records if "planted" in r.getMessage()]) == 1


def test_a_link_that_was_never_started_can_be_closed(tmp_path: Path) -> None:
    """Nothing hangs."""
    Link("engine-1", HELLO, f"ipc://{tmp_path}/t.ipc", state_dir=tmp_path).close()
