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
    """Predicts the seconds of one forward of one model."""

    def seconds(
        self, *, tokens: float, sequences: float, context_tokens: float, prefill_tokens: float
    ) -> float:
        """Of `tokens` (prefill included) for `sequences` that decode with `context_tokens` in sum."""
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
        shape, ways = self.shape, self.tensor_parallel
        read = self.device.bytes_per_s * BANDWIDTH_SHARE * ways
        work = self.device.flops_per_s * ARITHMETIC_SHARE * ways
        routed_layers = (shape.layers - shape.dense_layers) if shape.experts else 0
        weights = (
            shape.dense_parameters + routed_layers * shape.experts_read(tokens) * shape.expert_parameters
        )
        # Only the last token of a prompt needs the output head.
        headless = prefill_tokens * shape.hidden * shape.vocabulary
        active = shape.dense_parameters + routed_layers * shape.experts_per_token * shape.expert_parameters
        products = max(weights * shape.weight_bytes / read, 2.0 * (active * tokens - headless) / work)
        cache = context_tokens * shape.kv_bytes_per_token / read
        # A prompt attends to half of itself on average: two products of scores and values.
        width = shape.heads * shape.head_dim
        prompt = 2.0 * shape.layers * prefill_tokens**2 * width / work
        passing = 12.0 * shape.layers * tokens * shape.hidden * ACTIVATION_BYTES / read
        launches = shape.layers * KERNELS_PER_LAYER * LAUNCH_S
        return products + cache + prompt + passing + launches + self._reduction_s(tokens)

    def _reduction_s(self, tokens: float) -> float:
        """Two all-reduces a layer (ring)."""
        ways = self.tensor_parallel
        if ways == 1:
            return 0.0
        moved = 2.0 * (ways - 1) / ways * tokens * self.shape.hidden * ACTIVATION_BYTES
        return 2.0 * self.shape.layers * (2.0 * LAUNCH_S + moved / self.device.link_bytes_per_s)
