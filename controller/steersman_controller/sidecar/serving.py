"""The sidecar as a process: real clock, real signals, and what it says when it is ready."""

import gc
import json
import logging
import os
import signal
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from steersman_controller.belief.prior import Prior
from steersman_controller.sidecar.config import PriorChoice, SidecarConfig
from steersman_controller.sidecar.endpoints import claim, prepare
from steersman_controller.sidecar.metrics import Metrics
from steersman_controller.sidecar.server import Sidecar
from steersman_controller.sidecar.snapshots import Snapshots
from steersman_controller.trace.recorder import Recorder
from steersman_controller.warm_up import warm_up
from steersman_policies import policy

log = logging.getLogger("steersman")


def serve(config: SidecarConfig, *, as_json: bool) -> int:
    """Serve until SIGTERM or SIGINT, then exit code 0. Raises ValueError where it cannot start."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    collect_rarely()
    policy.load(config.policy.name, config.policy.params)  # refuse a bad one before anything is touched
    priors = read_given(config.prior)
    stop = _Stop()
    with ExitStack() as held:
        for flag, endpoint in (("--telemetry", config.telemetry), ("--admin", config.admin)):
            prepare(endpoint, flag=flag, insecure=config.insecure)
            lock = claim(endpoint, flag=flag)
            if lock is not None:
                held.enter_context(lock)
        log.info("preparing: compiles for some 20 s when it is new on this machine")
        warm_up()
        metrics = Metrics(version("steersman"), time.time)
        metrics_url = metrics.serve(config.metrics_port) if config.metrics_port else ""
        sidecar = Sidecar(
            config,
            clock=time.monotonic,
            epoch=time.time_ns() // 1000,
            version=version("steersman"),
            metrics=metrics,
            recorder=Recorder(Path(config.record)) if config.record else None,
            snapshots=Snapshots(Path(config.state_dir)) if config.state_dir else None,
            priors=priors,
        )
        try:
            _announce(sidecar, metrics_url, as_json)
            sidecar.run(lambda: stop.requested)
        finally:
            sidecar.close()
    return 0


def read_given(choice: PriorChoice) -> tuple[Prior, ...]:
    """The priors that were asked for. Raises ValueError or OSError in one line."""
    sheets = choice.target_config or choice.drafter_config or choice.device
    if choice.bundle and sheets:
        raise ValueError("--bundle: excludes --target-config, --drafter-config and --device")
    if choice.group and not choice.bundle:
        raise ValueError("--bundle-group: needs --bundle")
    if sheets and not (choice.target_config and choice.device):
        raise ValueError("--target-config: needs --device, and the other way round")
    if not (choice.bundle or sheets):
        return ()
    from steersman_controller.train.priors import hardware_prior, read_priors

    if choice.bundle:
        return read_priors(Path(choice.bundle), choice.group)
    from steersman_controller.train.hardware import Hardware

    drafter = Path(choice.drafter_config) if choice.drafter_config else None
    hardware = Hardware(Path(choice.target_config), choice.device, drafter, choice.tensor_parallel)
    return (hardware_prior(hardware),)


def collect_rarely() -> None:
    """Let the collector of cycles run less often in this process: reports are made of small tuples that hold
    no cycle and are gone within a second."""
    gc.set_threshold(20_000, 20, 50)


class _Stop:
    """Set by SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def _announce(sidecar: Sidecar, metrics_url: str, as_json: bool) -> None:
    config = sidecar.config
    ready = {
        "telemetry": config.telemetry,
        "admin": config.admin,
        "metrics_url": metrics_url,
        "recording": config.record,
        "mode": config.controller.mode,
        "policy": config.policy.name,
        "prior": sidecar.fleet.started.priors[0].source if sidecar.fleet.started.priors else "",
        "pid": os.getpid(),
        "epoch": sidecar.epoch,
        "version": sidecar.version,
    }
    if as_json:
        print(json.dumps(ready), flush=True)
    log.info("ready: %s", ", ".join(f"{key} {value}" for key, value in ready.items() if value != ""))
