"""Starts a part of the benchmark with vLLM's interpreter and listens to it."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import steersman_engine
import steersman_policies
from steersman_engine.bench.hook import last_line, serve_command
from steersman_engine.bench.vllm.policy import NAME, Policy
from steersman_engine.bench.vllm.spec import Sizes, Spec

LOG = "vllm.log"
DEFAULT_PYTHON = Path(".venv-vllm/bin/python")


def find_python(given: Path | None) -> Path:
    """vLLM's interpreter. Raises ValueError where there is none."""
    if given is None:
        if DEFAULT_PYTHON.exists():
            return DEFAULT_PYTHON
        raise ValueError(f"--vllm-python: no {DEFAULT_PYTHON} here; name the python of vLLM's environment")
    if not given.exists():
        raise ValueError(f"--vllm-python: {given} does not exist")
    return given


def run_part(
    python: Path, model: Path, folder: Path, sizes: Sizes, seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The figures of one part. `folder` is empty and short.

    Raises RuntimeError in one line where it fails.
    """
    endpoint = f"ipc://{folder}/telemetry.ipc"
    read_end, write_end = os.pipe()
    spec = Spec(
        sizes=sizes,
        channel=write_end,
        model=str(model),
        folder=str(folder),
        sidecar=serve_command(endpoint, folder),
        endpoint=endpoint,
        sidecar_environment=_sidecar_environment(folder),
        seed=seed,
    )
    arguments = ["-m", "steersman_engine.bench.vllm.inside", msgspec.json.encode(spec).decode()]
    with (folder / LOG).open("wb") as log, os.fdopen(read_end) as channel:
        process = subprocess.Popen(  # noqa: S603 - the interpreter that the user names
            [str(python.absolute()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=_environment(folder),
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        try:
            return _listen(channel, progress) or _fail(process, folder / LOG)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its workers and sidecars
            process.wait()


def _listen(channel: Any, progress: Callable[[str], None]) -> dict[str, Any] | None:
    for line in channel:
        message: dict[str, Any] = json.loads(line)
        if "progress" in message:
            progress(message["progress"])
        elif "result" in message:
            result: dict[str, Any] = message["result"]
            return result
        else:
            raise RuntimeError(f"inside vLLM: {message['error']}")
    return None


def _fail(process: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    code = process.wait()
    raise RuntimeError(f"vLLM's python ended with code {code}: {last_line(log)}")


def _environment(folder: Path) -> dict[str, str]:
    """Of vLLM's process: this very code of ours, and nothing else from this environment's packages."""
    packages = folder / "packages"
    packages.mkdir()
    for package in (steersman_engine, steersman_policies):
        (packages / package.__name__).symlink_to(Path(package.__path__[0]).resolve())
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        **_without_ours(os.environ),
        "PYTHONPATH": str(packages),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _sidecar_environment(folder: Path) -> dict[str, str]:
    """Of sidecars: `policy` is installed there."""
    about = folder / "policies" / f"{NAME}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    entry = f"{NAME} = {Policy.__module__}:{Policy.__name__}"
    (about / "entry_points.txt").write_text(f"[steersman.policies]\n{entry}\n")
    paths = [str(about.parent), os.environ.get("PYTHONPATH", "")]
    return {**_without_ours(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("STEERSMAN_")}
