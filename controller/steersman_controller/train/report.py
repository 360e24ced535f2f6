"""What a model card says about intervals, about the choice of K and about segments."""

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


class GoodputGain(Struct, frozen=True, forbid_unknown_fields=True):
    """Relative gain over one K for all; the lowest and the highest are those of single folds."""

    batch: int
    mean: float
    low: float
    high: float


class Gain(Struct, frozen=True, forbid_unknown_fields=True):
    """By how much the held-out log loss per decided draft token falls, with its 95 % interval."""

    mean: float
    low: float
    high: float


class LeafCard(Struct, frozen=True, forbid_unknown_fields=True):
    """A segment that the tree gives."""

    segment: str
    when: tuple[str, ...]
    requests: int
    acceptance: float
    between_sd: float


class SegmentsCard(Struct, frozen=True, forbid_unknown_fields=True):
    """What was found about segments, kept or not."""

    requests: int
    tagged: int
    decided: float
    """Draft tokens that were accepted or were the first to be rejected."""
    log_loss: dict[str, float]
    """By way of sorting; held out, per decided draft token."""
    over_one: dict[str, Gain]
    """Of each way over a single segment."""
    tree_over_tags: Gain | None
    """None where every request had a tag."""
    goodput: dict[str, tuple[GoodputGain, ...]]
    """Of each way over a single segment, by batch size; empty where no step time was known."""
    kept: bool
    reason: str
    leaves: tuple[LeafCard, ...]
    same_as: dict[str, str]
