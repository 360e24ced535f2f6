"""Reads step times in the interchange format, and reduces them to cells by group.

A group is one combination of the values in the `--by` columns. **A row without draft tokens (K = 0) and
with an empty value in a `--by` column was measured without a drafter**: it belongs to every group that
has draft tokens and agrees with it in the other `--by` columns, as `drafter_loaded = false`. Where there
is no such group it stays a group of its own.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_controller.train.cells import QUANTILES, Cells, Floats, joined
from steersman_controller.train.table_file import Report, TableFile, database, identifier, known, literal
from steersman_policies.units import K_LIMIT

Group: TypeAlias = tuple[str, ...]

REQUIRED = ("batch_size", "num_draft_tokens", "step_ms")
MEASURED = ("context_tokens", "prefill_tokens", "target_tokens")
PARTIAL = ("draft_ms", "verify_ms", "drafter_loaded", "weight")
"""May be empty in some rows: not measured apart, unknown, 1."""
BINS_PER_OCTAVE = {"context_tokens": 2, "prefill_tokens": 2, "target_tokens": 8}
"""How finely these are told apart; a cell then carries their mean."""
SERVED = ("throughput_tok_s", "position_survival")
"""For `--evaluate-choice` only."""
OURS = (*REQUIRED, *MEASURED, *PARTIAL, *SERVED)

_ALLOWED = {
    "batch_size": "a whole number from 1",
    "num_draft_tokens": f"a whole number from 0 to {K_LIMIT}",
    "step_ms": "a number above 0",
    "drafter_loaded": "true, false or empty",
}
_NUMBER = "a number from 0"


class Source(Struct, frozen=True):
    """A file of step times, and how to read it."""

    path: Path
    columns: dict[str, str] = {}
    """Our name to the file's, where they differ."""
    by: tuple[str, ...] = ()
    where: dict[str, str] = {}
    """Column to the value that a row must have."""


class Evidence(Struct, frozen=True):
    """What a file says about step times."""

    groups: dict[Group, Cells]
    rows: int
    measured: tuple[str, ...]
    """Which of our columns the file has."""


def read_step_times(source: Source, report: Report | None = None) -> Evidence:
    """Cells by group. Raises ValueError in one line naming file, row, column and what is allowed."""
    file = TableFile(source.path)
    theirs = mapped(file, source)
    with database() as connection:
        load_rows(connection, file, theirs, source, report)
        _check(connection, file, theirs)
        counted = connection.execute("select count(*) from steps").fetchone()
        rows = int(counted[0]) if counted else 0
        if not rows:
            raise ValueError(f"{source.path}: no row" + (" passes --where" if source.where else ""))
        groups = _groups(connection, len(source.by), theirs)
    return Evidence(merged_without_drafter(groups), rows, tuple(theirs))


def mapped(file: TableFile, source: Source) -> dict[str, str]:
    """Our columns that the file has, by their name in the file."""
    for ours in source.columns:
        known(OURS, ours, "--columns")
    theirs: dict[str, str] = {}
    for ours in OURS:
        if ours in source.columns:
            theirs[ours] = file.column(source.columns[ours], f"--columns {ours}=...")
        elif ours in file.names:
            theirs[ours] = ours
        elif ours in REQUIRED:
            file.column(ours, f"needed; or say --columns {ours}=THEIRS")
    for name in (*source.by, *source.where):
        file.column(name, "--by" if name in source.by else "--where")
    return theirs


def load_rows(
    connection: duckdb.DuckDBPyConnection,
    file: TableFile,
    theirs: Mapping[str, str],
    source: Source,
    report: Report | None,
) -> None:
    """Make the table `steps`: numbers where ours are numbers, `by0`, `by1`, ... and the row's number."""
    parts = ["row"]
    for ours, name in theirs.items():
        text = f"nullif(trim(cast({identifier(name)} as varchar)), '')"
        if ours == "position_survival":
            parts.append(f"{text} as {ours}")
        elif ours == "drafter_loaded":
            parts.append(f"try_cast({text} as boolean) as {ours}")
            parts.append(f"{text} is not null and try_cast({text} as boolean) is null as bad_{ours}")
        else:
            parts.append(f"try_cast({text} as double) as {ours}")
            if ours in PARTIAL or ours in SERVED:
                parts.append(f"{text} is not null and try_cast({text} as double) is null as bad_{ours}")
    parts += [
        f"coalesce(trim(cast({identifier(name)} as varchar)), '') as by{i}"
        for i, name in enumerate(source.by)
    ]
    conditions = [
        f"trim(cast({identifier(name)} as varchar)) = {literal(value)}"
        for name, value in source.where.items()
    ]
    condition = " where " + " and ".join(conditions) if conditions else ""
    file.run(
        connection,
        f"create temp table steps as select {', '.join(parts)} "
        f"from (select row_number() over () as row, * from {file.scan}){condition}",
        report,
    )


def merged_without_drafter(groups: Mapping[Group, Cells]) -> dict[Group, Cells]:
    """The groups after the rule at the top of this file."""
    drafting = {group: cells for group, cells in groups.items() if (cells.k > 0).any()}
    out = dict(drafting)
    for group, cells in groups.items():
        if group in drafting:
            continue
        homes = [home for home in drafting if "" in group and agrees(group, home)]
        for home in homes:
            out[home] = joined(out[home], cells.without_drafter())
        if not homes:
            out[group] = cells
    return dict(sorted(out.items()))


def agrees(group: Group, home: Group) -> bool:
    """Whether rows of `group` belong to `home`, as far as the names go.

    >>> agrees(("", "chat"), ("eagle", "chat")), agrees(("", "code"), ("eagle", "chat"))
    (True, False)
    """
    return all(mine in ("", theirs) for mine, theirs in zip(group, home, strict=True))


def _check(connection: duckdb.DuckDBPyConnection, file: TableFile, theirs: Mapping[str, str]) -> None:
    """Refuse the first value that is not allowed."""
    for ours, name in theirs.items():
        if ours == "position_survival":
            continue
        found = connection.execute(f"select min(row) from steps where {_bad(ours)}").fetchone()
        if found and found[0] is not None:
            row = int(found[0])
            text = connection.execute(
                f"select cast({identifier(name)} as varchar) from "
                f"(select row_number() over () as row, * from {file.scan}) where row = {row}"
            ).fetchone()
            value = "empty" if not text or text[0] is None else repr(text[0])
            also = f" (our {ours})" if ours != name else ""
            raise ValueError(
                f"{file.path}: row {row}, column {name}{also} is {value}, "
                f"allowed is {_ALLOWED.get(ours, _NUMBER)}"
            )


def _bad(ours: str) -> str:
    if ours == "drafter_loaded":
        return f"bad_{ours}"
    number = f"not isfinite({ours}) or {ours} < 0"
    if ours in PARTIAL or ours in SERVED:
        return f"bad_{ours} or ({ours} is not null and ({number}))"
    rule = {
        "batch_size": f" or {ours} < 1 or {ours} <> floor({ours})",
        "num_draft_tokens": f" or {ours} > {K_LIMIT} or {ours} <> floor({ours})",
        "step_ms": f" or {ours} = 0",
    }.get(ours, "")
    return f"{ours} is null or {number}{rule}"


def _groups(connection: duckdb.DuckDBPyConnection, by: int, theirs: Mapping[str, str]) -> dict[Group, Cells]:
    """Reduce rows to cells. Context and prefill are binned by half octaves, tokens by eighths."""
    keys = {f"by{i}": f"by{i}" for i in range(by)}
    keys |= {name: name for name in ("batch_size", "num_draft_tokens", "drafter_loaded") if name in theirs}
    keys |= {
        f"{name}_bin": f"case when {name} > 0 then floor({bins} * log2({name})) else -1 end"
        for name, bins in BINS_PER_OCTAVE.items()
        if name in theirs
    }
    shown = [f"avg({name}) as {name}" for name in MEASURED if name in theirs]
    shown += [f"median({name}) as {name}" for name in ("draft_ms", "verify_ms") if name in theirs]
    rows, aggregates = _weighted(keys.values()) if "weight" in theirs else _plain()
    selected = [*(f"{expression} as {name}" for name, expression in keys.items()), *shown, *aggregates]
    ordinals = ", ".join(str(i + 1) for i in range(len(keys)))
    sql = f"select {', '.join(selected)} from {rows} group by {ordinals} order by {ordinals}"
    return _split(connection.execute(sql).fetchnumpy(), by)


def _plain() -> tuple[str, list[str]]:
    aggregates = [f"quantile_cont(step_ms, {q}) as q{i}" for i, q in enumerate(QUANTILES)]
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
    quantiles = [f"min(step_ms) filter (where below >= {q} * total) as q{i}" for i, q in enumerate(QUANTILES)]
    return rows, [*quantiles, "max(total) as counted"]


def _split(table: Mapping[str, Any], by: int) -> dict[Group, Cells]:
    batch, k = _floats(table["batch_size"]), _floats(table["num_draft_tokens"])
    size = len(batch)
    zeros, unknown = np.zeros(size), np.full(size, np.nan)
    prefill = _floats(table.get("prefill_tokens", zeros))
    measured = table.get("target_tokens")
    cells = Cells(
        batch=batch,
        k=k,
        tokens=batch * (k + 1.0) + prefill if measured is None else _floats(measured),
        context=_floats(table.get("context_tokens", zeros)),
        prefill=prefill,
        loaded=_loaded(table.get("drafter_loaded"), size),
        steps=_floats(table["counted"]),
        quantiles_s=np.stack([_floats(table[f"q{i}"]) for i in range(len(QUANTILES))], axis=1) / 1e3,
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
