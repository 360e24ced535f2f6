"""What a launch looks like, read from vLLM's configuration and scheduler, attribute by attribute.

Nothing here raises: an attribute that is not where it was in the tested version is named in
`Facts.unread`, and then nobody steers.
"""

import dataclasses
import enum
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from msgspec import Struct, structs

from steersman_engine.adapters.vllm.signatures import signatures
from steersman_engine.adapters.vllm.table import TABLE_KEY

NO_METHOD = "none"
UNKNOWN = "unknown"
MAX_NAME = 200

_DERIVED = ("target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config")
"""Fields of a speculative configuration that vLLM fills in and nobody can give."""

_T = TypeVar("_T")


class Facts(Struct, frozen=True):
    """A launch, as far as it decides about steering or belongs into a fingerprint."""

    vllm_version: str
    runner: Literal["v1", "v2"]
    is_async: bool
    method: str
    """`none` without speculation."""
    k_max: int
    """`num_speculative_tokens`; 0 without speculation."""
    lookup: tuple[int, ...]
    """K by scheduled requests, index 0 unused; empty where there is no table."""
    max_num_seqs: int
    data_parallel: int
    data_parallel_rank: int
    tensor_parallel: int
    pipeline_parallel: int
    adaptive_verification: bool
    speculative: dict[str, Any]
    """What the user gave to `--speculative-config`, the table left out."""
    signatures: dict[str, str]
    """The overridden methods as found, by class and name."""
    model: str
    drafter: str
    drafter_type: str
    """Model type of a drafter of its own; vLLM calls all kinds of `mtp` by one name."""
    dtype: str
    quantisation: str
    device: str
    graph_mode: str
    unread: tuple[str, ...] = ()
    """Facts that could not be read; what stands in their place means nothing."""


class _Reading:
    """Reads facts and remembers those that could not be read."""

    def __init__(self) -> None:
        self.unread: list[str] = []

    def __call__(self, name: str, read: Callable[[], _T], instead: _T) -> _T:
        try:
            return read()
        except Exception:  # whatever an unknown version does when it is asked
            self.unread.append(name)
            return instead


def read_facts(vllm_config: Any, scheduler: Any) -> Facts:
    """The facts of a launch, for vLLM's `VllmConfig` and a scheduler that has been initialised."""
    read, config = _Reading(), vllm_config
    spec = read("speculative_config", lambda: config.speculative_config, None)
    facts = Facts(
        vllm_version=read("vllm_version", lambda: str(sys.modules["vllm"].__version__), UNKNOWN),
        runner=read("runner", lambda: "v2" if _flag(scheduler.use_v2_model_runner) else "v1", "v1"),
        is_async=read("async_scheduling", lambda: _flag(config.scheduler_config.async_scheduling), True),
        method=read("method", lambda: NO_METHOD if spec is None else str(spec.method), NO_METHOD),
        k_max=read("k_max", lambda: 0 if spec is None else int(spec.num_speculative_tokens), 0),
        lookup=read("table", lambda: tuple(map(int, scheduler.dynamic_sd_lookup or ())), ()),
        max_num_seqs=read("max_num_seqs", lambda: int(config.scheduler_config.max_num_seqs), 1),
        data_parallel=read("data_parallel", lambda: _data_parallel(config.parallel_config), 1),
        data_parallel_rank=read("rank", lambda: int(config.parallel_config.data_parallel_index), 0),
        tensor_parallel=read("tensor_parallel", lambda: int(config.parallel_config.tensor_parallel_size), 1),
        pipeline_parallel=read(
            "pipeline_parallel", lambda: int(config.parallel_config.pipeline_parallel_size), 1
        ),
        adaptive_verification=read(
            "adaptive_verification",
            lambda: spec is not None and _flag(spec.enable_adaptive_verification),
            True,
        ),
        speculative=read("speculative", lambda: _given(spec, config), {}),
        signatures=read("signatures", lambda: signatures(type(scheduler)), {}),
        model=read("model", lambda: _name(config.model_config.model), UNKNOWN),
        drafter=read("drafter", lambda: _drafter(spec), UNKNOWN),
        drafter_type=read("drafter_type", lambda: _drafter_type(spec), UNKNOWN),
        dtype=read("dtype", lambda: _name(config.model_config.dtype).removeprefix("torch."), UNKNOWN),
        quantisation=read("quantisation", lambda: _name(config.model_config.quantization or "none"), UNKNOWN),
        device=read("device", lambda: _device(config.device_config), UNKNOWN),
        graph_mode=read("graph_mode", lambda: _name(config.compilation_config.cudagraph_mode), UNKNOWN),
    )
    return structs.replace(facts, unread=tuple(read.unread))


def _flag(value: Any) -> bool:
    """A bool that is one: a stand-in or a None would be taken for an answer."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is no bool")
    return value


def _name(value: Any) -> str:
    """A name of bounded length; of a path the end is what tells it from others."""
    text = value.name if isinstance(value, enum.Enum) else str(value)
    return text[-MAX_NAME:]


def _data_parallel(parallel: Any) -> int:
    # A rank of a dense model is told that it is alone, but vLLM had dropped the table before. What is
    # derived from the size at launch still tells.
    return max(int(parallel.data_parallel_size), int(parallel.elastic_ep_max_dp_size))


def _device(device: Any) -> str:
    """The device's model, which decides what a step costs; its type where vLLM does not know it."""
    platform = getattr(sys.modules.get("vllm.platforms"), "current_platform", None)
    try:
        return _name(platform.get_device_name())  # type: ignore[union-attr]
    except Exception:  # not every platform has a name, and none may keep vLLM from starting
        return _name(device.device_type)


def _drafter(spec: Any) -> str:
    if spec is None:
        return NO_METHOD
    if spec.method == "ngram":
        return f"ngram {int(spec.prompt_lookup_min)} to {int(spec.prompt_lookup_max)}"
    return _name(spec.model)


def _drafter_type(spec: Any) -> str:
    if spec is None or spec.method == "ngram":
        return ""
    return str(getattr(getattr(spec.draft_model_config, "hf_config", None), "model_type", ""))


def _given(spec: Any, config: Any) -> dict[str, Any]:
    """What the user must have given for vLLM to arrive at this configuration."""
    if spec is None:
        return {}
    model = config.model_config
    filled_in = {
        "model": (spec.method, model.model, getattr(model, "model_weights", "")),
        "quantization": (model.quantization,) if spec.method == "mtp" else (),
        "draft_tensor_parallel_size": (config.parallel_config.tensor_parallel_size,),
        "prompt_lookup_min": (0,),
        "prompt_lookup_max": (0,),
    }
    if spec.method != "mtp":
        filled_in["model"] = (spec.method,)
    found = {
        key: value
        for key, value in _changed(spec).items()
        if key not in (*_DERIVED, TABLE_KEY) and value not in filled_in.get(key, ())
    }
    return {"method": spec.method, **{key: found[key] for key in found if key != "method"}}


def _changed(record: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, as JSON can hold them."""
    found = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name not in _DERIVED and value != _default(field):
            plain = _plain(value)
            if plain is not None:
                found[field.name] = plain
    return found


def _default(field: Any) -> Any:
    """The default of a field, which pydantic may have wrapped in a description."""
    described = field.default
    for factory in (field.default_factory, getattr(described, "default_factory", None)):
        if callable(factory):
            return factory()
    return getattr(described, "default", described)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; None for one that it cannot."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return _changed(value) if dataclasses.is_dataclass(value) else None
