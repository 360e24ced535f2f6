"""vLLM's own scheduler, with and without the adapter, around a worker that has no model."""

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from steersman_engine.adapters.vllm.scheduler import SteersmanScheduler
from steersman_engine.bench.driven import SEGMENTS, paired, wait
from steersman_engine.bench.hook import BLOCK_STEPS, difference, trimmed_mean
from steersman_engine.bench.vllm.attached import Attached, speculative, timed
from steersman_engine.bench.vllm.policy import OTHERS
from steersman_engine.bench.vllm.sidecars import Sidecars
from steersman_engine.bench.vllm.spec import Spec
from steersman_engine.bench.vllm.stopwatch import Hooked, Stopwatch, hooked, idle, looping
from steersman_engine.bench.vllm.virtual import Trials, virtual_trials
from steersman_engine.bench.vllm.worker import Driven, Worker

K, OTHER_K = 8, 4
"""Of the plan and, the first of them, of vLLM's own table: steered or not, the same is drafted."""
K_MAX, REACHABLE_K = 8, (8, 6, 4, 1, 0)
PROMPT_TOKENS = 8
WARM_STEPS = 10
BLOCKS = 20_000


def run(spec: Spec, progress: Callable[[str], None]) -> dict[str, Any]:
    """Hook, whole step and kills of the synchronous and of the asynchronous scheduler."""
    rng = random.Random(spec.seed)  # noqa: S311 - chance that replays
    sidecars = Sidecars(spec.sidecar, spec.sidecar_environment, Path(spec.folder))
    try:
        return {
            name: _Bench(spec, rng, sidecars, progress, is_async=is_async).run()
            for name, is_async in (("synchronous", False), ("asynchronous", True))
        }
    finally:
        sidecars.kill()


class _Bench:
    """One scheduler with everything that is done to it."""

    def __init__(
        self,
        spec: Spec,
        rng: random.Random,
        sidecars: Sidecars,
        progress: Callable[[str], None],
        *,
        is_async: bool,
    ) -> None:
        self.spec, self.sizes, self.rng, self.sidecars = spec, spec.sizes, rng, sidecars
        self.name = "asynchronous" if is_async else "synchronous"
        self.tell = progress
        self.worker = Worker(rng)
        os.environ["STEERSMAN_ENGINE_ID"] = f"driven-{self.name}"
        os.environ["STEERSMAN_REACHABLE_K"] = ",".join(map(str, REACHABLE_K))
        self.scheduler = make_scheduler(spec, is_async=is_async)
        self.driven = Driven(
            self.scheduler,
            self.worker,
            is_async=is_async,
            work=partial(wait, spec.sizes.step_s),
            sampled=_sampled,
            drafted=DraftTokenIds,
        )
        self.attached = Attached(self.scheduler, sidecars)
        self.requests = 0
        freeze_gc_heap()  # as vLLM does

    def progress(self, line: str) -> None:
        """Say where it stands."""
        self.tell(f"{self.name}, {self.sizes.requests} requests without a model: {line}")

    def run(self) -> dict[str, Any]:
        """All figures."""
        floor, loop = self._instead(idle), self._instead(looping)
        self.sidecars.steer(K, OTHER_K, K)
        self.fill(self.sizes.requests)
        self.attached.wait(self.driven.step)
        found: dict[str, Any] = {} if self.driven.is_async else {"difference": self._difference()}
        states = self._states()
        self.attached.link.close()
        self.sidecars.kill()
        counters = self.attached.link.publisher.all_counters()
        self.progress(f"{self.sizes.kills} kills on a virtual clock")
        trials = self._virtual()
        return {
            **found,
            "hook_us": msgspec.to_builtins(states),
            "floor_us": msgspec.to_builtins(floor),
            "loop_of_20_us": msgspec.to_builtins(loop),
            "by_method_us": self.attached.stopwatch.by_method_us(),
            "refused": {name: n for name, n in counters.items() if name.startswith("refused.") and n},
            "errors": int(self.scheduler._hook is None) + counters["hook_errors"],
            "virtual": msgspec.to_builtins(trials),
        }

    def fill(self, requests: int) -> None:
        """Replace whatever runs by new requests, and run these for a few steps."""
        self.driven.drain()
        self.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        self.worker.forget()
        for index in range(requests):
            self.requests += 1
            request_id, segment = f"r{self.requests}", SEGMENTS[index % len(SEGMENTS)]
            self.worker.longest[request_id] = OTHER_K if segment in OTHERS else K
            self.scheduler.add_request(_request(request_id, segment))
        self.worker.outcomes = None

    def _instead(self, substitute: Callable[[Any], Any]) -> Hooked:
        """What another hook in the place of ours takes."""
        hook = self.scheduler._hook
        self.scheduler._hook = substitute(hook)
        stopwatch = Stopwatch(self.scheduler._hook)
        self.fill(self.sizes.requests)
        self._step(self.sizes.steps // 2 + WARM_STEPS)
        self.driven.drain()
        self.scheduler._hook = hook
        return hooked(stopwatch.taken()[WARM_STEPS:])

    def _states(self) -> dict[str, Hooked]:
        return {state: self._state(state) for state in ("alive", "stopped", "killed", "restarted")}

    def _state(self, state: str) -> Hooked:
        self.progress(f"sidecar {state}")
        self.fill(self.sizes.requests)
        self._step(WARM_STEPS)
        stopwatch = self.attached.stopwatch
        stopwatch.restart()
        if state == "stopped":
            self.sidecars.stop()
        elif state == "killed":
            self.sidecars.kill()
        elif state == "restarted":
            self.sidecars.steer(K, OTHER_K, K)
            self.attached.wait(self.driven.step)
        self._step(self.sizes.steps)
        return hooked(stopwatch.taken())

    def _difference(self) -> Any:
        """Whole steps with the adapter against vLLM's own, in blocks of the same requests."""
        self.progress("with and without the adapter")
        blocks: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(self.sizes.groups):
            self.fill(self.sizes.requests)
            self._step(WARM_STEPS)
            for is_steered in paired(4):
                # Between steps nothing is in flight here, and both classes keep the same state.
                self.scheduler.__class__ = SteersmanScheduler if is_steered else Scheduler
                blocks[is_steered].append(trimmed_mean(self._step(BLOCK_STEPS)))
            self.scheduler.__class__ = SteersmanScheduler
        return msgspec.to_builtins(difference(blocks[False], blocks[True]))

    def _step(self, steps: int) -> list[float]:
        return [timed(self.driven.step) for _ in range(steps)]

    def _virtual(self) -> Trials:
        return virtual_trials(
            self.sizes.kills,
            self.rng,
            Path(self.spec.folder),
            self.driven,
            hello=self.attached.link.executor.hello,
            clamp=self.attached.hook.clamp,
            fill=self.fill,
        )


def make_scheduler(spec: Spec, *, is_async: bool) -> Any:
    """A `SteersmanScheduler` for `spec.sizes.requests`, as vLLM's engine core would make it."""
    table, max_num_seqs = speculative(K_MAX, REACHABLE_K, spec.sizes.requests)
    arguments = EngineArgs(
        model=spec.model,
        dtype="float32",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=16_384,
        enable_prefix_caching=False,
        speculative_config=table,
    )
    return scheduler_without_model(arguments, is_async=is_async, blocks=BLOCKS)


def scheduler_without_model(
    arguments: EngineArgs, *, is_async: bool, blocks: int, block_size: int | None = None
) -> Any:
    """A `SteersmanScheduler` over a KV cache of `blocks` that nobody fills."""
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = is_async  # vLLM forces it on or off by the device
    config.cache_config.num_gpu_blocks = blocks
    if block_size is not None:
        config.cache_config.block_size = block_size
    size = config.cache_config.block_size
    kv = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=config.model_config.dtype)
    return SteersmanScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], kv)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=True,
    )


def _request(request_id: str, segment: str) -> Any:
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=1 << 20,
        ignore_eos=True,
        extra_args={"steersman_segment": segment},
    )
    return Request(request_id, [1] * PROMPT_TOKENS, sampling, None)


def _sampled(ids: list[str], tokens: list[list[int]]) -> Any:
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: at for at, request_id in enumerate(ids)},
        sampled_token_ids=tokens,
    )
