"""Somebody's vLLM: its command, the interpreter beside it, and whether our adapter is installed there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

ADAPTER = "steersman_engine.adapters.vllm"


class Program(Struct, frozen=True):
    """An installed vLLM."""

    vllm: Path
    python: Path


def find_program(given: Path) -> Program:
    """The vLLM that a user named, adapter included. Raises ValueError or OSError in one line.

    >>> find_program(Path("/nowhere/vllm"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    FileNotFoundError: --vllm: no program /nowhere/vllm; allowed is the path of vLLM's command, ...
    """
    found = shutil.which(given)
    if found is None:
        what = f"{given} is not executable" if given.exists() else f"no program {given}"
        raise FileNotFoundError(
            f"--vllm: {what}; allowed is the path of vLLM's command, such as .venv-vllm/bin/vllm"
        )
    # Not resolved: a virtual environment's interpreter is a link that leads out of it.
    python = Path(found).absolute().parent / "python"
    if not os.access(python, os.X_OK):
        raise FileNotFoundError(
            f"--vllm: {found} has no python beside it; allowed is vllm in the bin folder of its environment"
        )
    program = Program(Path(found).absolute(), python)
    _check_adapter(program)
    return program


def ask_steersman(verb: list[str]) -> dict[str, Any]:
    """What a verb of ours prints with --json. Raises ValueError with its own words where it fails."""
    code = "from steersman_controller.cli import main; main()"
    done = _run([sys.executable, "-c", code, *verb, "--json"])
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    if done.returncode:
        raise ValueError(f"steersman {verb[0]}: {found.get('error') or _last_line(done.stderr)}")
    return found


def bundled_model() -> Path:
    """The folder of the bundled model, which our engine's package unpacks. Raises FileNotFoundError."""
    code = "from steersman_engine.decode.bundled import bundled_model; print(bundled_model())"
    done = _run([sys.executable, "-c", code])
    if done.returncode:
        raise FileNotFoundError(f"--model: the bundled one cannot be had: {_last_line(done.stderr)}")
    return Path(_last_line(done.stdout))


def _check_adapter(program: Program) -> None:
    done = _run([str(program.python), "-c", f"import {ADAPTER}"])
    if done.returncode:
        raise ValueError(
            f"--vllm: Steersman's adapter is not installed beside {program.vllm}"
            f" ({_last_line(done.stderr)}); install it with:"
            f" {program.python} -m pip install --no-deps steersman"
        )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
