"""The same promises with a draft model, and on a GPU: graphs, the V2 runner, asynchronous scheduling.

`make test-vllm` runs those of the CPU. The others need `make test-vllm-gpu VLLM_PYTHON=...`, where that
interpreter has vLLM 0.32.0 for CUDA and our wheel.
"""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from random_llama import make_pair
from vllm_sidecar import Sidecar, assert_adds_up
from vllm_world import (
    CODE,
    EAGER,
    K_MAX,
    MAX_BATCH,
    PROMPTS,
    STEERABLE,
    Server,
    assert_same_tokens,
    longest,
    until,
)

from steersman_engine.adapters.vllm.table import bands, with_table

Start = Callable[..., Sidecar]
Launch = Callable[..., Server]

GRAPHS = ("--dtype", "bfloat16", "--gpu-memory-utilization", "0.5")
BFLOAT16_TIE = 0.3
"""Logits between 16 and 32 are 0.125 apart in bfloat16: two such steps."""


class Case(NamedTuple):
    method: str
    flags: tuple[str, ...]
    runner: str
    tie: float
    """How close two tokens must be for rounding to decide: batches of other shapes round differently."""


CASES = [
    pytest.param(
        Case("draft_model", EAGER, "v1, synchronous", 1e-3), marks=pytest.mark.vllm, id="cpu-draft_model"
    ),
    pytest.param(
        Case("draft_model", GRAPHS, "v2, async", BFLOAT16_TIE), marks=pytest.mark.gpu, id="gpu-draft_model"
    ),
    pytest.param(
        Case("ngram", GRAPHS, "v2, synchronous", BFLOAT16_TIE), marks=pytest.mark.gpu, id="gpu-ngram"
    ),
]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, vllm_python: str) -> Case:
    """A way to launch vLLM. Skips where it needs a GPU and vLLM's torch sees none."""
    found: Case = request.param
    if found.flags == GRAPHS:
        if shutil.which("nvidia-smi") is None:
            pytest.skip("no nvidia-smi: this machine has no CUDA device")
        code = "import torch; print(torch.cuda.is_available())"
        seen = subprocess.run([vllm_python, "-c", code], capture_output=True, text=True, check=False)
        if seen.stdout.strip() != "True":
            pytest.skip(f"torch of VLLM_PYTHON={vllm_python} sees no CUDA device")
    return found


@pytest.fixture(scope="module")
def drafting(case: Case, model: Path, servers: Launch, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with that drafter. Random weights repeat nothing, so look-up gets the bundled model."""
    if case.method == "ngram":
        return servers(flags=case.flags, speculative=STEERABLE).wait()
    target, drafter = make_pair(model, tmp_path_factory.mktemp("llama"))
    speculative = {"method": case.method, "model": str(drafter), "num_speculative_tokens": K_MAX}
    table = with_table(speculative, bands(range(K_MAX + 1), MAX_BATCH))
    return servers(model=target, flags=case.flags, speculative=table).wait()


def test_it_may_be_steered(drafting: Server, case: Case, sidecar: Start) -> None:
    """Nothing stands against it, and it runs as this case is meant to."""
    engine = sidecar("--steer").attached().engine()
    assert engine is not None
    assert engine.about.observe_only == ""
    assert engine.about.method == case.method
    assert engine.about.runner.startswith(case.runner)


@pytest.mark.parametrize("k", [3, 0])
def test_a_fixed_k_is_the_longest_draft(drafting: Server, sidecar: Start, k: int) -> None:
    """By vLLM's own count, and the sums over reports are vLLM's."""
    steersman = sidecar("--steer").attached()
    steersman.push("fixed", k=k)
    before = drafting.counters()
    answers = drafting.complete_all({"prompt": prompt, "ignore_eos": True} for prompt in PROMPTS)
    steersman.requests(len(answers))
    assert max(map(longest, answers)) == k
    drafted, accepted, _ = assert_adds_up(drafting, before, steersman)
    assert (drafted > accepted > 0) == (k > 0)


def test_each_request_is_held_to_the_k_of_its_segment(drafting: Server, sidecar: Start) -> None:
    """Also where drafts stay in the worker."""
    steersman = sidecar("--steer").attached()
    steersman.push("by_segment", k={"short": 1, "long": 6}, other=0)
    answers = drafting.complete_all(
        {"prompt": CODE, "ignore_eos": True, "vllm_xargs": {"steersman_segment": segment}}
        for segment in ("short", "long")
    )
    assert [longest(answer) for answer in answers] == [1, 6]


def test_greedy_output_does_not_depend_on_k(drafting: Server, case: Case, sidecar: Start) -> None:
    """Apart from ties."""
    steersman = sidecar("--steer").attached()
    steersman.push("off")
    off = [drafting.complete(prompt, logprobs=2, ignore_eos=True) for prompt in PROMPTS]
    steersman.push("fixed", k=K_MAX)
    steered = [drafting.complete(prompt, ignore_eos=True) for prompt in PROMPTS]
    for reference, answer in zip(off, steered, strict=True):
        assert_same_tokens(reference, answer, tie=case.tie)
    assert not any(answer.drafted for answer in off)
    assert sum(sum(answer.drafted) for answer in steered) > 0


def test_a_killed_sidecar(drafting: Server, sidecar: Start) -> None:
    """Fallback K after the lease; attached again after a restart."""
    first = sidecar("--steer", lease_s=1.0).attached()
    first.push("by_segment", other=6, fallback=1)
    first.stop(signal.SIGKILL)
    until(lambda: longest(drafting.complete(CODE, ignore_eos=True)) == 1, "the fallback K")
    second = sidecar("--steer", lease_s=1.0).attached()
    second.push("by_segment", other=6, fallback=1)
    assert longest(drafting.complete(CODE, ignore_eos=True)) == 6
    engine = second.engine()
    assert engine is not None
    assert engine.about.counters["decisions_after_expiry"] == 0
