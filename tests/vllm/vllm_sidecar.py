"""A real sidecar beside a real vLLM server, and what tests read from its recording."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_world import Server, until

from steersman_controller.sidecar.admin import EngineStatus, NoSidecar, PolicyRequest
from steersman_controller.sidecar.push import request, status
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import RequestReport, StepReport

ENGINE_ID = "vllm-0"


class Sidecar:
    """`steersman serve` as a real process, where the engines in this folder look for it."""

    def __init__(self, folder: Path, *flags: str, lease_s: float) -> None:
        self.recording = folder / f"recording-{time.monotonic_ns()}"
        self._environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(folder),
            "PYTHONPATH": str(folder),
            "STEERSMAN__LEASE_S": str(lease_s),
        }
        command = [sys.executable, "-m", "steersman_controller", "serve", "--json", "--metrics-port", "0"]
        with (folder / "sidecar.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--record", str(self.recording), *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                text=True,
            )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, (folder / "sidecar.log").read_text()
        self.admin: str = json.loads(ready)["admin"]
        self.telemetry: str = json.loads(ready)["telemetry"]
        self._first_step = self._first_request = 0

    def engine(self) -> EngineStatus | None:
        """The engine as the sidecar sees it; None before it has said hello."""
        with suppress(NoSidecar):
            return next(iter(status(self.admin, 5.0).engines), None)
        return None

    def attached(self) -> "Sidecar":
        """Wait until the engine has a plan and a lease. `steps` and `requests` begin here."""

        def leased() -> bool:
            engine = self.engine()
            return engine is not None and engine.lease_age_s is not None

        until(leased, "the engine has a lease")
        seen = -1
        while seen != (seen := len(list(read_recording(self.recording).records()))):
            time.sleep(0.5)  # what the engine had kept for a sidecar arrives first
        steps, requests = read_recording(self.recording).steps(), read_recording(self.recording).requests()
        self._first_step = max((report.step + 1 for report in steps), default=0)
        self._first_request = max((report.request + 1 for report in requests), default=0)
        return self

    def push(self, policy: str, **params: Any) -> None:
        """Put a policy in force."""
        outcome = request(self.admin, PolicyRequest(policy=policy, params=params), 20.0)
        assert outcome.is_done, outcome

    def verb(self, *words: str) -> str:
        """What an operator's verb prints; it must succeed."""
        command = [sys.executable, "-m", "steersman_controller", *words, "--admin", self.admin]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def steps(self) -> list[StepReport]:
        """Reports of steps since it was attached."""
        found = read_recording(self.recording).steps()
        return [report for report in found if report.step >= self._first_step]

    def requests(self, wanted: int = 0) -> list[RequestReport]:
        """Reports of requests that ended since it was attached, when so many are there.

        The steps that they took part in have been reported by then, too.
        """

        def reported() -> list[RequestReport]:
            found = read_recording(self.recording).requests()
            return [report for report in found if report.request >= self._first_request]

        until(lambda: len(reported()) >= wanted, f"{wanted} requests are reported")
        return reported()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, in an orderly way or not."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(30.0)


def verified(steps: Iterable[StepReport]) -> tuple[int, int, int]:
    """Draft tokens, accepted ones, tokens committed: the sums over reports."""
    reports = list(steps)
    outcomes = [outcome for report in reports for group in report.groups for outcome in group.outcomes]
    drafted = sum(drafted * count for drafted, _, count in outcomes)
    accepted = sum(accepted * count for _, accepted, count in outcomes)
    return drafted, accepted, sum(report.committed_tokens for report in reports)


def assert_adds_up(server: Server, before: tuple[int, int, int], steersman: Sidecar) -> tuple[int, int, int]:
    """The sums over reports are what vLLM's counters have grown by."""

    def grown() -> tuple[int, int, int]:
        drafted, accepted, generated = (
            now - then for now, then in zip(server.counters(), before, strict=True)
        )
        return drafted, accepted, generated

    reported = verified(steersman.steps())
    until(lambda: grown() == reported, f"vLLM's counters {grown()} become {reported}", 5.0)
    return reported
