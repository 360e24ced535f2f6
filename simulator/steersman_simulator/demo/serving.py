"""The stack that the demo drives: `steersman serve`, and `steersman engine serve` beside it."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
from msgspec import Struct

from steersman_controller.sidecar.push import status
from steersman_simulator.demo.arms import OFF
from steersman_simulator.demo.client import Carrier, segment_field
from steersman_simulator.demo.live import View
from steersman_simulator.demo.processes import Child, Children, free_port

SIDECAR_START_S = 60.0
ENGINE_START_S = 300.0
"""A first start converts the bundled model."""

CONNECT_S = 30.0

ENGINE_ID = "engine-0"
MAX_BATCH = 32
"""Enough that a forward over all drafts of a full batch is bound by arithmetic, also on two cores."""

K_MAX = 8
LAUNCH_K = 0
MIN_NGRAM = 1
"""Draft from the shortest match: a drafter that always has an idea shows best when not to listen."""


class Sidecar(Struct, frozen=True):
    """A running sidecar's endpoints."""

    telemetry: str
    admin: str


class Stack(Struct, frozen=True):
    """A running engine and its sidecar, which several stacks may share."""

    engine_id: str
    base_url: str
    model: str
    admin: str
    max_batch: int
    carrier: Carrier
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def start_stack(children: Children, runtime: Path, folder: Path, model: str, view: View) -> Stack:
    """Both processes, ready and connected. Raises ChildError."""
    sidecar = start_sidecar(children, runtime, folder, view)
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    view.stage(f"starting the engine ({model or 'the bundled model'}, {base_url})")
    verb = _engine(sidecar.telemetry, runtime, port, model)
    engine = children.start("engine", verb, folder / "engine.log")
    name = wait_connected(engine, base_url, sidecar, ENGINE_ID, ENGINE_START_S)
    return Stack(ENGINE_ID, base_url, name, sidecar.admin, MAX_BATCH, segment_field)


def start_sidecar(children: Children, runtime: Path, folder: Path, view: View) -> Sidecar:
    """A sidecar that steers, begins with drafting off and records into `folder`. Raises ChildError."""
    telemetry, admin, metrics_port = f"ipc://{runtime}/t", f"ipc://{runtime}/a", free_port()
    view.stage(f"starting the sidecar (admin {admin}, metrics http://127.0.0.1:{metrics_port}/metrics)")
    sidecar = children.start(
        "sidecar", _serve(telemetry, admin, folder, metrics_port), folder / "sidecar.log"
    )
    sidecar.wait_ready(lambda: _answers(admin), SIDECAR_START_S)
    return Sidecar(telemetry, admin)


def wait_connected(engine: Child, base_url: str, sidecar: Sidecar, engine_id: str, start_s: float) -> str:
    """The name of the model, once the engine serves it and the sidecar knows the engine."""
    with httpx.Client(base_url=base_url, timeout=2.0, trust_env=False) as http:
        engine.wait_ready(lambda: bool(_models(http)), start_s)
        engine.wait_ready(lambda: engine_id in _engines(sidecar.admin), CONNECT_S)
        return _models(http)[0]


def _serve(telemetry: str, admin: str, folder: Path, metrics_port: int) -> list[str]:
    return [
        "serve",
        "--steer",
        f"--telemetry={telemetry}",
        f"--admin={admin}",
        f"--record={folder}",
        f"--metrics-port={metrics_port}",
        f"--policy={OFF.policy}",
    ]


def _engine(telemetry: str, runtime: Path, port: int, model: str) -> list[str]:
    verb = [
        "engine",
        "serve",
        f"--sidecar={telemetry}",
        f"--engine-id={ENGINE_ID}",
        f"--state-dir={runtime}",
        f"--port={port}",
        f"--max-batch={MAX_BATCH}",
        f"--k-max={K_MAX}",
        f"--launch-k={LAUNCH_K}",
        f"--min-ngram={MIN_NGRAM}",
    ]
    return [*verb, f"--model={model}"] if model else verb


def _answers(admin: str) -> bool:
    try:
        status(admin, 1.0)
    except ValueError:
        return False
    return True


def _engines(admin: str) -> list[str]:
    try:
        return [engine.engine_id for engine in status(admin, 1.0).engines]
    except ValueError:
        return []  # a busy machine: the next look will tell


def _models(http: httpx.Client) -> list[str]:
    try:
        found = http.get("/v1/models")
        return [str(model["id"]) for model in found.json()["data"]] if found.is_success else []
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []
