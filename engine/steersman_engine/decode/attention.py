"""Attention over a packed row of tokens of many requests, straight out of the slot cache.

The target's forward sees one row with the tokens of all requests, one after the other, so that its
cost follows the number of tokens really verified. Only attention has to know the requests apart: it
writes the new keys and values into the slots and lets each request look at its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from steersman_engine.decode.slots import SlotCache

NAME = "steersman"
"""Under which the attention function is known to transformers."""


class Layer(Protocol):
    """The part of a transformers attention module that is read here."""

    layer_idx: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive new tokens of one request, behind what its slot already holds."""

    slot: int
    tokens: Sequence[int]
    decode: bool
    """Decode chunks of a step share one batched attention; the others are attended one by one."""


@dataclass(frozen=True, slots=True)
class Group:
    """Slots attended together: the `span` first places of `count` slots from slot `first` on."""

    first: int
    count: int
    span: int
    width: int
    """Query places per slot; shorter chunks are padded."""
    mask: Tensor
    """(count, 1, 1, width, span), true where a query may look."""
    gather: Tensor
    """(count * width) packed token of each query place; any token for padding."""
    scatter: Tensor
    """(tokens) query place of each packed token of the group."""
    tokens: Tensor
    """(tokens) packed tokens of the group."""


class Packing:
    """Where every token of a packed row belongs. Built once per step, used by every layer."""

    def __init__(self, slots: SlotCache, chunks: Sequence[Chunk], device: torch.device) -> None:
        rows: list[int] = []
        positions: list[int] = []
        for chunk in chunks:
            start = slots.lengths[chunk.slot]
            end = start + len(chunk.tokens)
            if end > slots.max_len:
                raise ValueError(f"slot {chunk.slot}: {end} tokens, at most {slots.max_len}")
            rows += [chunk.slot] * len(chunk.tokens)
            positions += range(start, end)
        self.slots = slots
        self.rows = torch.tensor(rows, device=device)  # (tokens)
        self.positions = torch.tensor(positions, device=device)  # (tokens)
        self.groups = _groups(slots, chunks, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Write key and value (1, kv_heads, tokens, head_dim) and attend with query (1, heads, ...).

        Returns (1, tokens, heads, head_dim).
        """
        keys, values = self.slots.layer(layer, key, value)
        keys[self.rows, :, self.positions] = key[0].transpose(0, 1)
        values[self.rows, :, self.positions] = value[0].transpose(0, 1)
        if len(self.groups) == 1:
            return _attend(self.groups[0], query[0], keys, values, scale).unsqueeze(0)
        out = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
        for group in self.groups:
            out[group.tokens] = _attend(group, query[0], keys, values, scale)
        return out.unsqueeze(0)


def attention_forward(
    module: Layer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - transformers passes it by position
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer. Raises ValueError for kinds of attention not served."""
    if packing is None:
        raise ValueError("the model does not hand keyword arguments through to its attention")
    if others.get("softcap") is not None or others.get("s_aux") is not None:
        raise ValueError("the model's attention has a softcap or sinks")
    return packing.attend(module.layer_idx, query, key, value, scaling), None


def _groups(slots: SlotCache, chunks: Sequence[Chunk], device: torch.device) -> list[Group]:
    starts, packed = [], 0
    for chunk in chunks:
        starts.append(packed)
        packed += len(chunk.tokens)
    placed = list(zip(starts, chunks, strict=True))
    decode = [(start, chunk) for start, chunk in placed if chunk.decode]
    groups = [_group(slots, decode, device)] if decode else []
    groups += [_group(slots, [one], device) for one in placed if not one[1].decode]
    return groups


def _group(slots: SlotCache, placed: Sequence[tuple[int, Chunk]], device: torch.device) -> Group:
    first = min(chunk.slot for _, chunk in placed)
    count = max(chunk.slot for _, chunk in placed) + 1 - first
    width = max(len(chunk.tokens) for _, chunk in placed)
    span = max(slots.lengths[chunk.slot] + len(chunk.tokens) for _, chunk in placed)
    gather, scatter, tokens = [0] * (count * width), [], []
    # A padding query sees position 0: a row that may see nothing would be NaN.
    last_seen = [0] * (count * width)
    for start, chunk in placed:
        place = (chunk.slot - first) * width
        for offset in range(len(chunk.tokens)):
            gather[place + offset] = start + offset
            last_seen[place + offset] = slots.lengths[chunk.slot] + offset
            scatter.append(place + offset)
            tokens.append(start + offset)
    last = torch.tensor(last_seen, device=device).view(count, 1, 1, width, 1)
    return Group(
        first=first,
        count=count,
        span=span,
        width=width,
        mask=torch.arange(span, device=device) <= last,
        gather=torch.tensor(gather, device=device),
        scatter=torch.tensor(scatter, device=device),
        tokens=torch.tensor(tokens, device=device),
    )


def _attend(group: Group, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
    """Query (heads, packed tokens, head_dim) -> (tokens of the group, heads, head_dim)."""
    heads, kv_heads = query.shape[0], keys.shape[1]
    shared = heads // kv_heads  # query heads per key head, folded into the query length
    count, width, span = group.count, group.width, group.span
    folded = (
        query[:, group.gather]
        .view(kv_heads, shared, count, width, -1)
        .permute(2, 0, 1, 3, 4)
        .reshape(count, kv_heads, shared * width, -1)
    )
    mask = group.mask.expand(-1, -1, shared, -1, -1).reshape(count, 1, shared * width, span)
    live = slice(group.first, group.first + count)
    out = functional.scaled_dot_product_attention(
        folded, keys[live, :, :span], values[live, :, :span], attn_mask=mask, scale=scale
    )  # (count, kv_heads, shared * width, head_dim)
    out = out.view(count, kv_heads, shared, width, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(count * width, heads, -1)[group.scatter]
