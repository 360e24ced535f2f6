"""Tiny random models and short ways to run them, shared by the engine's tests."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from steersman_engine.decode.engine import Engine
from steersman_engine.decode.model import TargetModel
from steersman_engine.decode.request import Request, Sampling
from steersman_engine.drafters.drafter import Drafter
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.steering import Launch, Steering

torch.set_num_threads(1)

VOCAB = 128
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 1}),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"num_key_value_heads": 2, "sliding_window": 64}),
}


def model_of(kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A transformers model with random weights."""
    config, model, extra = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model(config(**{**SHAPE, **extra, **changes})).eval()


def target_of(kind: str = "llama", seed: int = 0, **changes: Any) -> TargetModel:
    """A target with random weights."""
    return TargetModel(model_of(kind, seed, **changes), kind)


class Ticks:
    """A clock that advances by one second whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def engine_of(
    target: TargetModel,
    steering: Steering | None = None,
    drafter: Drafter | None = None,
    **settings: Any,
) -> Engine:
    """An engine with a counting clock; without a steering it never drafts."""
    return Engine(
        target,
        steering=steering or Launch(0),
        drafter=drafter or PromptLookup(min_ngram=1),
        clock=Ticks(),
        **{"max_len": 256, "max_batch": 8, **settings},
    )


def submit(engine: Engine, prompt: Sequence[int], **sampling: Any) -> Request:
    """Queue a prompt; `segment` aside, the arguments are those of `Sampling`."""
    segment = sampling.pop("segment", "")
    wanted = {"max_tokens": 24, "ignore_eos": True, **sampling}
    return engine.submit(prompt, Sampling(**wanted), on_tokens=lambda *_: None, segment=segment)


def drain(engine: Engine) -> None:
    """Step until nothing is left."""
    while engine.busy:
        engine.step()


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of different lengths that repeat themselves."""
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for number in range(count):
        piece = torch.randint(3, VOCAB, (3 + number % 5,), generator=generator).tolist()
        texts.append(piece * 2 + piece[: 1 + number % 3])
    return texts
