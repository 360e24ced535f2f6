"""vLLM's start-up table: K by scheduled requests, which must hold every K that it may be asked for.

vLLM prepares for what is in the table and for nothing else: its V2 runner captures one set of decode
graphs per distinct K. Without a table it pads new requests to the largest K. So the table is needed even
where another number is put in at every step.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Bands: TypeAlias = tuple[tuple[int, int, int], ...]
"""First batch, last batch, K: ascending, without gaps, from 1 to `max_num_seqs`."""

TABLE_KEY = "num_speculative_tokens_per_batch_size"


def bands(reachable_k: Sequence[int], max_num_seqs: int) -> Bands:
    """A table with every reachable K, for `max_num_seqs` at least their number.

    It is also what vLLM follows by itself while nobody steers, so K falls as the batch grows: a small
    batch leaves compute idle that verification can have. Each band ends a constant factor above the one
    before, since it is the ratio of two batch sizes that tells how differently they behave. That also
    suits the graphs: vLLM sizes those of a K by its usual grid and by the widest batch in the band of
    that K, so no band is a single batch size unless there are hardly more batch sizes than K.

    >>> bands((0, 2, 4, 8), 256)
    ((1, 4, 8), (5, 16, 4), (17, 64, 2), (65, 256, 0))
    >>> bands((0, 1, 2, 3), 4)
    ((1, 1, 3), (2, 2, 2), (3, 3, 1), (4, 4, 0))
    """
    falling = sorted(set(reachable_k), reverse=True)
    count = len(falling)
    assert 0 < count <= max_num_seqs, f"{count} K do not fit into {max_num_seqs} rows"
    found, first = [], 1
    for place, k in enumerate(falling, start=1):
        wanted = round(max_num_seqs ** (place / count))
        last = min(max(wanted, first), max_num_seqs - (count - place))
        found.append((first, last, k))
        first = last + 1
    return tuple(found)


def held(lookup: Sequence[int], max_num_seqs: int) -> frozenset[int]:
    """The K in a dense table; what stands beyond `max_num_seqs` is never used nor prepared for.

    >>> sorted(held((0, 8, 8, 4, 2), 3))
    [4, 8]
    """
    return frozenset(lookup[1 : max_num_seqs + 1])


def fewer(reachable_k: Sequence[int], rows: int) -> tuple[int, ...]:
    """At most `rows` of these K, ascending and evenly picked, smallest and largest among them.

    >>> fewer((0, 1, 2, 3, 4, 5, 6, 7, 8), 4), fewer((0, 4), 8)
    ((0, 3, 5, 8), (0, 4))
    """
    ascending = sorted(set(reachable_k))
    if len(ascending) <= rows:
        return tuple(ascending)
    assert rows >= 2, "one row holds one K, which nobody can steer"
    last = len(ascending) - 1
    return tuple(ascending[round(place * last / (rows - 1))] for place in range(rows))


def with_table(speculative: Mapping[str, Any], table: Bands) -> dict[str, Any]:
    """A speculative configuration with this table in place of its own; all other keys stay."""
    others = {key: value for key, value in speculative.items() if key != TABLE_KEY}
    return {**others, TABLE_KEY: [list(band) for band in table]}


def flag_line(speculative: Mapping[str, Any]) -> str:
    """The flag to give to `vllm serve`, quoted for a shell.

    >>> flag_line({"method": "ngram", "num_speculative_tokens": 2})
    '--speculative-config \\'{"method":"ngram","num_speculative_tokens":2}\\''
    """
    return f"--speculative-config {shlex.quote(compact(speculative))}"


def compact(speculative: Mapping[str, Any]) -> str:
    """The configuration as JSON without spaces."""
    return json.dumps(speculative, separators=(",", ":"))
