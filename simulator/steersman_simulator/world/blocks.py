"""The KV pool: blocks that requests hold, and prefixes of prompts that stay cached while there is room.

A prefix is a chain of hash ids, each for the same number of tokens and equal only where everything
before it is equal, too (Mooncake's `hash_ids`). Blocks of a cached prefix are counted once, however
many requests use them; where none does, they may be evicted, the least recently used first and the
end of a chain before its beginning.
"""

from collections import Counter
from collections.abc import Iterable, Sequence


class BlockPool:
    """`total` blocks of `block_tokens` each. Every block is free, held by one request, or cached."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self.free = total
        self.users: dict[int, int] = {}
        """Requests that use a cached hash id."""
        self.unused: dict[int, None] = {}
        """Cached hash ids that no request uses, in order of eviction."""
        self.per_hash = 0
        """Blocks of one hash id."""

    @property
    def available(self) -> int:
        """Blocks that can be taken, by eviction where need be."""
        return self.free + len(self.unused) * self.per_hash

    @property
    def used_fraction(self) -> float:
        """Share of the blocks that requests hold or use."""
        return 1.0 - self.available / self.total

    def blocks(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(tokens // -self.block_tokens)

    def hash_with(self, tokens: int) -> None:
        """Say how many tokens a hash id stands for. Raises ValueError where that is no number of blocks."""
        per_hash, rest = divmod(tokens, self.block_tokens)
        if rest or not per_hash:
            raise ValueError(
                f"hash_block_tokens: {tokens}, no multiple of kv_block_tokens {self.block_tokens}"
            )
        if self.per_hash not in {0, per_hash}:
            known = self.per_hash * self.block_tokens
            raise ValueError(f"hash_block_tokens: {tokens}, but {known} for an earlier request")
        self.per_hash = per_hash

    def take(self, blocks: int) -> None:
        """Take blocks for a request; never more than are available."""
        while self.free < blocks:
            evicted = next(iter(self.unused))
            del self.unused[evicted], self.users[evicted]
            self.free += self.per_hash
        self.free -= blocks

    def give(self, blocks: int) -> None:
        """Get blocks back that a request held alone."""
        self.free += blocks

    def cached(self, hash_ids: Sequence[int]) -> int:
        """How many of these, from the first on, are cached."""
        for number, hash_id in enumerate(hash_ids):
            if hash_id not in self.users:
                return number
        return len(hash_ids)

    def use(self, hash_ids: Sequence[int]) -> None:
        """A request uses cached blocks."""
        for hash_id in hash_ids:
            self.users[hash_id] += 1
            self.unused.pop(hash_id, None)

    def cache(self, hash_id: int) -> bool:
        """Blocks that a request held alone become cached, with it as a user; False: others are, already."""
        if hash_id in self.users:
            return False
        self.users[hash_id] = 1
        return True

    def leave(self, hash_ids: Sequence[int]) -> None:
        """A request stops using cached blocks: they stay until the room is needed."""
        for hash_id in reversed(hash_ids):
            self.users[hash_id] -= 1
            if not self.users[hash_id]:
                self.unused[hash_id] = None

    def check(self, held: int, used: Iterable[int]) -> None:
        """That the books balance: blocks held by one request each, and every use of a cached hash id."""
        users = Counter(used)
        cached = len(self.users) * self.per_hash
        assert self.free + held + cached == self.total, (
            f"{self.total} blocks: {self.free} free, {held} held, {cached} cached"
        )
        assert all(count == users[hash_id] for hash_id, count in self.users.items()), (
            "a use of a prefix leaked"
        )
        assert all((hash_id in self.unused) == (not count) for hash_id, count in self.users.items())
