"""Which candidate predicts batch sizes that it has not seen, and how well.

Nested: the outer folds leave out whole batch sizes and are used for nothing but the reported errors; the
inner folds leave out batch sizes of what remains, and choose the candidate. No figure is of a model that
has seen the batch size it is scored on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman_controller.train.cells import Cells, Flags, Floats
from steersman_controller.train.models import CANDIDATES, AffineModel, Fit, Model

OUTER_FOLDS = 10
INNER_FOLDS = 8
"""Fewer of both where there are many cells: then a fold is well filled, and a fit takes its time."""

MANY_CELLS = 1000

BOOSTING_CELLS = 24
"""With fewer cells trees have nothing to split."""

Report = Callable[[float], None]
"""Told the fraction that is done, from 0 to 1."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of each cell by models that have not seen its batch size; NaN where there is no fold."""

    batch: Floats
    seconds: Floats
    affine_s: Floats
    fold: Floats
    """Index of the outer fold of each cell."""
    models: tuple[Model, ...]
    """The model of each fold."""
    affine: tuple[Model, ...]
    chosen: tuple[str, ...]
    """The candidate of each fold."""

    def nearest(self, batch: Floats) -> NDArray[np.intp]:
        """For each batch size a cell of the same or, by ratio, of the nearest (large ones may be merged)."""
        sizes, places = np.unique(self.batch, return_index=True)
        ratios = np.abs(np.log(batch)[:, None] - np.log(sizes)[None, :])
        found: NDArray[np.intp] = places[ratios.argmin(axis=1)]
        return found


@dataclass(frozen=True)
class Selected:
    """A model fitted on all cells of a group, and what is known about its error."""

    model: Model
    candidate: str
    scores: dict[str, float]
    """Mean relative error of each candidate on batch sizes left out, the outermost two aside."""
    out_of_fold: OutOfFold


def select(
    cells: Cells, candidates: Mapping[str, Fit] = CANDIDATES, report: Report | None = None
) -> Selected:
    """The best candidate for `cells`, fitted on all of them. Needs at least one cell."""
    out = _out_of_fold(cells, candidates, report or _silence)
    candidate, scores = choose(cells, candidates, _folds(cells, OUTER_FOLDS))
    return Selected(candidates[candidate](cells), candidate, scores, out)


def unscored(cells: Cells, name: str) -> Selected:
    """A model of cells that nobody measured: there is nothing to score it on."""
    nothing = np.full(len(cells), np.nan)
    # Nothing is noise here, so whatever comes closest is right.
    models = [fit(cells) for candidate, fit in CANDIDATES.items() if candidate != "boosting"]
    model = min(models, key=lambda one: float(relative_error(cells, one).mean()))
    return Selected(model, name, {}, OutOfFold(cells.batch, nothing, nothing, nothing, (), (), ()))


def _silence(done: float) -> None:
    del done


def choose(cells: Cells, candidates: Mapping[str, Fit], folds: int) -> tuple[str, dict[str, float]]:
    """The candidate with the smallest error on left-out batch sizes, and the errors of all.

    The smallest and the largest batch size do not decide: tables interpolate between measured batch sizes,
    and the one large error of an extrapolation would drown all others. With fewer than three batch sizes
    nothing can be left out: the first candidate, and no errors.
    """
    allowed = {
        name: fit for name, fit in candidates.items() if name != "boosting" or len(cells) >= BOOSTING_CELLS
    }
    masks = left_out(cells, folds)
    first = next(iter(allowed))
    if len(masks) < 3:
        return first, {}
    deciding = interior(cells) if len(np.unique(cells.batch)) > 3 else np.ones(len(cells), dtype=np.bool_)
    scores = {}
    for name, fit in allowed.items():
        errors = np.zeros(len(cells))
        for mask in masks:
            errors[mask] = relative_error(cells.take(mask), fit(cells.take(~mask)))
        scores[name] = float(errors[deciding].mean())
    return min(scores, key=lambda name: scores[name]), scores


def interior(cells: Cells) -> Flags:
    """The cells of all batch sizes but the smallest and the largest."""
    found: Flags = (cells.batch > cells.batch.min()) & (cells.batch < cells.batch.max())
    return found


def left_out(cells: Cells, folds: int) -> list[Flags]:
    """Masks of the cells that each fold leaves out: whole batch sizes, dealt round-robin."""
    batches = np.unique(cells.batch)
    count = min(folds, len(batches))
    if count < 2:
        return []
    place = np.searchsorted(batches, cells.batch) % count
    return [place == fold for fold in range(count)]


def _folds(cells: Cells, most: int) -> int:
    return most if len(cells) <= MANY_CELLS else max(most // 2, 3) if len(cells) <= 10 * MANY_CELLS else 3


def relative_error(cells: Cells, model: Model) -> Floats:
    """|predicted - measured| / measured of each cell."""
    return np.abs(model.seconds(cells) / cells.seconds - 1.0)


def _out_of_fold(cells: Cells, candidates: Mapping[str, Fit], report: Report) -> OutOfFold:
    seconds, affine_s, fold = (np.full(len(cells), np.nan) for _ in range(3))
    models: list[Model] = []
    affine: list[Model] = []
    chosen: list[str] = []
    folds = left_out(cells, _folds(cells, OUTER_FOLDS))
    for index, mask in enumerate(folds):
        report(index / len(folds))
        seen, unseen = cells.take(~mask), cells.take(mask)
        name, _ = choose(seen, candidates, _folds(cells, INNER_FOLDS))
        models.append(candidates[name](seen))
        affine.append(AffineModel(seen))
        chosen.append(name)
        seconds[mask], affine_s[mask], fold[mask] = (
            models[-1].seconds(unseen),
            affine[-1].seconds(unseen),
            index,
        )
    return OutOfFold(cells.batch, seconds, affine_s, fold, tuple(models), tuple(affine), tuple(chosen))
