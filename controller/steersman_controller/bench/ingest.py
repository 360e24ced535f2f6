"""Step reports through a real socket into a belief, on one core."""

import os
import subprocess
import sys
import tempfile
import time
from itertools import chain, count
from typing import Any

import zmq

from steersman_controller.bench.traffic import HELLO, patterns, stream
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.metrics import Metrics
from steersman_controller.sidecar.server import Sidecar
from steersman_policies.codec import SCHEMA, Envelope, FromEngine, encode

ENGINE_ID = "bench"
LONGEST_S = 120.0


def measure(frames: int) -> dict[str, Any]:
    """Reports per second that a sidecar takes in from an engine that never stops talking."""
    with tempfile.TemporaryDirectory() as folder, _OneCore():
        config = SidecarConfig(
            telemetry=f"ipc://{folder}/telemetry", admin=f"ipc://{folder}/admin", metrics_port=0
        )
        sidecar = Sidecar(
            config, clock=time.monotonic, epoch=1, version="bench", metrics=Metrics("bench", time.time)
        )
        sender = subprocess.Popen(  # noqa: S603 - this very file
            [sys.executable, "-m", __name__, config.telemetry, str(frames)], stdout=subprocess.DEVNULL
        )
        try:
            return _take(sidecar, frames)
        finally:
            sender.kill()
            sender.wait()
            sidecar.close()


def _take(sidecar: Sidecar, frames: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + LONGEST_S
    while ENGINE_ID not in sidecar.fleet.controllers:
        _poll(sidecar, deadline_s)
    counters = sidecar.fleet.controllers[ENGINE_ID].counters
    while counters["reports"] == 0:
        _poll(sidecar, deadline_s)
    started_s, cpu_s, first = time.perf_counter(), time.process_time(), counters["reports"]
    while counters["reports"] < frames:
        _poll(sidecar, deadline_s)
    controller = sidecar.fleet.controllers[ENGINE_ID]
    learned = controller.belief.cost.steps  # folds what waits
    took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    taken = frames - first
    return {
        "frames": taken,
        "learned": learned,
        "lost": sidecar.fleet.streams[ENGINE_ID].lost + controller.counted()["reports_refused"],
        "ingest_per_s": taken / took_s,
        "cpu_us_per_frame": 1e6 * cpu_s / taken,
    }


def _poll(sidecar: Sidecar, deadline_s: float) -> None:
    sidecar.poll(0.01)
    sidecar.tick()
    if time.monotonic() > deadline_s:
        raise RuntimeError("bench belief: the reports did not arrive")


class _OneCore:
    """This process, its threads included, on one of its cores; a child sent from here gets the others."""

    def __enter__(self) -> None:
        self._before: set[int] = set()
        if hasattr(os, "sched_setaffinity"):
            self._before = os.sched_getaffinity(0)
            os.environ["STEERSMAN_BENCH_CORES"] = ",".join(map(str, sorted(self._before)[1:] or self._before))
            os.sched_setaffinity(0, {min(self._before)})

    def __exit__(self, *_: object) -> None:
        if self._before:
            os.sched_setaffinity(0, self._before)


def _send(endpoint: str, frames: int) -> None:
    """An engine: encoded frames, as fast as the socket takes them."""
    cores = os.environ.get("STEERSMAN_BENCH_CORES")
    if cores:
        os.sched_setaffinity(0, set(map(int, cores.split(","))))
    import random

    reports = stream(patterns(random.Random(1)), frames)  # noqa: S311 - chance that replays
    numbers = count()
    encoded = [
        encode(b"telemetry", next(numbers), Envelope(SCHEMA, 1, ENGINE_ID, 0, record))
        for record in chain[FromEngine]((HELLO,), reports)
    ]
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, ENGINE_ID.encode())
    socket.connect(endpoint)
    for frame in encoded:
        socket.send_multipart(frame)
    socket.poll(round(1e3 * LONGEST_S))
    time.sleep(LONGEST_S)


if __name__ == "__main__":
    _send(sys.argv[1], int(sys.argv[2]))
