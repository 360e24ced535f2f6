"""How often drafts are accepted, by position: the half of goodput that is not time.

Two files are understood. *Acceptance by position*: `segment, position, acceptance`, conditional
(accepted / reached). The column `position_survival` of step times: the share of drafts in which position
1, 2, ... was accepted, unconditional, as fractions or percent, separated by blanks, `;`, `|` or `,`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from steersman_controller.train.table_file import TableFile, database, identifier
from steersman_policies.units import K_LIMIT

ASSUMED = {"assumed 0.6": (0.6,) * K_LIMIT, "assumed 0.8": (0.8,) * K_LIMIT}
"""What the crossover is drawn for where no acceptance is given; said wherever it is shown."""


def read_acceptance(path: Path) -> dict[str, tuple[float, ...]]:
    """Position acceptance by segment. Raises ValueError in one line for a gap or a value that is none."""
    file = TableFile(path)
    names = [file.column(name, "--acceptance") for name in ("segment", "position", "acceptance")]
    with database() as connection:
        columns = ", ".join(f"cast({identifier(name)} as varchar)" for name in names)
        file.run(connection, f"create temp table found as select {columns} from {file.scan}")
        rows = connection.execute("select * from found").fetchall()
    found: dict[str, dict[int, float]] = {}
    for number, (segment, position, acceptance) in enumerate(rows, start=1):
        where = f"{path}: row {number}"
        try:
            at, share = int(position), float(acceptance)
        except (TypeError, ValueError):
            raise ValueError(
                f"{where}: position {position!r}, acceptance {acceptance!r} are no numbers"
            ) from None
        if not 1 <= at <= K_LIMIT or not 0.0 <= share <= 1.0:
            raise ValueError(f"{where}: position is from 1 to {K_LIMIT}, acceptance from 0 to 1")
        if found.setdefault(segment or "", {}).setdefault(at, share) != share:
            raise ValueError(f"{where}: segment {segment!r} has position {at} twice")
    for segment, positions in found.items():
        if sorted(positions) != list(range(1, len(positions) + 1)):
            raise ValueError(f"{path}: segment {segment!r} has gaps, positions {sorted(positions)}")
    if not found:
        raise ValueError(f"{path}: no rows")
    return {name: tuple(share for _, share in sorted(by.items())) for name, by in sorted(found.items())}


def parse_survival(text: str, k: int, where: str) -> tuple[float, ...]:
    """The survival of positions 1 to K as fractions.

    >>> parse_survival("72.2 50", 2, "here"), parse_survival("[0.7, 0.5]", 2, "here")
    ((0.722, 0.5), (0.7, 0.5))
    """
    try:
        values = [float(part) for part in re.split(r"[\s;|,]+", text.strip("[]() ")) if part]
    except ValueError:
        raise ValueError(f"{where}: {text!r} are no numbers") from None
    if any(value > 1.0 for value in values):
        values = [value / 100.0 for value in values]
    if len(values) != k or not all(0.0 <= value <= 1.0 for value in values):
        raise ValueError(f"{where}: {text!r}, allowed are {k} shares for K = {k}")
    return tuple(values)


class Survival:
    """Mean survival by K; for a K that was never measured, the chain of the position acceptances."""

    def __init__(self, by_k: Mapping[int, Sequence[Sequence[float]]]) -> None:
        self._by_k = {k: np.mean(np.array(rows), axis=0) for k, rows in by_k.items() if rows and k}
        accepted: dict[int, list[float]] = {}
        for chain in self._by_k.values():
            before = 1.0
            for position, share in enumerate(chain.tolist(), start=1):
                accepted.setdefault(position, []).append(min(share / before, 1.0) if before > 0.0 else 0.0)
                before = share
        self._acceptance = [float(np.mean(accepted[position])) for position in sorted(accepted)]

    @property
    def position_acceptance(self) -> tuple[float, ...]:
        """Accepted / reached of each position, every K counting once."""
        return tuple(self._acceptance)

    def tokens_per_step(self, k: int) -> float:
        """Expected tokens that a request commits in a step, the bonus token included."""
        if k in self._by_k:
            return 1.0 + float(self._by_k[k].sum())
        return tokens_per_step(self._acceptance, k)


def tokens_per_step(acceptance: Sequence[float], k: int) -> float:
    """1 + sum of survivals (Leviathan 2023, by position); beyond the last position its value goes on.

    >>> tokens_per_step((0.5, 0.5), 2), tokens_per_step((), 3)
    (1.75, 1.0)
    """
    chain, total = 1.0, 1.0
    for position in range(k):
        chain *= acceptance[min(position, len(acceptance) - 1)] if acceptance else 0.0
        total += chain
    return total
