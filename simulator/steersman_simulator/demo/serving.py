"""The stack that the demo drives: `steersman serve` beside `steersman engine serve`."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
from msgspec import Struct

from steersman_controller.sidecar.push import status
from steersman_simulator.demo.arms import ARMS
from steersman_simulator.demo.live import View
from steersman_simulator.demo.processes import Child, Children, free_port

SIDECAR_START_S = 60.0
ENGINE_START_S = 300.0
"""A first start converts the bundled model."""

MAX_BATCH = 32
"""Enough that a forward over all drafts of a full batch is bound by arithmetic, also on two cores."""

K_MAX = 8
LAUNCH_K = 0
MIN_NGRAM = 1
"""Draft from the shortest match: a drafter that always has an idea shows best when not to listen."""


class Stack(Struct, frozen=True):
    """A running engine and its sidecar."""

    base_url: str
    model: str
    admin: str
    max_batch: int
    sleep: Callable[[float], None]


def start_stack(children: Children, runtime: Path, folder: Path, model: str, view: View) -> Stack:
    """Both processes, ready and connected. Raises ChildError."""
    telemetry, admin = f"ipc://{runtime}/t", f"ipc://{runtime}/a"
    metrics_port, port = free_port(), free_port()
    base_url = f"http://127.0.0.1:{port}"
    view.stage(f"starting the sidecar (admin {admin}, metrics http://127.0.0.1:{metrics_port}/metrics)")
    sidecar = children.start(
        "sidecar", _serve(telemetry, admin, folder, metrics_port), folder / "sidecar.log"
    )
    sidecar.wait_ready(lambda: _answers(admin), SIDECAR_START_S)
    view.stage(f"starting the engine ({model or 'the bundled model'}, {base_url})")
    engine = children.start("engine", _engine(telemetry, runtime, port, model), folder / "engine.log")
    engine.wait_ready(lambda: bool(_models(base_url)), ENGINE_START_S)
    _wait_connected(engine, admin)
    return Stack(base_url, _models(base_url)[0], admin, MAX_BATCH, time.sleep)


def _serve(telemetry: str, admin: str, folder: Path, metrics_port: int) -> list[str]:
    return [
        "serve",
        "--steer",
        f"--telemetry={telemetry}",
        f"--admin={admin}",
        f"--record={folder}",
        f"--metrics-port={metrics_port}",
        f"--policy={ARMS[0].policy}",
    ]


def _engine(telemetry: str, runtime: Path, port: int, model: str) -> list[str]:
    verb = [
        "engine",
        "serve",
        f"--sidecar={telemetry}",
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


def _models(base_url: str) -> list[str]:
    try:
        found = httpx.get(f"{base_url}/v1/models", timeout=2.0, trust_env=False)
        return [str(model["id"]) for model in found.json()["data"]] if found.is_success else []
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []


def _wait_connected(engine: Child, admin: str) -> None:
    engine.wait_ready(lambda: bool(status(admin, 5.0).engines), 30.0)
