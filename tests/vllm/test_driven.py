"""The adapter inside vLLM's own scheduler without a server around it: what is counted, and by whom."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from vllm_world import HERE

pytestmark = pytest.mark.vllm

DRIVE = "import sys; sys.path.insert(0, {here!r}); import driven_world; from pathlib import Path; {first}; "
MAIN = "driven_world.main({model!r}, Path({folder!r}))"


def drive(python: str, model: Path, folder: Path, first: str = "pass") -> list[dict[str, Any]]:
    """All runs, after `first` was executed."""
    code = (DRIVE + MAIN).format(here=str(HERE), model=str(model), folder=str(folder), first=first)
    return [json.loads(line) for line in output(python, "-c", code).splitlines() if line.startswith("{")]


def output(*command: str) -> str:
    """What a program prints that ends well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_counts_are_vllms_own_whatever_happens_to_a_request(
    vllm_python: str, model: Path, tmp_path: Path
) -> None:
    """Aborts, preemption, a cache thrown away, chunked prompts, streamed input; synchronous and not."""
    runs = drive(vllm_python, model, tmp_path)
    assert len(runs) == 8
    for run in runs:
        assert run["ours"] == run["vllms"], run
        assert run["wrong"] == {}, run
        assert run["vllms"]["drafted"] > 500, run
    happened = {name for run in runs for name, times in run["happened"].items() if times}
    assert happened == {"abort", "preempted", "reset", "more input"}


@pytest.mark.parametrize(
    "fault",
    [
        "from steersman_engine.adapters.vllm import hook; hook._is_discarded = lambda request: False",
        "from steersman_engine.adapters.vllm.steps import Step;"
        " whole = lambda step: [[5] * n for n in step.sampled];"
        " Step.tokens = property(whole, lambda step, tokens: None)",
    ],
)
def test_counts_that_are_off_are_noticed(vllm_python: str, model: Path, tmp_path: Path, fault: str) -> None:
    """Output that vLLM throws away, or cuts at a stop, counted all the same."""
    runs = drive(vllm_python, model, tmp_path, fault)
    assert any(run["ours"] != run["vllms"] for run in runs)


def test_a_worker_in_the_schedulers_process(vllm_python: str, model: Path, tmp_path: Path) -> None:
    """It goes on changing lists that it has given away; the adapter must not read them later."""
    found = output(vllm_python, str(HERE / "in_process.py"), str(model), str(tmp_path))
    assert found.splitlines()[-1] == "WENT ON UniProcExecutor"
