"""What bounds an engine."""

from msgspec import Struct


class Shape(Struct, frozen=True):
    """What bounds a step."""

    max_batch: int
    prefill_budget_tokens: int
    """Prompt tokens in one forward."""
    kv_tokens: int = 0
    """Size of the KV pool, for the reported share in use only; 0: not reported."""
