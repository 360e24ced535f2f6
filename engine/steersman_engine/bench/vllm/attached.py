"""A vLLM scheduler with the adapter in it, and everything that looks at the two."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from steersman_engine.adapters.vllm.table import with_table
from steersman_engine.bench.vllm.sidecars import ATTACH_S, Sidecars
from steersman_engine.bench.vllm.stopwatch import Stopwatch
from steersman_engine.bench.vllm.watch import Watch, Wire


class Attached:
    """Must be made before the first sidecar is: from then on every frame is counted."""

    def __init__(self, scheduler: Any, sidecars: Sidecars) -> None:
        self.scheduler = scheduler
        self.sidecars = sidecars
        self.hook = scheduler._hook
        self.link = self.hook.link
        self.wire = Wire(self.link.publisher._transport)
        self.stopwatch = Stopwatch(self.hook)
        self.watch = Watch(self.hook, lambda: self.wire.lease_read_s)

    def wait(self, step: Callable[[], object]) -> float:
        """Step until a new sidecar has given a lease; the seconds from now on."""
        since_s = time.monotonic()
        while self.wire.lease_read_s is None or self.wire.lease_read_s < since_s:
            self.sidecars.check(since_s + ATTACH_S)
            step()
        return self.wire.lease_read_s - since_s


def timed(step: Callable[[], object]) -> float:
    """Seconds that a step takes."""
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s


def speculative(k_max: int, falling_k: Sequence[int], requests: int) -> tuple[dict[str, Any], int]:
    """A speculative configuration and `max_num_seqs` for up to `requests`.

    The first K serves all of them; the others stand above them, since only what stands in the table may
    be asked for.

    >>> speculative(8, (8, 4, 0), 16)[0]["num_speculative_tokens_per_batch_size"]
    [[1, 16, 8], [17, 17, 4], [18, 18, 0]]
    """
    first, *others = falling_k
    bands = ((1, requests, first), *((requests + n, requests + n, k) for n, k in enumerate(others, start=1)))
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": k_max,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    return with_table(ngram, bands), requests + len(others)
