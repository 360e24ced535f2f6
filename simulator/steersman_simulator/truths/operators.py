"""Forwards composed of per-operator tables measured inside vLLM: one layer, times the number of layers.

Three tables of one model on one card (CSV, CSV.gz, JSONL or Parquet), times in `time_us`: `dense` (`layer`,
`tokens`), `per_sequence` (`layer`, `sequences`: output head and sampler) and `attention` (`prefill_chunk`,
`kv_prefill` tokens before the chunk, `n_decode` requests at `kv_decode` tokens). An attention kernel with a
prompt in it takes longer for its decode requests than one without, so what they add was measured for
mixed steps, too. Of several chunks in a step each counts by itself, and the decode requests add what they
add to one chunk of that many tokens. All-reduces between cards are not in such tables: they are priced as a
ring over the link.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from steersman_policies.view import interpolate
from steersman_simulator.truths.link import Link
from steersman_simulator.workload.rows import rows
from steersman_simulator.workload.values import Cells

ONCE = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
"""Before attention and before the MLP."""

ALLREDUCES_PER_LAYER = 2

_MOST_TOKENS = 8192
_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".jsonl")

Column: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]
"""Ascending sizes, and seconds."""


class _Attention(NamedTuple):
    """Seconds of one layer."""

    prefill: dict[int, Column]
    """By tokens of the chunk: over those before it."""
    decode: dict[int, Column]
    """By requests: over the context of each."""
    added: dict[int, dict[int, Column]]
    """By tokens of the chunk and requests: what the requests add to the chunk, over their context."""


class OperatorPasses:
    """Forwards of one model on one card, or on its share of several. See `composed.Passes`."""

    def __init__(self, tables: Path, layers: int, link: Link | None = None) -> None:
        reduced = (link.allreduce_s(t) if link else 0.0 for t in range(_MOST_TOKENS + 1))
        dense = _summed(_by_layer(find(tables, "dense"), "tokens"), layers)
        self._dense_s = [s + layers * ALLREDUCES_PER_LAYER * r for s, r in zip(dense, reduced, strict=True)]
        self._heads_s = _summed(_by_layer(find(tables, "per_sequence"), "sequences"), 1)
        attention = _attention(find(tables, "attention"))
        self._layers = layers
        self._prefill = _Axis(attention.prefill)
        self._decode = _Axis(attention.decode)
        self._added_chunks = sorted(attention.added)
        self._added = [_Axis(attention.added[chunk]) for chunk in self._added_chunks]

    def forward_s(
        self, tokens: int, heads: int, requests: int, context_tokens: int, chunks: tuple[tuple[int, int], ...]
    ) -> float:
        """See `Passes`."""
        seconds = _listed(self._dense_s, tokens) + _listed(self._heads_s, heads)
        if not chunks:
            attention = self._decode.at(requests, context_tokens / requests) if requests else 0.0
            return seconds + self._layers * attention
        attention = 0.0
        together = 0
        for chunk, cached in chunks:
            attention += self._prefill.at(chunk, cached)
            together += chunk
        if requests:
            attention += self._added_s(together, requests, context_tokens / requests)
        return seconds + self._layers * attention

    def _added_s(self, chunk: int, requests: int, context: float) -> float:
        grid, axes = self._added_chunks, self._added
        if not grid:
            return self._decode.at(requests, context)
        right = bisect_left(grid, chunk)
        if right in (0, len(grid)):
            return axes[min(right, len(grid) - 1)].at(requests, context)
        low, high = axes[right - 1].at(requests, context), axes[right].at(requests, context)
        return low + (high - low) * (chunk - grid[right - 1]) / (grid[right] - grid[right - 1])


class _Axis:
    """A table over two sizes whose second grid may differ from row to row, linear between its points."""

    def __init__(self, columns: Mapping[int, Column]) -> None:
        self._grid = sorted(columns)
        self._columns = dict(columns)

    def at(self, size: int, second: float) -> float:
        """Flat below the first points, the last slope beyond the last."""
        column = self._columns.get(size)
        if column is None:
            column = self._columns[size] = self._between(size)
        return interpolate(*column, second)

    def _between(self, size: int) -> Column:
        grid = self._grid
        if size <= grid[0] or len(grid) == 1:
            return self._columns[grid[0]]
        right = min(bisect_left(grid, size), len(grid) - 1)
        low, high = self._columns[grid[right - 1]], self._columns[grid[right]]
        part = (size - grid[right - 1]) / (grid[right] - grid[right - 1])
        seconds = sorted({*low[0], *high[0]})
        values = [
            interpolate(*low, x) + part * (interpolate(*high, x) - interpolate(*low, x)) for x in seconds
        ]
        return tuple(seconds), tuple(values)


def find(tables: Path, name: str) -> Path:
    """The file of one of the three tables: `TABLES_name.csv` or `TABLES/name.csv`, or another format.

    Raises FileNotFoundError in one line.
    """
    stems = (tables / name, tables.with_name(f"{tables.name}_{name}"))
    for stem in stems:
        for suffix in _SUFFIXES:
            path = stem.with_name(stem.name + suffix)
            if path.is_file():
                return path
    raise FileNotFoundError(
        f"operators: no {stems[1]}.csv and no {stems[0]}.csv (or .csv.gz, .parquet, .jsonl)"
    )


def _summed(columns: Mapping[str, Column], layers: int) -> list[float]:
    """Seconds of a whole forward by tokens, from 0; beyond a table its last slope goes on."""
    sizes, total = np.arange(_MOST_TOKENS + 1, dtype=np.float64), np.zeros(_MOST_TOKENS + 1)
    for name, (grid, seconds) in columns.items():
        count = 1 if name in ONCE else layers * (1 + (name in TWICE))
        slope = (seconds[-1] - seconds[-2]) / (grid[-1] - grid[-2]) if len(grid) > 1 else 0.0
        total += count * (np.interp(sizes, grid, seconds) + slope * np.maximum(sizes - grid[-1], 0.0))
    return [float(x) for x in total]


def _listed(seconds: Sequence[float], size: int) -> float:
    if size < len(seconds):
        return seconds[size]
    return seconds[-1] + (size - len(seconds) + 1) * (seconds[-1] - seconds[-2])


def _by_layer(path: Path, size: str) -> dict[str, Column]:
    points: dict[str, dict[int, float]] = {}
    for name, (at,), seconds in _read(path, (size,), "layer"):
        points.setdefault(name, {})[at] = seconds
    if not points:
        raise ValueError(f"{path}: no rows")
    return {name: _column(found) for name, found in points.items()}


def _attention(path: Path) -> _Attention:
    table = list(_read(path, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")))
    prefill: dict[int, dict[int, float]] = {}
    decode: dict[int, dict[int, float]] = {}
    for _, (chunk, before, requests, context), seconds in table:
        if not requests:
            prefill.setdefault(chunk, {})[before] = seconds
        elif not chunk:
            decode.setdefault(requests, {})[context] = seconds
    if not (prefill and decode):
        raise ValueError(f"{path}: rows without decode requests and rows without a chunk are needed")
    added: dict[int, dict[int, dict[int, list[float]]]] = {}
    for _, (chunk, before, requests, context), seconds in table:
        if chunk and requests:
            alone = prefill.get(chunk, {}).get(before)
            if alone is None:
                raise ValueError(f"{path}: no row of chunk {chunk} after {before} tokens with n_decode 0")
            at = added.setdefault(chunk, {}).setdefault(requests, {})
            at.setdefault(context, []).append(max(seconds - alone, 0.0))
    return _Attention(
        {chunk: _column(found) for chunk, found in prefill.items()},
        {requests: _column(found) for requests, found in decode.items()},
        {
            chunk: {
                # It hardly depends on what was in the cache before the chunk.
                requests: _column({context: sum(s) / len(s) for context, s in found.items()})
                for requests, found in by_requests.items()
            }
            for chunk, by_requests in added.items()
        },
    )


def _column(points: Mapping[int, float]) -> Column:
    grid = tuple(sorted(points))
    return grid, tuple(points[size] for size in grid)


def _read(path: Path, sizes: Sequence[str], name: str = "") -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, sizes and seconds of each row. Raises ValueError naming file, line, column and value."""
    cells = Cells(path)
    for row in rows(path, [*([name] if name else []), *sizes, "time_us"]):
        cells.at, values = row.number, row.values
        time_us = cells.number("time_us", values["time_us"], "a number from 0")
        yield (
            str(values[name]) if name else "",
            tuple(cells.tokens(size, values[size]) for size in sizes),
            time_us / 1e6,
        )
