"""Reads step times in the interchange format, and reduces them to cells by group.

A group is one combination of the values in the `--by` columns. **A row without draft tokens (K = 0) and
with an empty value in a `--by` column was measured without a drafter**: it belongs to every group that
has draft tokens and agrees with it in the other `--by` columns, as `drafter_loaded = false`. Where there
is no such group it stays a group of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import duckdb
from msgspec import Struct

from steersman_controller.train.cells import Cells, joined
from steersman_controller.train.foreign import translated
from steersman_controller.train.reduction import MEASURED, Group, reduced, sampled
from steersman_controller.train.table_file import Report, TableFile, database, identifier, known, literal
from steersman_policies.units import K_LIMIT

REQUIRED = ("batch_size", "num_draft_tokens", "step_ms")
PARTIAL = ("draft_ms", "verify_ms", "drafter_loaded", "weight")
"""May be empty in some rows: not measured apart, unknown, 1."""
SERVED = ("throughput_tok_s", "position_survival")
"""For `--evaluate-choice` only."""
OURS = (*REQUIRED, *MEASURED, *PARTIAL, *SERVED)

MOST = 1e12
"""No number is larger."""

_ALLOWED = {
    "batch_size": f"a whole number from 1 to {MOST:g}",
    "num_draft_tokens": f"a whole number from 0 to {K_LIMIT}",
    "step_ms": f"a number above 0, to {MOST:g}",
    "drafter_loaded": "true, false or empty",
}
_NUMBER = f"a number from 0 to {MOST:g}"

_CONTRADICTIONS = {
    ("target_tokens", "batch_size"): ("target_tokens < batch_size", "below the batch size"),
    ("drafter_loaded", "num_draft_tokens"): (
        "num_draft_tokens > 0 and not drafter_loaded",
        "false in spite of its draft tokens",
    ),
}
"""Columns that must agree in a row: what may not be, in SQL, and how that is said."""


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
    sample: dict[Group, Cells]
    """Single rows of each group."""
    rows: int
    is_served: bool
    """Whether it has throughput and survivals, too."""


def read_step_times(source: Source, report: Report | None = None) -> Evidence:
    """Cells by group. Raises ValueError in one line naming file, row, column and what is allowed."""
    file = translated(TableFile(source.path))
    theirs = mapped(file, source)
    with database() as connection:
        load_rows(connection, file, theirs, source, report)
        _check(connection, file, theirs)
        counted = connection.execute("select count(*) from steps").fetchone()
        rows = int(counted[0]) if counted else 0
        if not rows:
            raise ValueError(f"{source.path}: no row" + (" passes --where" if source.where else ""))
        _check_rows(connection, file, theirs)
        groups = reduced(connection, len(source.by), theirs)
        sample = sampled(connection, len(source.by), theirs)
    return Evidence(
        merged_without_drafter(groups),
        merged_without_drafter(sample),
        rows,
        all(name in theirs for name in SERVED),
    )


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


def _check_rows(connection: duckdb.DuckDBPyConnection, file: TableFile, theirs: Mapping[str, str]) -> None:
    """Refuse the first row that contradicts itself, and a file in which no row counts."""
    for (ours, other), (rule, said) in _CONTRADICTIONS.items():
        if ours not in theirs or other not in theirs:
            continue
        found = connection.execute(f"select min(row) from steps where {rule}").fetchone()
        if found and found[0] is not None:
            raise ValueError(f"{file.path}: row {int(found[0])}, column {theirs[ours]} is {said}")
    if "weight" in theirs:
        counted = connection.execute("select count(*) from steps where coalesce(weight, 1) > 0").fetchone()
        if not counted or not counted[0]:
            raise ValueError(f"{file.path}: column {theirs['weight']} is 0 in every row")


def _bad(ours: str) -> str:
    if ours == "drafter_loaded":
        return f"bad_{ours}"
    number = f"not isfinite({ours}) or {ours} < 0 or {ours} > {MOST}"
    if ours in PARTIAL or ours in SERVED:
        return f"bad_{ours} or ({ours} is not null and ({number}))"
    rule = {
        "batch_size": f" or {ours} < 1 or {ours} <> floor({ours})",
        "num_draft_tokens": f" or {ours} > {K_LIMIT} or {ours} <> floor({ours})",
        "step_ms": f" or {ours} = 0",
    }.get(ours, "")
    return f"{ours} is null or {number}{rule}"
