"""Step times before any were measured: forwards of target and drafter, put together to a step."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from steersman_controller.train.cells import Cells, Floats, joined, shapes
from steersman_controller.train.models import CANDIDATES, Fit, Model
from steersman_controller.train.roofline import Forward

PRIOR_STEPS = 0.1
"""A cell of the prior counts as a tenth of a step: it speaks where nothing was measured."""

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def step_seconds(target: Forward, drafter: Forward | None, cells: Cells) -> Floats:
    """The target verifies K + 1 tokens a request; the drafter runs K times, one token a request."""
    return np.array(
        [
            target.seconds(tokens=tokens, sequences=batch, context_tokens=context, prefill_tokens=prefill)
            + (
                k * drafter.seconds(tokens=batch, sequences=batch, context_tokens=context, prefill_tokens=0.0)
                if drafter is not None and k
                else 0.0
            )
            for batch, k, tokens, context, prefill in zip(
                cells.batch, cells.k, cells.tokens, cells.context, cells.prefill, strict=True
            )
        ]
    )


def prior_cells(
    target: Forward, drafter: Forward | None, *, k_max: int, mean_contexts: tuple[float, ...]
) -> Cells:
    """Cells that no one measured, over batch size, K and context."""
    batch, k = (grid.ravel() for grid in np.meshgrid(np.array(BATCHES, float), np.arange(k_max + 1.0)))
    found: Cells | None = None
    for context in mean_contexts:
        cells = shapes(batch, k, mean_context=context)
        seconds = step_seconds(target, drafter, cells)
        cells = replace(
            cells,
            seconds=seconds,
            steps=np.full(len(batch), PRIOR_STEPS),
        )
        found = cells if found is None else joined(found, cells)
    assert found is not None
    return found


def nobody_measured(cells: Cells) -> Cells:
    """The same cells with no step behind them: what the tables say about their evidence."""
    return replace(cells, steps=np.zeros(len(cells)))


def with_prior(prior: Cells) -> dict[str, Fit]:
    """The candidates, and each physical one again with the prior's shape behind the evidence."""

    def behind(fit: Fit) -> Fit:
        def fitted(cells: Cells) -> Model:
            return fit(joined(cells, _scaled(prior, cells)))

        return fitted

    added = {f"{name}, prior": behind(fit) for name, fit in CANDIDATES.items() if name != "boosting"}
    return {**CANDIDATES, **added}


def _scaled(prior: Cells, cells: Cells) -> Cells:
    """The prior at the level of the evidence: its shape is trusted more than its efficiency factors."""
    expected = fit_level(prior)(cells)
    factor = float(np.median(cells.seconds / expected))
    return replace(prior, seconds=prior.seconds * factor)


def fit_level(prior: Cells) -> Callable[[Cells], Floats]:
    """The prior at other cells: its own nearest cell, by ratio of tokens, then by K."""

    def at(cells: Cells) -> Floats:
        tokens = np.abs(np.log(cells.tokens[:, None] / prior.tokens[None, :]))
        context = np.abs(np.log1p(cells.context)[:, None] - np.log1p(prior.context)[None, :])
        nearest = (tokens + np.abs(cells.k[:, None] - prior.k[None, :]) + 0.1 * context).argmin(axis=1)
        found: Floats = prior.seconds[nearest]
        return found

    return at
