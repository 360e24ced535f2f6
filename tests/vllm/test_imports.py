"""What the adapter brings into vLLM's process: itself, msgspec, pyzmq."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

ONLY = """
import importlib, pkgutil, sys, types

ALLOWED = {*sys.stdlib_module_names, "msgspec", "zmq", "steersman_engine", "steersman_policies", "vllm"}
TAKEN_OUT = [EXTRA]

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED.difference(TAKEN_OUT):
            raise ModuleNotFoundError(f"{name} may not be imported inside vLLM", name=name)

for name in ("vllm", "vllm.logger", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched",
             "vllm.v1.core.sched.async_scheduler", "vllm.v1.core.sched.scheduler"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["vllm.logger"].init_logger = lambda name: None
sys.modules["vllm.v1.core.sched.async_scheduler"].AsyncScheduler = object
sys.modules["vllm.v1.core.sched.scheduler"].Scheduler = object
sys.meta_path.insert(0, Refuse())

import steersman_engine.link
import steersman_engine.adapters.vllm as adapter
for module in pkgutil.iter_modules(adapter.__path__, adapter.__name__ + "."):
    importlib.import_module(module.name)
print(adapter.SteersmanScheduler.__name__)
"""

INSTALLED = """
import sys
import steersman_engine.adapters.vllm.scheduler
ours = [name for name in sys.modules if name.startswith("steersman_")]
assert not any(word in name for name in ours for word in ("controller", "simulator", "decode")), ours
print(steersman_engine.__file__)
"""


def run(python: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=300)


def test_only_msgspec_and_zmq_are_imported() -> None:
    """With every other package out of reach, each module of the adapter and the link still loads."""
    done = run(sys.executable, ONLY.replace("EXTRA", ""))
    assert done.stdout == "SteersmanScheduler\n", done.stderr


def test_the_refusal_can_fail() -> None:
    """Where msgspec is out of reach, too, nothing loads."""
    done = run(sys.executable, ONLY.replace("EXTRA", "'msgspec'"))
    assert "msgspec may not be imported" in done.stderr


def test_the_wheel_alone_is_enough(vllm_python: str) -> None:
    """In vLLM's environment, without our dependencies, the scheduler loads from the installed wheel."""
    done = run(vllm_python, INSTALLED)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(Path(vllm_python).parents[1]), done.stdout
    missing = run(vllm_python, "import simpy")
    assert "ModuleNotFoundError" in missing.stderr, "our dependencies are there: the test proves nothing"
