"""What bounds an engine."""

from typing import Literal

from msgspec import Struct

MAX_BATCH = 1 << 16
"""No engine has more slots; each takes memory here, whether it is used or not."""


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """What bounds a step, and how the engine schedules. Raises ValueError for a shape that no engine has."""

    max_batch: int
    """Requests in the engine that do not wait (vLLM: max_num_seqs)."""
    prefill_budget_tokens: int = 0
    """Prompt tokens in one forward, whatever the decode requests take; 0: only `token_budget` bounds them."""
    kv_tokens: int = 0
    """Size of the KV pool, for the reported share in use only, where `kv_blocks` is 0; 0: not reported."""
    token_budget: int = 0
    """Tokens of one forward: decode requests with their drafts first, prompts with what is left (vLLM:
    max_num_batched_tokens); 0: not bounded."""
    kv_blocks: int = 0
    """Blocks of the KV pool; 0: never short."""
    kv_block_tokens: int = 16
    drafter_kv_blocks: int = 0
    """Blocks that the pool loses where a drafter is loaded: where the engine's longest K is not 0."""
    prefix_cache: bool = True
    """Blocks of prompts are kept in the pool and found again by `Arrival.hash_ids`. Needs `kv_blocks`."""
    graph_sizes: tuple[int, ...] = ()
    """Sizes of captured graphs, ascending: a step without prompts is filled up to the next one."""
    off: Literal["stateless", "warm", "cold"] = "stateless"
    """The drafter's state while K is 0: it has none, it follows, or it goes stale and is read again later."""
    scheduling: Literal["sync", "async"] = "sync"
    """async: a step is scheduled before the outcome of the one before is known, as vLLM's AsyncScheduler does
    it. Feedback comes two steps late, a finished request takes part in one more step, and short drafts
    are filled up."""

    def __post_init__(self) -> None:
        """Check every range."""
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise ValueError(f"shape.max_batch: {self.max_batch}, must be from 1 to {MAX_BATCH}")
        for name in ("prefill_budget_tokens", "kv_tokens", "token_budget", "kv_blocks", "drafter_kv_blocks"):
            if getattr(self, name) < 0:
                raise ValueError(f"shape.{name}: {getattr(self, name)}, must not be negative")
        if not self.prefill_budget_tokens and not self.token_budget:
            raise ValueError("shape.prefill_budget_tokens: 0, needs a token_budget above 0")
        if 0 < self.token_budget < self.max_batch:
            raise ValueError(
                f"shape.token_budget: {self.token_budget}, at least max_batch = {self.max_batch}"
            )
        if self.kv_block_tokens < 1:
            raise ValueError(f"shape.kv_block_tokens: {self.kv_block_tokens}, at least 1")
        if self.drafter_kv_blocks and self.drafter_kv_blocks >= self.kv_blocks:
            raise ValueError(
                f"shape.drafter_kv_blocks: {self.drafter_kv_blocks}, below kv_blocks = {self.kv_blocks}"
            )
        if any(a >= b for a, b in zip((0, *self.graph_sizes), self.graph_sizes, strict=False)):
            raise ValueError(f"shape.graph_sizes: {list(self.graph_sizes)}, must be positive and ascending")
