"""Evidence about step times, reduced to cells: all steps of one shape, with the spread of their times."""

from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """One row per cell; every field is an array of the same length."""

    batch: Floats
    """Decode requests in the step."""
    k: Floats
    """Draft tokens per request; 0 is off."""
    tokens: Floats
    """Tokens in the target's forward, prefill included; batch x (K + 1) where it was not measured."""
    context: Floats
    """Context tokens summed over the batch; 0 where unknown."""
    prefill: Floats
    """Prefill tokens among `tokens`."""
    loaded: Flags
    """Whether a drafter was loaded at all: K = 0 beside a drafter is not the same as none."""
    steps: Floats
    """How many steps the cell stands for."""
    seconds: Floats
    """Median time of a step."""
    spread: Floats
    """Distance between the quartiles of the times, over their median."""
    draft_s: Floats
    """Median seconds of drafting; NaN where it was not measured apart."""
    verify_s: Floats
    """Median seconds of the target's forward; NaN where it was not measured apart."""

    @property
    def mean_context(self) -> Floats:
        """Context tokens per request."""
        return self.context / np.maximum(self.batch, 1.0)

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, mask: Flags) -> "Cells":
        """The cells where `mask` holds."""
        return Cells(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})

    def without_drafter(self) -> "Cells":
        """The same cells, measured with no drafter loaded."""
        return replace(self, loaded=np.zeros(len(self), dtype=np.bool_))


def shapes(
    batch: Floats, k: Floats, *, mean_context: float = 0.0, prefill: float = 0.0, loaded: bool = True
) -> Cells:
    """Cells without times, to be predicted: `batch` and `k` of the same length."""
    size, nothing = len(batch), np.full(len(batch), np.nan)
    return Cells(
        batch=batch,
        k=k,
        tokens=batch * (k + 1.0) + prefill,
        context=batch * mean_context,
        prefill=np.full(size, prefill),
        loaded=np.full(size, loaded),
        steps=np.zeros(size),
        seconds=nothing,
        spread=np.zeros(size),
        draft_s=nothing,
        verify_s=nothing,
    )


def joined(left: Cells, right: Cells) -> Cells:
    """The cells of both."""
    names = [field.name for field in fields(Cells)]
    return Cells(**{name: np.concatenate([getattr(left, name), getattr(right, name)]) for name in names})


NO_CELLS = shapes(np.zeros(0), np.zeros(0))
