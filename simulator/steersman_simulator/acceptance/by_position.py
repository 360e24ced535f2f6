"""Position acceptance as others publish it, as the truth of a segment."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from steersman_controller.train.table_file import TableFile, database, identifier, literal
from steersman_policies.units import K_LIMIT, UNKNOWN_SEGMENT
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth


def by_position(acceptance: Mapping[str, Sequence[float]]) -> AcceptanceTruth:
    """Always a full draft; by segment, P(position j is accepted | it is reached).

    Beyond the last position its value goes on. One segment alone is also that of all others.

    >>> by_position({"chat": [0.7, 0.5]}).segments["unknown"].acceptance
    (0.7, 0.5)
    """
    segments = {name: SegmentTruth(1.0, 0.0, (1.0,), tuple(values)) for name, values in acceptance.items()}
    if not segments or not all(truth.acceptance for truth in segments.values()):
        raise ValueError("acceptance: give at least one position")
    if len(segments) == 1:
        segments.setdefault(UNKNOWN_SEGMENT, next(iter(segments.values())))
    return AcceptanceTruth(segments)


def conditional(survival: Sequence[float]) -> tuple[float, ...]:
    """From the share of drafts that got to each position to the acceptance of those that reached it.

    >>> conditional([0.8, 0.4, 0.4])
    (0.8, 0.5, 1.0)
    """
    falling = [1.0, *survival]
    pairs = list(zip(falling, survival, strict=False))
    if any(not 0.0 <= b <= a for a, b in pairs):
        raise ValueError(f"acceptance by position: {list(survival)} must fall from at most 1 to at least 0")
    return tuple(b / a if a > 0.0 else 0.0 for a, b in pairs)


def read_positions(path: Path) -> dict[str, tuple[float, ...]]:
    """Conditional acceptance by segment from a table: `segment, position, acceptance`, `segment` optional.

    CSV, JSONL (or .gz) or Parquet. Raises FileNotFoundError, or ValueError naming file and row.
    """
    table, column = TableFile(path), {}
    for name in ("position", "acceptance"):
        column[name] = identifier(table.column(name, "acceptance by position"))
    segment = identifier("segment") if "segment" in table.names else literal(UNKNOWN_SEGMENT)
    with database() as connection:
        table.run(
            connection,
            f"create table t as select {segment} as s, try_cast({column['position']} as double) as p, "  # noqa: S608
            f"try_cast({column['acceptance']} as double) as a from {table.scan}",
        )
        rows = connection.execute("select s, p, a from t").fetchall()
    found: dict[str, dict[int, float]] = {}
    for number, (name, position, acceptance) in enumerate(rows, start=1):
        good = position is not None and position in range(1, K_LIMIT + 1)
        if not good or acceptance is None or not 0.0 <= acceptance <= 1.0:
            told = f"position {position} with acceptance {acceptance}"
            raise ValueError(f"{path}: row {number}: {told}; allowed are 1 to {K_LIMIT}, and 0 to 1")
        if found.setdefault(str(name), {}).setdefault(int(position), acceptance) != acceptance:
            raise ValueError(f"{path}: row {number}: {name} position {int(position)} is there twice")
    return {name: _filled(path, name, values) for name, values in sorted(found.items())}


def _filled(path: Path, segment: str, values: Mapping[int, float]) -> tuple[float, ...]:
    missing = next((at for at in range(1, max(values) + 1) if at not in values), None)
    if missing is not None:
        raise ValueError(f"{path}: segment {segment} has no position {missing}")
    return tuple(values[at] for at in sorted(values))
