"""From a scheduler that vLLM has just built to a hook on it, or to none and a word why."""

import os
from contextlib import suppress
from logging import Logger
from typing import Any

from steersman_engine.adapters.vllm import draft_timer
from steersman_engine.adapters.vllm.checks import Verdict, judge, refusal
from steersman_engine.adapters.vllm.facts import Facts, read_facts
from steersman_engine.adapters.vllm.hook import Hook
from steersman_engine.adapters.vllm.settings import read_settings
from steersman_engine.adapters.vllm.steps import StepReader
from steersman_engine.link import Link
from steersman_policies.messages import Fingerprint, Hello
from steersman_policies.units import K_LIMIT


def attach(scheduler: Any, logger: Logger) -> Hook:
    """A hook with a running link. Logs what the operator must read.

    Raises ValueError, and so keeps vLLM from starting, for settings that are wrong and, where they say
    strict, for a launch that could not be steered.
    """
    if getattr(scheduler.vllm_config, "diffusion_config", None) is not None:
        raise ValueError("a diffusion model needs the scheduler of its own: start without --scheduler-cls")
    settings = read_settings(os.environ)
    facts = read_facts(scheduler.vllm_config, scheduler)
    verdict = judge(facts, settings)
    for line in verdict.lines:
        logger.warning("Steersman: %s", line)
    refused = refusal(verdict, settings)
    if refused is not None:
        raise ValueError(refused)
    engine_id = settings.engine_id_of(facts.data_parallel_rank)

    def failed(error: Exception) -> None:
        hook.fault = error

    link = Link(
        engine_id,
        hello(facts, verdict),
        settings.sidecar,
        state_dir=settings.state_dir,
        insecure=settings.insecure,
        read=StepReader(scheduler.get_kv_cache_usage, failed),
    )
    hook = Hook(link, clamp=verdict.clamp, reachable_k=verdict.reachable_k)
    # The pause file goes there, and an operator in a hurry makes no folders.
    with suppress(OSError):
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    link.start()
    what = f"observes only ({verdict.observe_only})" if verdict.observe_only else "follows its sidecar"
    logger.info("Steersman: engine %s %s at %s", engine_id, what, settings.sidecar)
    return hook


def hello(facts: Facts, verdict: Verdict) -> Hello:
    """What the engine tells the sidecar about itself."""
    launch_k = facts.lookup[1] if len(facts.lookup) > 1 else facts.k_max
    scheduling = "async" if facts.is_async else "synchronous"
    return Hello(
        fingerprint=Fingerprint(
            engine="vllm",
            engine_version=facts.vllm_version,
            target=facts.model,
            drafter=facts.drafter,
            drafter_version="",
            method=facts.method,
            quantisation=facts.quantisation,
            dtype=facts.dtype,
            device=facts.device,
            graph_mode=facts.graph_mode,
            tensor_parallel=facts.tensor_parallel,
            pipeline_parallel=facts.pipeline_parallel,
            data_parallel=facts.data_parallel,
        ),
        k_max=min(facts.k_max, K_LIMIT),
        reachable_k=verdict.reachable_k,
        k_floor=0,
        launch_k=min(launch_k, K_LIMIT),
        max_batch=facts.max_num_seqs,
        per_request_k=verdict.clamp,
        draft_timing=draft_timer.is_wanted(facts.device, facts.method),
        confidence=False,
        # vLLM runs the drafter's first forward also at K = 0, which keeps its cache in step.
        drafter_state_survives_off=True,
        observe_only=verdict.observe_only,
        runner=f"{facts.runner}, {scheduling}, {'tested' if verdict.tested else 'untested'}",
    )
