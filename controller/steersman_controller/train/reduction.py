"""Reduces the table `steps` to cells: steps of one shape, with the quantiles of their times.

Batch size and K stay as they are; context, prefill and measured tokens are told apart by fractions of an
octave, and a cell carries their means. Where that leaves too many cells to fit, everything is told apart
less finely, large batch sizes too.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import duckdb
import numpy as np
from numpy.typing import NDArray

from steersman_controller.train.cells import Cells, Floats

Group: TypeAlias = tuple[str, ...]

MEASURED = ("context_tokens", "prefill_tokens", "target_tokens")

MOST_CELLS = 10_000
"""Of all groups together."""

SAMPLE_ROWS = 4_000
"""Of each group, about; all of them where there are fewer."""

QUARTILES = (0.25, 0.5, 0.75)

EXACT_BATCH = 16
"""Up to here a batch size is never merged with another."""


class Grain(NamedTuple):
    """Bins per octave; None: not binned."""

    batch: int | None
    context: float
    prefill: float
    tokens: float


GRAINS = (
    Grain(None, 2.0, 2.0, 8.0),
    Grain(None, 1.0, 1.0, 4.0),
    Grain(8, 1.0, 1.0, 4.0),
    Grain(8, 0.5, 0.5, 2.0),
    Grain(4, 0.5, 0.25, 1.0),
)


def reduced(connection: duckdb.DuckDBPyConnection, by: int, columns: Iterable[str]) -> dict[Group, Cells]:
    """Cells by group. `columns`: which of our columns the table has; `by0`, `by1`, ... make the groups."""
    present = set(columns)
    for grain in GRAINS:
        keys = _keys(by, present, grain)
        counted = connection.execute(
            f"select count(*) from (select distinct {', '.join(keys.values())} from steps)"
        ).fetchone()
        if counted and counted[0] <= MOST_CELLS:
            break
    shown = [f"avg({name}) as {name}" for name in MEASURED if name in present and name != "target_tokens"]
    shown.append(f"avg({_tokens(present)}) as target_tokens")
    shown += [f"median({name}) as {name}" for name in ("draft_ms", "verify_ms") if name in present]
    rows, aggregates = _weighted(keys.values()) if "weight" in present else _plain()
    selected = [*(f"{expression} as {name}" for name, expression in keys.items()), *shown, *aggregates]
    ordinals = ", ".join(str(i + 1) for i in range(len(keys)))
    sql = f"select {', '.join(selected)} from {rows} group by {ordinals} order by {ordinals}"
    return _split(connection.execute(sql).fetchnumpy(), by)


def sampled(connection: duckdb.DuckDBPyConnection, by: int, columns: Iterable[str]) -> dict[Group, Cells]:
    """Single rows of each group, as cells of their own; always the same ones. Needs the column `row`."""
    present = set(columns)
    tags = [f"by{i}" for i in range(by)]
    shown = [
        *tags,
        "batch_size as batch",
        "num_draft_tokens",
        "step_ms as q1",
        "step_ms as q0",
        "step_ms as q2",
    ]
    shown += [name for name in ("drafter_loaded", "draft_ms", "verify_ms") if name in present]
    shown += [name for name in MEASURED if name in present and name != "target_tokens"]
    shown.append(f"{_tokens(present)} as target_tokens")
    shown.append("coalesce(weight, 1) as counted" if "weight" in present else "1 as counted")
    sizes = f"(select {', '.join([*tags, 'count(*) as total'])} from steps group by all)"
    joined = f"join {sizes} using ({', '.join(tags)})" if tags else f"cross join {sizes}"
    sql = (
        f"select {', '.join(shown)} from steps {joined} "
        f"where hash(row) % 1000000 < 1000000.0 * {SAMPLE_ROWS} / total order by row"
    )
    return _split(connection.execute(sql).fetchnumpy(), by)


def _keys(by: int, present: set[str], grain: Grain) -> dict[str, str]:
    """Expressions that tell cells apart, by name."""
    batch = "batch_size"
    if grain.batch is not None:
        binned = f"round(pow(2, round({grain.batch} * log2(batch_size)) / {grain.batch}))"
        batch = f"case when batch_size <= {EXACT_BATCH} then batch_size else {binned} end"
    keys = {f"by{i}": f"by{i}" for i in range(by)} | {"batch": batch, "num_draft_tokens": "num_draft_tokens"}
    if "drafter_loaded" in present:
        keys["drafter_loaded"] = "drafter_loaded"
    bins = zip(MEASURED, (grain.context, grain.prefill, grain.tokens), strict=True)
    return keys | {
        f"{name}_bin": f"case when {name} > 0 then floor({count} * log2({name})) else -1 end"
        for name, count in bins
        if name in present
    }


def _tokens(present: set[str]) -> str:
    if "target_tokens" in present:
        return "target_tokens"
    prefill = " + prefill_tokens" if "prefill_tokens" in present else ""
    return f"batch_size * (num_draft_tokens + 1){prefill}"


def _plain() -> tuple[str, list[str]]:
    aggregates = [f"quantile_cont(step_ms, {q}) as q{i}" for i, q in enumerate(QUARTILES)]
    return "steps", [*aggregates, "count(*) as counted"]


def _weighted(keys: Iterable[str]) -> tuple[str, list[str]]:
    """Quantiles of rows that stand for several steps each: the smallest time with enough weight below it."""
    partition = ", ".join(keys)
    rows = (
        "(select *, sum(coalesce(weight, 1)) over (partition by "
        f"{partition} order by step_ms rows unbounded preceding) as below, "
        f"sum(coalesce(weight, 1)) over (partition by {partition}) as total from steps "
        "where coalesce(weight, 1) > 0)"
    )
    quantiles = [f"min(step_ms) filter (where below >= {q} * total) as q{i}" for i, q in enumerate(QUARTILES)]
    return rows, [*quantiles, "max(total) as counted"]


def _split(table: Mapping[str, Any], by: int) -> dict[Group, Cells]:
    size = len(table["batch"])
    zeros, unknown = np.zeros(size), np.full(size, np.nan)
    cells = Cells(
        batch=_floats(table["batch"]),
        k=_floats(table["num_draft_tokens"]),
        tokens=_floats(table["target_tokens"]),
        context=_floats(table.get("context_tokens", zeros)),
        prefill=_floats(table.get("prefill_tokens", zeros)),
        loaded=_loaded(table.get("drafter_loaded"), size),
        steps=_floats(table["counted"]),
        seconds=_floats(table["q1"]) / 1e3,
        spread=(_floats(table["q2"]) - _floats(table["q0"])) / _floats(table["q1"]),
        draft_s=_floats(table.get("draft_ms", unknown)) / 1e3,
        verify_s=_floats(table.get("verify_ms", unknown)) / 1e3,
    )
    tags = [tuple(str(table[f"by{i}"][row]) for i in range(by)) for row in range(size)]
    return {group: cells.take(np.array([tag == group for tag in tags])) for group in sorted(set(tags))}


def _loaded(column: Any, size: int) -> NDArray[np.bool_]:
    """Unknown means loaded: whoever measured without a drafter says so, or leaves its name empty."""
    if column is None:
        return np.ones(size, dtype=np.bool_)
    values = np.ma.filled(np.ma.asarray(column, dtype=object), None).tolist()
    return np.array([value is None or bool(value) for value in values])


def _floats(column: Any) -> Floats:
    filled: Floats = np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan)
    return filled
