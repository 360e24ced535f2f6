"""What a largest K costs in memory, computed from a model's `config.json` by vLLM 0.32.0's own rules.

Nothing here is measured. What depends on the GPU, such as the bytes of a captured graph, is left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

GRAPH_CEILING_TOKENS = 512
"""vLLM captures graphs up to so many tokens by default; up to 1024 on data-centre Blackwell."""

LOGIT_BYTES = 4

_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
DTYPES = ("auto", *_DTYPE_BYTES)
"""What vLLM's `--dtype` takes."""
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_heads")
_PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_MLA_TYPES = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"})
_NOT_PLAIN = (
    "attn_layer_period",
    "block_configs",
    "compress_ratios",
    "global_head_dim",
    "hybrid_override_pattern",
    "index_head_dim",
    "linear_attn_config",
    "mamba_d_state",
    "multi_query",
    "num_kv_shared_layers",
    "ssm_cfg",
    "state_size",
)
"""Keys of models whose layers do not all keep the same: what a token takes is not one product there."""


class KvCost(Struct, frozen=True):
    """Slots in the KV cache beyond the one that a step without drafts needs, per running request."""

    always_tokens: int
    """Reserved whatever K is in force: where the drafter writes ahead of the target."""
    at_k_max_tokens: int
    """These and the drafts themselves, in steps at the largest K."""


class GraphCost(Struct, frozen=True):
    """Full decode graphs that vLLM's V2 runner captures of the target."""

    sizes_by_k: dict[int, int]
    without_table: int

    @property
    def extra(self) -> int:
        """Graphs that the table adds."""
        return sum(self.sizes_by_k.values()) - self.without_table


def read_model(folder: Path) -> dict[str, Any]:
    """What a model's `config.json` says of its language part. Raises OSError or ValueError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: holds no object")
    for part in ("text_config", "transformer_layer_config"):
        if isinstance(config.get(part), dict):
            config = {**config, **config[part]}
    return config


def kv_bytes_per_token(model: Mapping[str, Any], *, dtype: str, tensor_parallel: int, layers: int = 0) -> int:
    """Bytes that one token takes in one GPU's KV cache, for `layers` layers (0: all of the model).

    Raises ValueError where the layers differ, so that there is no such number.

    >>> llama = {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16}
    >>> kv_bytes_per_token(llama, dtype="bfloat16", tensor_parallel=1)
    256
    """
    unusual = sorted(key for key in _NOT_PLAIN if model.get(key))
    kinds = model.get("layer_types") or ()
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise ValueError(f"config.json: layer_types: {kinds!r}; needed is a list of names")
    unusual += sorted(set(kinds) - _PLAIN_LAYERS)
    if unusual:
        raise ValueError(f"KV per token not computed: layers of several kinds ({', '.join(unusual)})")
    layers = layers or _number(model, "num_hidden_layers")
    return layers * _values_per_layer(model, tensor_parallel) * _DTYPE_BYTES[dtype]


def cache_dtype(model: Mapping[str, Any], asked: str) -> str:
    """The dtype that vLLM computes and caches in, for its `--dtype`.

    Raises ValueError for one that has no fixed size here.

    >>> cache_dtype({"torch_dtype": "bfloat16"}, "auto"), cache_dtype({"dtype": "float32"}, "auto")
    ('bfloat16', 'bfloat16')
    """
    found = str(asked if asked != "auto" else model.get("dtype") or model.get("torch_dtype") or "float32")
    if asked == "auto" and found == "float32":
        return "bfloat16"  # vLLM halves such models where it is not told otherwise
    if found not in _DTYPE_BYTES:
        raise ValueError(f"dtype: {found!r}; allowed are {', '.join(DTYPES)}")
    return found


def kv_cost(method: str, k_max: int) -> KvCost:
    """What vLLM's scheduler reserves for each running request: one slot per draft token that is verified,
    and for drafters with a KV cache of their own as many again to write ahead (`num_lookahead_tokens`).

    >>> kv_cost("ngram", 8), kv_cost("eagle3", 8)
    (KvCost(always_tokens=0, at_k_max_tokens=8), KvCost(always_tokens=8, at_k_max_tokens=16))
    """
    ahead = 0 if method == "ngram" else k_max
    return KvCost(always_tokens=ahead, at_k_max_tokens=ahead + k_max)


def logits_bytes(model: Mapping[str, Any], k_max: int, max_num_seqs: int) -> int:
    """Bytes of the logits when every request verifies the largest K, in single precision."""
    return max_num_seqs * (k_max + 1) * _number(model, "vocab_size") * LOGIT_BYTES


def graph_cost(lookup: Sequence[int], k_max: int, max_num_seqs: int) -> GraphCost:
    """How many graphs a dense table costs (index 0 unused), against none: then K is always `k_max`.

    vLLM 0.32.0, config/vllm.py `_set_cudagraph_sizes` and worker/gpu/cudagraph_utils.py
    `_init_candidates`, with its defaults.
    """
    with_table, without = list(lookup[1 : max_num_seqs + 1]), [k_max] * max_num_seqs
    captured = _captured(_capture_sizes(with_table, k_max, max_num_seqs), with_table, k_max, max_num_seqs)
    plain = _captured(_capture_sizes(without, k_max, max_num_seqs), without, k_max, max_num_seqs)
    return GraphCost(sizes_by_k=captured, without_table=plain[k_max])


def _captured(sizes: Sequence[int], table: Iterable[int], k_max: int, max_num_seqs: int) -> dict[int, int]:
    """Number of batch sizes with a graph, by K."""
    found = {}
    for k in sorted(set(table)):
        query_tokens = k + 1
        rounded = {-(-size // query_tokens) * query_tokens for size in sizes}
        most = min(max_num_seqs * query_tokens, max_num_seqs * (k_max + 1), sizes[-1])
        found[k] = sum(size <= most for size in rounded)
    return found


def _capture_sizes(table: Sequence[int], k_max: int, max_num_seqs: int) -> list[int]:
    """Tokens for which vLLM captures graphs: a grid, and the multiples that the table's K need."""
    most = min(max_num_seqs * (k_max + 1) * 2, GRAPH_CEILING_TOKENS)
    sizes = {size for size in (1, 2, 4) if size <= most} | _grid(most)
    widest = {k: batch for batch, k in enumerate(table, start=1)}
    for k, batch in widest.items():
        widest_batch = min(batch, GRAPH_CEILING_TOKENS)
        batches = {n for n in (1, 2, 4) if n <= widest_batch} | _grid(widest_batch) | {widest_batch}
        sizes |= {n * (k + 1) for n in batches if n * (k + 1) <= most}
    return sorted(sizes)


def _grid(most: int) -> set[int]:
    return {*range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)}


def _values_per_layer(model: Mapping[str, Any], tensor_parallel: int) -> int:
    """Numbers that one layer keeps of one token, on one GPU."""
    latent = model.get("kv_lora_rank")
    if latent:
        if model.get("model_type") not in _MLA_TYPES:
            raise ValueError(f"KV per token not computed: latent attention of {model.get('model_type')!r}")
        return int(latent) + _number(model, "qk_rope_head_dim")  # one copy on every GPU
    heads = next(_number(model, key) for key in _KV_HEADS if model.get(key) or key == _KV_HEADS[-1])
    head_size = model.get("head_dim") or _number(model, "hidden_size") // _number(
        model, "num_attention_heads"
    )
    return 2 * max(1, heads // tensor_parallel) * int(head_size)


def _number(model: Mapping[str, Any], key: str) -> int:
    value = model.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"config.json: {key}: {value!r}; needed is a whole number above 0")
    return value
