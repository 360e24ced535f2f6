"""What a model card says about intervals and about the choice of K."""

from typing import Any

from msgspec import Struct

LOW_LOAD = 64
"""The largest batch size of the figures `..._to_64`."""


class Interval(Struct, frozen=True):
    """Factors on predicted seconds."""

    q05: float
    q50: float
    q95: float


class ChoiceScore(Struct, frozen=True):
    """Regrets of one rule."""

    mean_regret: float
    max_regret: float
    mean_regret_to_64: float
    max_regret_to_64: float


class ChoiceReport(Struct, frozen=True):
    """The learned choice and the naive ones on the same cells."""

    column: str
    """Acceptance was learned where this column differs."""
    cells: int
    """Left out, and with throughputs that differ by more than 5 % between K."""
    cells_to_64: int
    learned: ChoiceScore
    naive: dict[str, ChoiceScore]
    worst: tuple[dict[str, Any], ...]
    """The cells where the learned choice gives most away."""
