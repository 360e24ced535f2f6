"""Seconds of a forward from data sheets alone: what is believed before anything was measured.

A forward reads its weights and the cache, and does its arithmetic; matrix products take the longer of
reading and computing (roofline), attention is bound by reading the cache while decoding. Every kernel has
a smallest time. Host time between steps is not in it.
"""

from typing import Protocol

from msgspec import Struct

from steersman_controller.train.devices import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    KERNELS_PER_LAYER,
    LAUNCH_S,
    Device,
)
from steersman_controller.train.model_shape import ModelShape

ACTIVATION_BYTES = 2.0


class Forward(Protocol):
    """Predicts the seconds of one forward of one model, and of its parts."""

    def seconds(
        self, *, tokens: float, sequences: float, context_tokens: float, prefill_tokens: float
    ) -> float:
        """Of `tokens` (prefill included) for `sequences` that decode with `context_tokens` in sum.

        Prefill is taken as one prompt that begins in this step.
        """
        ...

    def dense_s(self, tokens: float, heads: float) -> float:
        """Everything but attention, for `tokens` of which `heads` need the output head."""
        ...

    def decode_attention_s(self, sequences: float, context_tokens: float) -> float:
        """Attention of sequences that decode, `context_tokens` in sum."""
        ...

    def prompt_attention_s(self, tokens: float) -> float:
        """Attention of a prompt, to itself."""
        ...


class Roofline(Struct, frozen=True):
    """Data sheet and shape, on `tensor_parallel` devices."""

    shape: ModelShape
    device: Device
    tensor_parallel: int = 1

    def seconds(
        self, *, tokens: float, sequences: float, context_tokens: float, prefill_tokens: float
    ) -> float:
        """See `Forward`."""
        return (
            self.dense_s(tokens, tokens - prefill_tokens)
            + self.decode_attention_s(sequences, context_tokens)
            + self.prompt_attention_s(prefill_tokens)
        )

    def dense_s(self, tokens: float, heads: float) -> float:
        """See `Forward`."""
        shape = self.shape
        routed_layers = (shape.layers - shape.dense_layers) if shape.experts else 0
        weights = (
            shape.dense_parameters + routed_layers * shape.experts_read(tokens) * shape.expert_parameters
        )
        # Only the last token of a prompt needs the output head.
        headless = (tokens - heads) * shape.hidden * shape.vocabulary
        active = shape.dense_parameters + routed_layers * shape.experts_per_token * shape.expert_parameters
        operations = 2.0 * (active * tokens - headless)
        products = max(weights * shape.weight_bytes / self._bytes_per_s, operations / self._flops_per_s)
        passing = 12.0 * shape.layers * tokens * shape.hidden * ACTIVATION_BYTES / self._bytes_per_s
        launches = shape.layers * KERNELS_PER_LAYER * LAUNCH_S
        return products + passing + launches + self._reduction_s(tokens)

    def decode_attention_s(self, sequences: float, context_tokens: float) -> float:
        """See `Forward`: bound by reading the cache, however many sequences it is of."""
        del sequences
        return context_tokens * self.shape.kv_bytes_per_token / self._bytes_per_s

    def prompt_attention_s(self, tokens: float) -> float:
        """See `Forward`: each token attends to half of them on average, two products (scores, values)."""
        width = self.shape.heads * self.shape.head_dim
        return 2.0 * self.shape.layers * tokens**2 * width / self._flops_per_s

    @property
    def _bytes_per_s(self) -> float:
        return self.device.bytes_per_s * BANDWIDTH_SHARE * self.tensor_parallel

    @property
    def _flops_per_s(self) -> float:
        return self.device.flops_per_s * ARITHMETIC_SHARE * self.tensor_parallel

    def _reduction_s(self, tokens: float) -> float:
        """Two all-reduces a layer (ring)."""
        ways = self.tensor_parallel
        if ways == 1:
            return 0.0
        moved = 2.0 * (ways - 1) / ways * tokens * self.shape.hidden * ACTIVATION_BYTES
        return 2.0 * self.shape.layers * (2.0 * LAUNCH_S + moved / self.device.link_bytes_per_s)
