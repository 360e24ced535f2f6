"""The same promises on a GPU: graphs, and with a draft model the V2 runner and asynchronous scheduling.

`make test-vllm-gpu VLLM_PYTHON=...`, where that interpreter has vLLM 0.32.0 for CUDA and our wheel.
"""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from random_llama import make_pair
from vllm_sidecar import Sidecar, assert_adds_up
from vllm_world import (
    CODE,
    K_MAX,
    MAX_BATCH,
    NGRAM,
    PROMPTS,
    STEERABLE,
    Server,
    assert_same_tokens,
    longest,
    until,
)

from steersman_engine.adapters.vllm.table import bands, with_table

pytestmark = pytest.mark.gpu
Start = Callable[..., Sidecar]
Launch = Callable[..., Server]

FLAGS = ("--dtype", "bfloat16", "--gpu-memory-utilization", "0.5")
TIE = 0.1
"""bfloat16 rounds differently for other shapes."""


@pytest.fixture(scope="module")
def pair(vllm_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a drafter. Skips where vLLM's torch sees no GPU."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi: this machine has no CUDA device")
    seen = subprocess.run([vllm_python, "-c", "import torch; print(torch.cuda.is_available())"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    if seen.stdout.strip() != "True":
        pytest.skip(f"VLLM_PYTHON: torch of {vllm_python} sees no CUDA device")
    return make_pair(model, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", params=["draft_model", "ngram"])
def gpu(request: pytest.FixtureRequest, pair: tuple[Path, Path], servers: Launch) -> Server:
    """A server with graphs."""
    target, drafter = pair
    by_model = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": K_MAX}
    speculative = STEERABLE if request.param == NGRAM["method"] else with_table(
        by_model, bands(range(K_MAX + 1), MAX_BATCH)
    )  # fmt: skip
    return servers(model=target, speculative=speculative, flags=FLAGS).wait()


def test_it_may_be_steered(gpu: Server, sidecar: Start) -> None:
    """Nothing stands against it; the V2 runner, and with a draft model asynchronous scheduling."""
    engine = sidecar("--steer").attached().engine()
    assert engine is not None
    assert engine.about.observe_only == "", gpu.text()
    scheduling = "async" if engine.about.method == "draft_model" else "synchronous"
    assert engine.about.runner.startswith(f"v2, {scheduling}")


@pytest.mark.parametrize("k", [3, 0])
def test_a_fixed_k_is_the_longest_draft(gpu: Server, sidecar: Start, k: int) -> None:
    """By vLLM's own count, and the sums over reports are vLLM's."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=k)
    before = gpu.counters()
    answers = gpu.complete_all({"prompt": prompt, "ignore_eos": True} for prompt in PROMPTS)
    steersman.requests(len(answers))
    assert max(map(longest, answers)) == k
    assert_adds_up(gpu, before, steersman)


def test_each_request_is_held_to_the_k_of_its_segment(gpu: Server, sidecar: Start) -> None:
    """Also where drafts stay in the worker."""
    steersman = sidecar("--steer").attached()
    steersman.push("by_segment", k={"short": 1, "long": 6}, other=0)
    answers = gpu.complete_all(
        {"prompt": CODE, "ignore_eos": True, "vllm_xargs": {"steersman_segment": segment}}
        for segment in ("short", "long")
    )
    assert longest(answers[0]) <= 1
    assert longest(answers[1]) <= 6


def test_greedy_output_does_not_depend_on_k(gpu: Server, sidecar: Start) -> None:
    """Apart from near ties."""
    steersman = sidecar("--steer").attached()
    steersman.push("off")
    off = [gpu.complete(prompt, logprobs=2, ignore_eos=True) for prompt in PROMPTS]
    steersman.push("fixed", k=K_MAX)
    steered = [gpu.complete(prompt, ignore_eos=True) for prompt in PROMPTS]
    for reference, answer in zip(off, steered, strict=True):
        assert_same_tokens(reference, answer, tie=TIE)
    assert sum(sum(answer.drafted) for answer in steered) > 0


def test_a_killed_sidecar(gpu: Server, sidecar: Start) -> None:
    """Fallback K after the lease; attached again after a restart."""
    first = sidecar("--steer").attached()
    first.push("by_segment", other=6, fallback=1)
    first.stop(signal.SIGKILL)
    until(lambda: longest(gpu.complete(CODE, ignore_eos=True)) <= 1, "the fallback K")
    second = sidecar("--steer").attached()
    second.push("by_segment", other=6, fallback=1)
    assert longest(gpu.complete(CODE, ignore_eos=True)) > 1
    engine = second.engine()
    assert engine is not None
    assert engine.about.counters["decisions_after_expiry"] == 0
