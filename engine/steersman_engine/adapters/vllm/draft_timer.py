"""The drafter's seconds, measured in vLLM's worker and sent along with each step's output.

A scheduler cannot see them. This is an entry of vLLM's plugin group `vllm.general_plugins`, off unless
``STEERSMAN_DRAFT_TIMER=1``, since it wraps two methods of vLLM's V1 model runner. It times what runs on
the CPU to its end (any drafter of a CPU engine, and n-gram look-up everywhere); the launches of a GPU
drafter return before its kernels are done, so there it measures nothing.
"""

import functools
import os
import time
from typing import Any

SWITCH = "STEERSMAN_DRAFT_TIMER"

DRAFT_SECONDS = "steersman_draft_s"
"""Attribute of a `ModelRunnerOutput`; missing where nothing was drafted."""

_SPENT = "_steersman_draft_s"


def is_wanted(device: str, method: str) -> bool:
    """Whether the outputs of such an engine will carry the drafter's seconds."""
    return os.environ.get(SWITCH) == "1" and (device == "cpu" or method == "ngram")


def register() -> None:
    """What vLLM calls in each of its processes, perhaps more than once."""
    if os.environ.get(SWITCH) != "1":
        return
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    install(GPUModelRunner)


def install(runner: Any) -> None:
    """Wrap a model runner class, once."""
    if hasattr(runner, _SPENT):
        return
    setattr(runner, _SPENT, 0.0)
    propose, sample = runner.propose_draft_token_ids, runner.sample_tokens

    @functools.wraps(propose)
    def timed_propose(self: Any, *arguments: Any, **named: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return propose(self, *arguments, **named)
        finally:
            setattr(self, _SPENT, getattr(self, _SPENT) + time.perf_counter() - began_s)

    @functools.wraps(sample)
    def timed_sample(self: Any, *arguments: Any, **named: Any) -> Any:
        setattr(self, _SPENT, 0.0)
        output = sample(self, *arguments, **named)
        spent_s = getattr(self, _SPENT)
        # The output without tokens is one object shared by all steps, and nothing was drafted for it.
        if spent_s and is_wanted(str(self.device.type), str(self.speculative_config.method)):
            setattr(output, DRAFT_SECONDS, spent_s)
        return output

    runner.propose_draft_token_ids, runner.sample_tokens = timed_propose, timed_sample
