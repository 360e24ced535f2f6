"""The target's key-value cache: one slot per live request, one length per slot.

Rules of this file:

- Live slots are always 0 to n-1: freeing one moves the last into its place. So attention over the
  batch reads a view of the cache and copies nothing.
- What lies beyond a slot's length is garbage that nobody reads. Rolling back rejected drafts is
  therefore only a shorter length, and exact.
"""

import torch
from torch import Tensor


class SlotCache:
    """Keys and values of every layer, each (max_batch, kv_heads, max_len, head_dim).

    A layer's tensors are made when it is first used, which is how the cache learns the shape of any
    architecture without asking its configuration.
    """

    def __init__(self, max_batch: int, max_len: int) -> None:
        self.max_batch = max_batch
        self.max_len = max_len
        self.lengths: list[int] = []
        """Tokens held by each live slot."""
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def used_fraction(self) -> float:
        """Share of all token places that hold a token."""
        return sum(self.lengths) / (self.max_batch * self.max_len)

    def append(self) -> int:
        """The number of a new, empty slot. Raises IndexError where all are taken."""
        if len(self.lengths) == self.max_batch:
            raise IndexError(f"slots: all {self.max_batch} are taken")
        self.lengths.append(0)
        return len(self.lengths) - 1

    @torch.inference_mode()  # the layers were made in inference mode too
    def free(self, slot: int) -> int | None:
        """Give a slot back. Returns the number of the slot that was moved into it, if one was."""
        last = len(self.lengths) - 1
        length = self.lengths.pop()
        if slot == last:
            return None
        for keys, values in self._layers.values():
            keys[slot, :, :length] = keys[last, :, :length]
            values[slot, :, :length] = values[last, :, :length]
        self.lengths[slot] = length
        return last

    def clear(self) -> None:
        """Give every slot back."""
        self.lengths.clear()

    def truncate(self, slot: int, length: int) -> None:
        """Forget every token of a slot from position `length` on."""
        if not 0 <= length <= self.lengths[slot]:
            raise ValueError(f"slot {slot}: cannot cut {self.lengths[slot]} tokens to {length}")
        self.lengths[slot] = length

    def extend(self, slot: int, tokens: int) -> None:
        """Count `tokens` that the forward wrote behind a slot's end."""
        self.lengths[slot] += tokens

    def layer(self, index: int, like_key: Tensor, like_value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer; `like_*` (1, kv_heads, tokens, head_dim) give shape and type."""
        if index not in self._layers:
            self._layers[index] = (self._empty(like_key), self._empty(like_value))
        return self._layers[index]

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros, not garbage: attention multiplies what the mask hides by zero, and NaN times zero is NaN.
        shape = (self.max_batch, like.shape[1], self.max_len, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
