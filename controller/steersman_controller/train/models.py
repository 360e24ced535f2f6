"""The candidates that compete for a group of cells, and the baseline that they are compared with."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from scipy.optimize import nnls

from steersman_controller.train.cells import Cells, Floats
from steersman_controller.train.physics import SEEN_STEPS, fit_physics


class Model(Protocol):
    """Predicts the seconds of steps."""

    def seconds(self, cells: Cells) -> Floats:
        """Of each cell; above 0."""
        ...


Fit = Callable[[Cells], Model]


class BoostedModel:
    """Gradient boosting on log seconds, monotone in everything that adds work.

    Monotone in *time* only: the best K follows from the times, and may move either way.
    """

    def __init__(self, cells: Cells) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        features = _features(cells)
        self._trees: Any = HistGradientBoostingRegressor(
            monotonic_cst=[1] * features.shape[1],
            max_iter=100,
            learning_rate=0.2,
            max_leaf_nodes=31,
            min_samples_leaf=max(2, min(20, len(cells) // 25)),
            early_stopping=False,
            random_state=0,
        )
        weight = cells.steps / (cells.steps + SEEN_STEPS)
        self._trees.fit(features, np.log(cells.seconds), sample_weight=weight)

    def seconds(self, cells: Cells) -> Floats:
        """Of each cell."""
        found: Floats = np.exp(self._trees.predict(_features(cells)))
        return found


class AffineModel:
    """The usual five terms, fitted by the same rule: 1, K > 0, K, batch, batch x (K + 1)."""

    def __init__(self, cells: Cells) -> None:
        weight = np.sqrt(cells.steps / (cells.steps + SEEN_STEPS)) / cells.seconds
        design = self._design(cells) * weight[:, None]
        found = np.linalg.lstsq(design, cells.seconds * weight, rcond=None)[0]
        self.coefficients: Floats = found.astype(np.float64)
        if (self._design(cells) @ self.coefficients <= 0.0).any():
            self.coefficients = nnls(design, cells.seconds * weight)[0]

    def seconds(self, cells: Cells) -> Floats:
        """Of each cell."""
        return np.maximum(self._design(cells) @ self.coefficients, 1e-9)

    @staticmethod
    def _design(cells: Cells) -> Floats:
        ones = np.ones(len(cells))
        return np.stack([ones, cells.k > 0, cells.k, cells.batch, cells.tokens], axis=1).astype(np.float64)


CANDIDATES: dict[str, Fit] = {
    "physics": fit_physics,
    "physics, jumps": partial(fit_physics, jumps=True),
    "physics, filling": partial(fit_physics, fills=True),
    "physics, requests": partial(fit_physics, requests=True),
    "boosting": BoostedModel,
}
"""By name, the simplest first: it wins ties."""


def _features(cells: Cells) -> Floats:
    return np.stack(
        [cells.batch, cells.k, cells.tokens, cells.context, cells.prefill, cells.loaded], axis=1
    ).astype(np.float64)
