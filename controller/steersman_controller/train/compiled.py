"""Dense tables made of a model: what is deployed. No estimator is asked at run time.

Two forms. `step_s[context][batch][K]` answers what a whole step takes, for people and for choosing K
offline. The other is the planners' `StepCost`: seconds of the forward by tokens, of drafting by depth
and requests. A model that is no sum of those (trees) is projected onto it, and the error of that is kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from steersman_controller.train.cells import Cells, Floats, shapes
from steersman_controller.train.models import Model
from steersman_controller.train.physics import PhysicsModel, fit_physics
from steersman_policies.view import StepCost

BATCHES = 64
"""At most so many batch sizes get a row of their own."""

CONTEXTS = 5
GROWTH = 4
"""Of the grid of summed contexts."""

LEAST_FORWARD = 0.05
"""A forward takes at least this share of what drafting leaves of a step."""


@dataclass(frozen=True)
class Tables:
    """Of one group. Lengths of the axes are those of the grids."""

    batches: tuple[int, ...]
    ks: tuple[int, ...]
    mean_contexts: tuple[int, ...]
    """Context tokens per request; a single 0 where context was not measured."""
    step_s: Floats
    """[context][batch][K], beside a loaded drafter."""
    no_drafter_s: Floats
    """[context][batch], K = 0 without any drafter; NaN where that was never measured."""
    steps: Floats
    """[batch][K]: how many steps were seen there; 0 means: a prediction only."""
    cost: StepCost
    cost_error: float
    """Mean |StepCost - model| / model over the dense table, where the requests fit into the KV pool."""


def compile_tables(model: Model, cells: Cells, relative_error: float) -> Tables:
    """The tables of a model that was fitted on `cells`."""
    batches, ks = _some(np.unique(cells.batch), BATCHES), tuple(range(int(cells.k.max()) + 1))
    contexts = _contexts(cells)
    grid = [_grid(batches, ks, context, loaded=True) for context in contexts]
    step_s = np.stack([model.seconds(cell).reshape(len(batches), len(ks)) for cell in grid])
    no_drafter_s = np.full((len(contexts), len(batches)), np.nan)
    if (~cells.loaded).any():
        bare = [_grid(batches, (0,), context, loaded=False) for context in contexts]
        no_drafter_s = np.stack([model.seconds(cell) for cell in bare])
    physics = model if isinstance(model, PhysicsModel) else _projected(model, cells)
    cost = _step_cost(physics, cells, ks, relative_error)
    return Tables(
        batches=batches,
        ks=ks,
        mean_contexts=contexts,
        step_s=step_s,
        no_drafter_s=no_drafter_s,
        steps=_seen(cells, batches, ks),
        cost=cost,
        cost_error=_cost_error(cost, physics, grid, step_s),
    )


def _grid(batches: Iterable[int], ks: tuple[int, ...], context: int, *, loaded: bool) -> Cells:
    batch, k = np.meshgrid(
        np.array([*batches], dtype=np.float64), np.array(ks, dtype=np.float64), indexing="ij"
    )
    return shapes(batch.ravel(), k.ravel(), mean_context=float(context), loaded=loaded)


def _some(values: Floats, count: int) -> tuple[int, ...]:
    """At most `count` of ascending values, ends included, evenly by rank."""
    places = np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int))
    return tuple(int(value) for value in values[places])


def _contexts(cells: Cells) -> tuple[int, ...]:
    measured = cells.mean_context[cells.context > 0]
    if not len(measured):
        return (0,)
    return tuple(sorted({round(x) for x in np.quantile(measured, np.linspace(0.0, 1.0, CONTEXTS)).tolist()}))


def _projected(model: Model, cells: Cells) -> PhysicsModel:
    """The sum of physical terms closest to the model where there is evidence."""
    unknown = np.full(len(cells), np.nan)
    return fit_physics(
        replace(cells, seconds=model.seconds(cells), draft_s=unknown, verify_s=unknown),
        jumps=True,
        requests=True,
    )


def _step_cost(model: PhysicsModel, cells: Cells, ks: tuple[int, ...], relative_error: float) -> StepCost:
    running = model.running(cells)
    tokens = _tokens_grid(model, float((cells.tokens * running / cells.batch).max()))
    contexts = _context_grid(float(cells.context.max())) if "context" in model.terms else (0,)
    prefills: tuple[int, ...] = (0,)
    if (cells.prefill > 0).any():
        prefills = (0, max(round(float(np.median(cells.prefill[cells.prefill > 0]))), 1))
    requests = (1, int(cells.batch.max())) if cells.batch.max() > 1 else (1,)
    counts = np.array(requests, dtype=np.float64)
    by_requests_s = model.part_s(shapes(counts, 0.0 * counts), "other")
    host_s = max(_host_s(cells) - float(np.median(model.part_s(cells, "other"))), 0.0)

    def verify_s(context: int, prefill: int) -> tuple[float, ...]:
        whole = model.part_s(_forward(tokens, context, prefill), "verify")
        return _row(np.maximum(whole - host_s, LEAST_FORWARD * whole))

    return StepCost(
        tokens_grid=tokens,
        context_grid_tokens=contexts,
        prefill_grid_tokens=prefills,
        verify_s=tuple(tuple(verify_s(context, prefill) for context in contexts) for prefill in prefills),
        requests_grid=requests,
        draft_s=tuple(
            _row(model.part_s(shapes(counts, np.full(len(counts), float(k))), "draft")) for k in ks
        ),
        other_s=_row(host_s + by_requests_s),
        relative_error=min(relative_error, 1.0),
    )


def _host_s(cells: Cells) -> float:
    """Seconds that are neither drafting nor the forward, where those were timed apart; else 0."""
    draft_s = np.where(cells.k > 0, cells.draft_s, 0.0)
    rest_s = cells.seconds - draft_s - cells.verify_s
    known = rest_s[np.isfinite(rest_s)]
    return max(float(np.median(known)), 0.0) if len(known) else 0.0


def _forward(tokens: tuple[int, ...], context: int, prefill: int) -> Cells:
    ones = np.ones(len(tokens))
    cells = shapes(ones, 0.0 * ones, mean_context=float(context), prefill=float(prefill))
    return replace(cells, tokens=np.array(tokens, dtype=np.float64))


def _tokens_grid(model: PhysicsModel, largest: float) -> tuple[int, ...]:
    """Up to what was measured, and one point beyond: tables are extended by their last slope, which must be
    that of the model and not the jump of the last bucket."""
    last = max(int(largest), 1)
    grid = {1, last, 2 * last, *(knot for knot in model.knots if knot <= largest)}
    return tuple(sorted(grid))


def _context_grid(largest: float) -> tuple[int, ...]:
    grid, at = [0], 256
    while at < largest:
        grid.append(at)
        at *= GROWTH
    return (*grid, at)


def _row(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _seen(cells: Cells, batches: tuple[int, ...], ks: tuple[int, ...]) -> Floats:
    seen = np.zeros((len(batches), len(ks)))
    rank = {batch: index for index, batch in enumerate(batches)}
    for batch, k, steps in zip(cells.batch, cells.k, cells.steps, strict=True):
        if int(batch) in rank:
            seen[rank[int(batch)], int(k)] += steps
    return seen


def _cost_error(cost: StepCost, model: PhysicsModel, grid: list[Cells], step_s: Floats) -> float:
    errors = []
    for cells, predicted in zip(grid, step_s, strict=True):
        fits = model.running(cells) >= cells.batch
        for batch, tokens, context, k, seconds in zip(
            cells.batch[fits],
            cells.tokens[fits],
            cells.context[fits],
            cells.k[fits],
            predicted.ravel()[fits],
            strict=True,
        ):
            planned = cost.verify_at(tokens, context) + cost.draft_at(int(k), batch) + cost.other_at(batch)
            errors.append(abs(planned / seconds - 1.0))
    return float(np.mean(errors)) if errors else 0.0
