"""The versions that the adapter was written against, and how they declare what it overrides.

A version not listed here, or a method that looks different, may still work. Nobody has tried, so the
adapter then only observes.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

OVERRIDDEN = (
    "__init__",
    "schedule",
    "_update_after_schedule",
    "_update_request_with_output",
    "update_from_output",
    "update_draft_token_ids",
    "add_request",
    "_free_request",
    "shutdown",
)
"""What `SteersmanScheduler` overrides or chooses between. vLLM declares some of them twice: in both of its
schedulers."""

EXPECTED: Mapping[str, Mapping[str, str]] = {
    "0.32.0": {
        "AsyncScheduler.__init__": "(self, *args, **kwargs) -> None",
        "Scheduler.__init__": (
            "(self, vllm_config: vllm.config.vllm.VllmConfig,"
            " kv_cache_config: vllm.v1.kv_cache_interface.KVCacheConfig,"
            " structured_output_manager: vllm.v1.structured_output.StructuredOutputManager,"
            " block_size: int, hash_block_size: int | None = None,"
            " mm_registry: vllm.multimodal.registry.MultiModalRegistry ="
            " <vllm.multimodal.registry.MultiModalRegistry object>,"
            " include_finished_set: bool = False, log_stats: bool = False) -> None"
        ),
        "Scheduler.schedule": (
            "(self, throttle_prefills: bool = False) -> vllm.v1.core.sched.output.SchedulerOutput"
        ),
        "AsyncScheduler._update_after_schedule": (
            "(self, scheduler_output: vllm.v1.core.sched.output.SchedulerOutput) -> None"
        ),
        "Scheduler._update_after_schedule": (
            "(self, scheduler_output: vllm.v1.core.sched.output.SchedulerOutput) -> None"
        ),
        **dict.fromkeys(
            ("AsyncScheduler._update_request_with_output", "Scheduler._update_request_with_output"),
            "(self, request: vllm.v1.request.Request, new_token_ids: list[int],"
            " is_stale: bool = False) -> tuple[list[int], bool]",
        ),
        "Scheduler.update_from_output": (
            "(self, scheduler_output: vllm.v1.core.sched.output.SchedulerOutput,"
            " model_runner_output: vllm.v1.outputs.ModelRunnerOutput)"
            " -> dict[int, vllm.v1.engine.EngineCoreOutputs]"
        ),
        "Scheduler.update_draft_token_ids": (
            "(self, draft_token_ids: vllm.v1.outputs.DraftTokenIds) -> None"
        ),
        "Scheduler.add_request": "(self, request: vllm.v1.request.Request) -> None",
        "Scheduler._free_request": (
            "(self, request: vllm.v1.request.Request, delay_free_blocks: bool = False)"
            " -> tuple[dict[str, typing.Any] | None, dict[str, typing.Any] | None]"
        ),
        "Scheduler.shutdown": "(self) -> None",
    }
}
"""By version, then by class and method."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def release(version: str) -> str:
    """A version without its local part, which only says for what it was built.

    >>> release("0.32.0+cpu"), release("0.32.1.dev3+g1234")
    ('0.32.0', '0.32.1.dev3')
    """
    return version.partition("+")[0]


def signatures(scheduler_class: type) -> dict[str, str]:
    """How vLLM's own classes above this one declare the overridden methods: text by class and method."""
    return {
        f"{owner.__name__}.{name}": _ADDRESS.sub("", str(inspect.signature(owner.__dict__[name])))
        for owner in scheduler_class.__mro__
        if owner.__module__.startswith("vllm.")
        for name in OVERRIDDEN
        if name in owner.__dict__ and not _is_abstract(owner.__dict__[name])
    }


def differences(version: str, found: Mapping[str, str]) -> tuple[str, ...]:
    """What is not as this version declares it, one line each. The version must be in `EXPECTED`."""
    expected = EXPECTED[release(version)]
    names = [*expected, *(name for name in found if name not in expected)]
    return tuple(
        f"{name}: expected {expected.get(name, 'none')}, found {found.get(name, 'none')}"
        for name in names
        if expected.get(name) != found.get(name)
    )


def _is_abstract(method: Any) -> bool:
    return bool(getattr(method, "__isabstractmethod__", False))
