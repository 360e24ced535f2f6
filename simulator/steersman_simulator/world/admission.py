"""Who gets in: the queue, prompts that are being read, and the KV blocks of everybody."""

from collections import deque
from collections.abc import Sequence

from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.blocks import BlockPool
from steersman_simulator.world.requests import Live
from steersman_simulator.world.shape import Shape


class Admission:
    """First come, first served. `pool` is None where blocks are never short."""

    def __init__(self, shape: Shape, k_max: int) -> None:
        self.waiting: deque[Live] = deque()
        self.prefilling: list[Live] = []
        """In order of admission; before a step at most the last one has more than one chunk to go."""
        blocks = shape.kv_blocks - (shape.drafter_kv_blocks if k_max else 0)
        self.pool = BlockPool(blocks, shape.kv_block_tokens) if shape.kv_blocks else None
        self.reserved_tokens = k_max
        """Cache places that every request has for drafts, whatever K is."""
        self.caches = shape.prefix_cache

    def refusal(self, arrival: Arrival) -> str:
        """Why this request can never be served; empty where it can."""
        if not arrival.prompt_tokens:
            return "no prompt tokens"
        if not arrival.output_tokens:
            return "no output tokens"
        if self.pool is None:
            return ""
        if arrival.hash_ids and self.caches:
            self.pool.hash_with(arrival.hash_block_tokens)
        tokens = arrival.prompt_tokens + arrival.output_tokens + self.reserved_tokens
        need = self.pool.blocks(tokens)
        return f"needs {need} KV blocks of {self.pool.total}" if need > self.pool.total else ""

    def chunks(self, now_s: float, budget: int, slots: int) -> tuple[list[tuple[Live, int]], bool]:
        """Prompt tokens to read in this step, and whether a request had to give way for want of blocks.

        `slots` are those that no decode request has. After a preemption nobody is admitted in this step.
        """
        out: list[tuple[Live, int]] = []
        for live in tuple(self.prefilling):
            chunk = min(live.prefill_tokens - live.prefilled_tokens, budget)
            if chunk <= 0:
                continue
            if not self._reserve(live, chunk):
                self.requeue(self.prefilling.pop(), live.blocks)
                return out, True
            out.append((live, chunk))
            budget -= chunk
        while budget > 0 and self.waiting and len(self.prefilling) < slots:
            live = self.waiting[0]
            self._match_prefix(live)
            chunk = min(live.prefill_tokens - live.prefilled_tokens, budget)
            if not self._reserve(live, chunk):
                self.release(live, live.blocks)
                break
            self.waiting.popleft()
            if live.admitted_s < 0.0:
                live.admitted_s = now_s
            self.prefilling.append(live)
            out.append((live, chunk))
            budget -= chunk
        return out, False

    def read(self, live: Live, tokens: int) -> bool:
        """A chunk is in the cache; whether that was all of the prompt."""
        live.prefilled_tokens += tokens
        if self.pool is not None and self.pool.per_hash and self.caches:
            hash_ids, each = live.arrival.hash_ids, live.arrival.hash_block_tokens
            while live.hashed < len(hash_ids) and (live.hashed + 1) * each <= min(
                live.prefilled_tokens, live.arrival.prompt_tokens
            ):
                if self.pool.cache(hash_ids[live.hashed]):
                    live.shared.append(hash_ids[live.hashed])
                live.hashed += 1
        if live.prefilled_tokens < live.prefill_tokens:
            return False
        self.prefilling.remove(live)
        return True

    def requeue(self, live: Live, blocks: int) -> None:
        """Preempted: it goes to the front of the queue, and its cache is lost."""
        self.release(live, blocks)
        live.preemptions += 1
        self.waiting.appendleft(live)

    def release(self, live: Live, blocks: int) -> None:
        """Give back all blocks of a request."""
        if self.pool is not None:
            self.pool.give(blocks - len(live.shared) * self.pool.per_hash)
            self.pool.leave(live.shared)
        live.shared, live.hashed, live.blocks, live.prefilled_tokens = [], 0, 0, 0

    def check(self, decoding: Sequence[tuple[Live, int]]) -> None:
        """That every block is free, cached, or held by one request; `decoding` come with their blocks."""
        if self.pool is None:
            return
        holders = [*decoding, *((live, live.blocks) for live in self.prefilling)]
        held = sum(blocks - len(live.shared) * self.pool.per_hash for live, blocks in holders)
        self.pool.check(held, [hash_id for live, _ in holders for hash_id in live.shared])

    def _match_prefix(self, live: Live) -> None:
        """Find the beginning of the prompt in the cache; the last token is always read anew."""
        live.prefill_tokens = live.arrival.prompt_tokens + live.committed_tokens
        if self.pool is None or not self.caches or not live.arrival.hash_ids:
            return
        each = live.arrival.hash_block_tokens
        whole = (live.arrival.prompt_tokens - 1) // each
        found = self.pool.cached(live.arrival.hash_ids[:whole])
        live.shared, live.hashed = list(live.arrival.hash_ids[:found]), found
        live.prefilled_tokens, live.blocks = found * each, found * self.pool.per_hash
        self.pool.use(live.shared)

    def _reserve(self, live: Live, chunk: int) -> bool:
        """Blocks for the next chunk and the drafts after it; False where there are too few."""
        if self.pool is None:
            return True
        tokens = live.prefilled_tokens + chunk + self.reserved_tokens
        more = max(0, self.pool.blocks(tokens) - live.blocks)
        if more > self.pool.available:
            return False
        self.pool.take(more)
        live.blocks += more
        return True
