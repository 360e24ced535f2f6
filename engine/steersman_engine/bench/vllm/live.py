"""A real vLLM engine with the adapter in it, in this process, and sidecars that come and go."""

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from vllm import EngineArgs, SamplingParams
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.llm_engine import LLMEngine

from steersman_engine.adapters.vllm.scheduler import SteersmanScheduler
from steersman_engine.bench.driven import paired
from steersman_engine.bench.prompts import PROMPTS
from steersman_engine.bench.vllm.attached import Attached, speculative
from steersman_engine.bench.vllm.kills import Killed, real_kills
from steersman_engine.bench.vllm.ratio import ratio
from steersman_engine.bench.vllm.sidecars import Sidecars
from steersman_engine.bench.vllm.spec import Spec
from steersman_engine.bench.vllm.stopwatch import Stopwatch, hooked, idle, looping
from steersman_engine.bench.vllm.watch import Account, account

K = 4
"""Of vLLM's own table, of the plan and of its fallback while speeds are compared: the work is the same."""
K_MAX, REACHABLE_K = 6, (K, 6, 1, 0)
SEGMENTS = ("chat", "code_edit", "extract", "summarise")
REPEATED = "one two three four five six seven eight nine ten " * 8
REPEATED_TOKENS = 400
WARM_BLOCKS, FLOOR_BLOCKS = 2, 4
STATES = ("alive", "stopped", "killed", "restarted")
ARRIVAL_S = 0.5
"""After which what was sent has arrived."""


class Block(Struct, frozen=True):
    """The same requests once more, from the first prompt to the last token."""

    seconds: float
    texts: tuple[tuple[int, ...], ...]
    """Token ids by request; empty for one that did not end."""


def run(spec: Spec, progress: Callable[[str], None]) -> dict[str, Any]:
    """Hook, throughput, and what becomes of requests, leases and telemetry when sidecars die."""
    sidecars = Sidecars(spec.sidecar, spec.sidecar_environment, Path(spec.folder))
    try:
        progress("a real engine starts")
        return _Bench(spec, sidecars, progress).run()
    finally:
        sidecars.kill()


class _Bench:
    """One engine with everything that is done to it."""

    def __init__(self, spec: Spec, sidecars: Sidecars, progress: Callable[[str], None]) -> None:
        os.environ["STEERSMAN_ENGINE_ID"] = "live"
        os.environ["STEERSMAN_REACHABLE_K"] = ",".join(map(str, sorted(REACHABLE_K)))
        self.sizes, self.sidecars = spec.sizes, sidecars
        self.rng = random.Random(spec.seed)  # noqa: S311 - chance that replays
        self.tell = progress
        self.engine = make_engine(spec)
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.attached = Attached(self.scheduler, sidecars)
        self.blocks: list[Block] = []
        self.submitted = 0
        self.observed = 0
        """Requests that the adapter has seen to their end."""

    def progress(self, line: str) -> None:
        """Say where it stands."""
        self.tell(f"{self.sizes.requests} requests in vLLM: {line}")

    def run(self) -> dict[str, Any]:
        """All figures."""
        self.progress("warming up")
        for _ in range(WARM_BLOCKS):
            self.block()
        self.blocks.clear()
        found = {"floor_us": self._instead(idle), "loop_of_20_us": self._instead(looping)}
        found |= {"throughput": self._throughput(), **self._states()}
        killed = self._kills()
        counters = self.attached.link.publisher.all_counters()
        errors = int(self.scheduler._hook is None) + counters["hook_errors"] + counters["publisher_errors"]
        return {
            **found,
            "requests": self._requests(),
            "kills": {
                **_about_kills(killed),
                "over_k": self.attached.watch.over_k,
                "telemetry": _builtins(self._account()),
            },
            "refused": {name: n for name, n in counters.items() if name.startswith("refused.") and n},
            "errors": errors,
        }

    def block(self, *, observed: bool = True) -> Block:
        """Run the requests, all at once, to their ends."""
        ids = [self._add(prompt, self.sizes.block_tokens) for prompt in PROMPTS[: self.sizes.requests]]
        texts: dict[str, tuple[int, ...]] = {}
        began_s = time.perf_counter()
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    texts[output.request_id] = tuple(output.outputs[0].token_ids)
        seconds = time.perf_counter() - began_s
        while self.core.batch_queue:  # an asynchronous engine is a step ahead
            self.engine.step()
        self.observed += len(ids) * observed
        self.blocks.append(Block(seconds, tuple(texts.get(request_id, ()) for request_id in ids)))
        return self.blocks[-1]

    def _add(self, prompt: str, max_tokens: int) -> str:
        self.submitted += 1
        request_id = f"r{self.submitted}"
        segment = SEGMENTS[self.submitted % len(SEGMENTS)]
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            extra_args={"steersman_segment": segment},
        )
        self.engine.add_request(request_id, prompt, sampling)
        return request_id

    def _instead(self, substitute: Callable[[Any], Any]) -> dict[str, Any]:
        """What another hook in the place of ours takes."""
        hook = self.scheduler._hook
        self.scheduler._hook = substitute(hook)
        stopwatch = Stopwatch(self.scheduler._hook)
        for _ in range(FLOOR_BLOCKS):
            self.block(observed=False)
        self.scheduler._hook = hook
        return _builtins(hooked(stopwatch.taken()))

    def _throughput(self) -> dict[str, Any]:
        """The adapter in shadow against vLLM's own scheduler with the sidecar stopped."""
        self.progress("with the adapter in shadow and without it")
        plain = AsyncScheduler if self.core.async_scheduling else Scheduler
        self.sidecars.shadow()
        self.attached.wait(self.block)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(self.sizes.groups):
            spent = {False: 0.0, True: 0.0}
            for is_shadowed in paired(4):
                self.scheduler.__class__ = SteersmanScheduler if is_shadowed else plain
                (self.sidecars.wake if is_shadowed else self.sidecars.stop)()
                spent[is_shadowed] += self.block(observed=is_shadowed).seconds
            for arm, arm_s in spent.items():
                seconds[arm].append(arm_s)
        self.scheduler.__class__ = SteersmanScheduler
        self.sidecars.kill()
        tokens = 2 * self.sizes.requests * self.sizes.block_tokens
        return {
            **_builtins(ratio(seconds[True], seconds[False])),
            "tokens_per_s": round(tokens / statistics.median(seconds[True]), 2),
            "without_tokens_per_s": round(tokens / statistics.median(seconds[False]), 2),
        }

    def _states(self) -> dict[str, Any]:
        """Hook and speed while a steering sidecar lives, hangs, is dead, and is back."""
        self.sidecars.steer(K, K, K)
        self.attached.wait(self.block)
        spent_s: dict[str, list[float]] = {state: [] for state in STATES}
        steps_s: dict[str, list[float]] = {state: [] for state in STATES}
        for group in range(self.sizes.groups):
            for state in STATES:
                self.progress(f"sidecar {state}, {group + 1} of {self.sizes.groups}")
                self.attached.stopwatch.restart()
                self._bring_about(state)
                spent_s[state].append(self.block().seconds)
                steps_s[state] += self.attached.stopwatch.taken()
        self.sidecars.kill()
        speeds = {state: _builtins(ratio(spent_s[state], spent_s["alive"])) for state in STATES[1:]}
        every = [spent for state in STATES for spent in steps_s[state]]
        return {
            "hook_us": {
                **_builtins(hooked(every)),
                **{state: _builtins(hooked(steps_s[state])) for state in STATES},
            },
            "by_method_us": self.attached.stopwatch.by_method_us(),
            "speed": speeds,
        }

    def _bring_about(self, state: str) -> None:
        if state == "stopped":
            self.sidecars.stop()
        elif state == "killed":
            self.sidecars.kill()
        elif state == "restarted":
            self.sidecars.steer(K, K, K)
            self.attached.wait(self.block)

    def _kills(self) -> list[Killed]:
        killed = real_kills(self.sizes.kills, self.rng, self.attached, self._step, self.progress)
        self.engine.abort_request(list(self.scheduler.requests), internal=True)
        return killed

    def _step(self) -> None:
        """One step with as many requests as ever, all of which repeat themselves: drafts are long."""
        while len(self.scheduler.requests) < self.sizes.requests:
            self._add(f"{self.rng.random()} {REPEATED}", REPEATED_TOKENS)
            self.observed += 1
        self.engine.step()

    def _requests(self) -> dict[str, int]:
        texts = [text for block in self.blocks for text in block.texts]
        first = self.blocks[0].texts
        changed = (text != own for block in self.blocks for text, own in zip(block.texts, first, strict=True))
        return {
            "run": len(texts),
            "lost": sum(len(text) != self.sizes.block_tokens for text in texts),
            "changed": sum(changed),
        }

    def _account(self) -> Account:
        link, wire = self.attached.link, self.attached.wire
        self.scheduler.shutdown()
        time.sleep(ARRIVAL_S)
        self.sidecars.kill()
        produced = self.attached.watch.steps + self.observed + wire.sent["hello"] + wire.acks
        return account(produced, self.sidecars.frames(), link.publisher.all_counters()["dropped"])


def make_engine(spec: Spec) -> Any:
    """vLLM with the adapter, its core in this process and its worker where vLLM would have it."""
    table, max_num_seqs = speculative(K_MAX, REACHABLE_K, spec.sizes.requests)
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=spec.model,
            dtype="float32",
            max_model_len=1_024,
            max_num_seqs=max_num_seqs,
            speculative_config=table,
            enforce_eager=True,  # it starts in half a minute
            scheduler_cls="steersman_engine.adapters.vllm.SteersmanScheduler",
            # Of the core in this process vLLM would conclude that the worker is to be here, too.
            distributed_executor_backend="mp" if current_platform.is_cpu() else None,
        )
    )


def _about_kills(killed: list[Killed]) -> dict[str, Any]:
    fallback_s = [k.trial.fallback_after_s for k in killed if k.trial.fallback_after_s is not None]
    return_s = [k.returned_after_s for k in killed if k.returned_after_s is not None]
    return {
        "kills": len(killed),
        "decisions_after_expiry": sum(k.trial.decisions_after_expiry for k in killed),
        "without_fallback": len(killed) - len(fallback_s),
        "without_return": len(killed) - len(return_s),
        "fallback_after_s": _spread(fallback_s),
        "returned_after_s": _spread(return_s),
    }


def _spread(seconds: list[float]) -> dict[str, float | None]:
    return {
        "p50": round(statistics.median(seconds), 4) if seconds else None,
        "max": round(max(seconds), 4) if seconds else None,
    }


def _builtins(record: Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
