"""What the vLLM adapter reads from a launch, whatever shape it finds there."""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from steersman_engine.adapters.vllm.checks import judge
from steersman_engine.adapters.vllm.facts import read_facts
from steersman_engine.adapters.vllm.settings import Settings
from steersman_engine.adapters.vllm.signatures import signatures

SETTINGS = Settings(sidecar="ipc:///run/any", state_dir=Path("state"))


class _Interface(ABC):
    __module__ = "vllm.v1.core.sched.interface"

    @abstractmethod
    def schedule(self, anything: int) -> None: ...


class _Registry:
    pass


class _Base(_Interface):
    __module__ = "vllm.v1.core.sched.scheduler"

    def __init__(self, registry: object = _Registry()) -> None: ...

    def schedule(self, throttle: bool = False) -> None: ...


class _Ours(_Base):
    def __init__(self, *arguments: object) -> None: ...

    def schedule(self, *arguments: object) -> None: ...


def test_only_vllms_own_declarations_are_read() -> None:
    """Neither our overrides nor abstract methods count, and no address of this very run is kept."""
    assert signatures(_Ours) == {
        "_Base.__init__": f"(self, registry: object = <{__name__}._Registry object>) -> None",
        "_Base.schedule": "(self, throttle: bool = False) -> None",
    }


def stand_in() -> tuple[Any, Any]:
    """A configuration and a scheduler with the attributes that vLLM 0.32.0 has."""
    config = SimpleNamespace(
        speculative_config=None,
        scheduler_config=SimpleNamespace(async_scheduling=True, max_num_seqs=8),
        parallel_config=SimpleNamespace(
            data_parallel_size=1,
            data_parallel_index=1,
            elastic_ep_max_dp_size=2,
            tensor_parallel_size=4,
            pipeline_parallel_size=1,
        ),
        model_config=SimpleNamespace(model="a" * 300 + "/llama", dtype="torch.bfloat16", quantization=None),
        device_config=SimpleNamespace(device_type="cuda"),
        compilation_config=SimpleNamespace(cudagraph_mode="FULL"),
    )
    scheduler = _Ours()
    scheduler.__dict__.update(use_v2_model_runner=True, dynamic_sd_lookup=None)
    return config, scheduler


@pytest.fixture
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    module.__version__ = "0.32.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.mark.usefixtures("_vllm")
def test_facts_are_read_attribute_by_attribute() -> None:
    """Runner, scheduling, ranks and names come from where vLLM keeps them."""
    facts = read_facts(*stand_in())
    assert facts.unread == ()
    assert (facts.vllm_version, facts.runner, facts.is_async) == ("0.32.0", "v2", True)
    assert (facts.method, facts.k_max, facts.lookup, facts.max_num_seqs) == ("none", 0, (), 8)
    assert (facts.tensor_parallel, facts.dtype, facts.quantisation) == (4, "bfloat16", "none")
    assert (facts.device, facts.graph_mode) == ("cuda", "FULL")
    assert facts.model.endswith("/llama")
    assert len(facts.model) == 200


@pytest.mark.usefixtures("_vllm")
def test_a_rank_of_a_dense_model_is_seen_through() -> None:
    """vLLM tells such a rank that it is alone; that there are two still shows."""
    facts = read_facts(*stand_in())
    assert (facts.data_parallel, facts.data_parallel_rank) == (2, 1)


class _Backend(Enum):
    FLASH = "x"


class _Described:
    """A default as pydantic wraps it."""

    def __init__(self, default: Any, default_factory: Any = None) -> None:
        self.default, self.default_factory = default, default_factory


@dataclass
class _Load:
    format: str = "auto"
    extra: dict[str, Any] = field(default_factory=dict)
    threads: Any = _Described(8)  # noqa: RUF009 (pydantic does that)
    ignored: Any = _Described(None, list)  # noqa: RUF009


@dataclass
class _Speculative:
    """The fields of vLLM's class that differ in kind."""

    method: str
    num_speculative_tokens: int | None = None
    model: str | None = None
    quantization: str | None = None
    draft_tensor_parallel_size: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    attention_backend: _Backend | None = None
    enable_adaptive_verification: bool = False
    draft_load_config: _Load | None = None
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = None
    target_model_config: Any = None
    draft_model_config: Any = None


@pytest.mark.usefixtures("_vllm")
@pytest.mark.parametrize(
    ("resolved", "given"),
    [
        (
            _Speculative("ngram", 8, model="ngram", prompt_lookup_min=2, prompt_lookup_max=4),
            {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        ),
        (
            _Speculative(
                "eagle3",
                8,
                model="org/head",
                draft_tensor_parallel_size=4,
                prompt_lookup_min=0,
                prompt_lookup_max=0,
                attention_backend=_Backend.FLASH,
                draft_load_config=_Load("dummy", threads=8, ignored=[]),
            ),
            {
                "method": "eagle3",
                "model": "org/head",
                "attention_backend": "FLASH",
                "draft_load_config": {"format": "dummy"},
            },
        ),
        (
            _Speculative("draft_model", 8, model="same", draft_tensor_parallel_size=1),
            {"method": "draft_model", "model": "same", "draft_tensor_parallel_size": 1},
        ),
        (_Speculative("mtp", 8, model="same", quantization="fp8"), {"method": "mtp"}),
    ],
)
def test_what_the_user_gave_is_told_from_what_vllm_filled_in(
    resolved: _Speculative, given: dict[str, Any]
) -> None:
    """The line to change repeats the user's keys and neither vLLM's own values nor the old table."""
    config, scheduler = stand_in()
    config.model_config.model, config.model_config.quantization = "same", "fp8"
    resolved.num_speculative_tokens_per_batch_size = [(1, 8, 8)]
    resolved.target_model_config = config.model_config
    resolved.draft_model_config = SimpleNamespace(hf_config=SimpleNamespace(model_type="eagle"))
    config.speculative_config = resolved
    facts = read_facts(config, scheduler)
    assert facts.unread == ()
    assert facts.speculative == given | {"num_speculative_tokens": 8}
    assert (facts.method, facts.k_max) == (resolved.method, 8)
    drafter = "ngram 2 to 4" if resolved.method == "ngram" else resolved.model
    assert facts.drafter == drafter
    assert facts.drafter_type == ("" if resolved.method == "ngram" else "eagle")


PLACES = (
    "speculative_config",
    "scheduler_config.async_scheduling",
    "scheduler_config.max_num_seqs",
    "parallel_config",
    "parallel_config.data_parallel_size",
    "parallel_config.tensor_parallel_size",
    "compilation_config",
)


@pytest.mark.usefixtures("_vllm")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("is_there", [False, True])
def test_an_attribute_that_moved_ends_steering_not_the_server(place: str, is_there: bool) -> None:
    """What is missing, or is of another kind, is never an exception: it is named and nobody steers."""
    config, scheduler = stand_in()
    *path, name = place.split(".")
    owner = config
    for step in path:
        owner = getattr(owner, step)
    delattr(owner, name)
    if is_there:
        setattr(owner, name, object())
    facts = read_facts(config, scheduler)
    assert facts.unread
    assert "does not say" in judge(facts, SETTINGS).observe_only


def test_nothing_at_all_can_be_read_without_an_exception() -> None:
    """Even two bare objects in place of vLLM's give facts, and these end steering."""
    facts = read_facts(object(), object())
    assert "does not say" in judge(facts, SETTINGS).observe_only
