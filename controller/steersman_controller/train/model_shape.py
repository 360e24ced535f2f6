"""Sizes of a decoder-only transformer, from its Hugging Face `config.json`."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8_e4m3fn": 1.0}
_QUANTISED = {"fp8": 1.0, "awq": 0.5, "gptq": 0.5, "mxfp4": 0.5, "nvfp4": 0.5, "bitsandbytes": 0.5}


class ModelShape(Struct, frozen=True):
    """What decides the time of a forward."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    weight_bytes: float
    """Per parameter."""
    kv_bytes: float = 2.0
    """Per element of the cache."""
    experts: int = 0
    """Routed experts of a layer; 0: a dense model, of which `intermediate` is the width."""
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Width of the experts that every token visits."""
    dense_layers: int = 0
    """Layers with a dense MLP in a model with experts."""
    latent: int = 0
    """Width of the compressed key-value cache (MLA); 0: keys and values of every head."""

    @property
    def attention_parameters(self) -> int:
        """Of one layer: query, key, value and output projections."""
        width = self.heads * self.head_dim
        return self.hidden * (2 * width + 2 * self.kv_heads * self.head_dim)

    @property
    def dense_parameters(self) -> int:
        """Read and used by every token: attention, dense MLPs, shared experts, router, output head."""
        mlp = self.dense_layers if self.experts else self.layers
        routed = self.layers - mlp
        return (
            self.layers * self.attention_parameters
            + mlp * 3 * self.hidden * self.intermediate
            + routed * (3 * self.hidden * self.shared_intermediate + self.hidden * self.experts)
            + self.hidden * self.vocabulary
        )

    @property
    def expert_parameters(self) -> int:
        """Of one routed expert of one layer."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def kv_bytes_per_token(self) -> float:
        """Cache that one token of context adds, over all layers."""
        elements = self.latent or 2 * self.kv_heads * self.head_dim
        return self.layers * elements * self.kv_bytes

    def experts_read(self, tokens: float) -> float:
        """Distinct experts of a layer that `tokens` tokens visit: E (1 - (1 - k/E)^n), even routing.

        >>> shape = ModelShape(1, 1, 1, 1, 1, 1, 1, 2.0, experts=128, experts_per_token=8)
        >>> shape.experts_read(1), round(shape.experts_read(64), 1)
        (8.0, 125.9)
        """
        if not self.experts:
            return 0.0
        missed: float = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1.0 - missed)


def read_shape(path: Path) -> ModelShape:
    """The shape in a `config.json`, or in the folder of a model. Raises ValueError naming file and key."""
    path = path / "config.json" if path.is_dir() else path
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: no config.json ({error})") from None
    return shape_of(config, str(path))


def shape_of(config: dict[str, Any], where: str) -> ModelShape:
    """The same from its contents."""
    outer, config = config, config.get("text_config") or config
    hidden, heads = _count(config, where, "hidden_size"), _count(config, where, "num_attention_heads")
    experts = _count(config, where, "num_experts", "num_local_experts", "n_routed_experts", default=0)
    expert_width = _count(config, where, "moe_intermediate_size", "intermediate_size") if experts else 0
    visited = _count(config, where, "num_experts_per_tok") if experts else 0
    if visited > experts:
        raise ValueError(
            f"{where}: num_experts_per_tok is {visited}, allowed is up to {experts}, all experts"
        )
    layers = _count(config, where, "num_hidden_layers")
    latent = _count(config, where, "kv_lora_rank", default=0)
    shared = _count(config, where, "shared_expert_intermediate_size", default=0)
    shared = shared or expert_width * _count(config, where, "n_shared_experts", default=0)
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_count(config, where, "num_key_value_heads", default=heads),
        head_dim=_count(config, where, "head_dim", "v_head_dim", default=hidden // heads),
        intermediate=_count(config, where, "intermediate_size"),
        vocabulary=_count(config, where, "vocab_size"),
        weight_bytes=_weight_bytes({**outer, **config}, where),
        experts=experts,
        experts_per_token=visited,
        expert_intermediate=expert_width,
        shared_intermediate=shared,
        dense_layers=_count(config, where, "first_k_dense_replace", default=0) if experts else layers,
        latent=latent + _count(config, where, "qk_rope_head_dim", default=0) if latent else 0,
    )


def _count(config: dict[str, Any], where: str, *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
                raise ValueError(f"{where}: {name} is {value!r}, allowed is a whole number from 0")
            if value == 0 and default is None:
                raise ValueError(f"{where}: {name} is 0, allowed is a whole number from 1")
            return value
    if default is None:
        raise ValueError(f"{where}: no {' or '.join(names)}; it is no config.json of a causal language model")
    return default


def _weight_bytes(config: dict[str, Any], where: str) -> float:
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        bits = quantised.get("bits") or quantised.get("weight_bits")
        method = str(quantised.get("quant_method", ""))
        if isinstance(bits, int) and 1 <= bits <= 16:
            return bits / 8.0
        if method in _QUANTISED:
            return _QUANTISED[method]
        raise ValueError(
            f"{where}: quantization_config names neither bits nor a known method ({', '.join(_QUANTISED)})"
        )
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in _BYTES:
        raise ValueError(f"{where}: dtype {dtype!r}, allowed are {', '.join(_BYTES)}")
    return _BYTES[dtype]
