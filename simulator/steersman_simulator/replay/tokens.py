"""Tokens that a policy's K would have brought: exact, imputed, and corrected by explored steps.

Doubly robust (augmented inverse propensity weighting under coarsening, Tsiatis 2006, chapter 10): every row
contributes what its drafts show under the wanted K and, where their end was not seen, what the model says
of the rest. Where the wanted K is above the one in force, the steps that exploration sent at least that
far show how wrong the model is; weighted with 1 / probability they stand for all. The estimate is right if
the model is right, or if the probabilities are.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_simulator.replay.evidence import Evidence
from steersman_simulator.replay.logged import Floats, Ints, Logged, Targets
from steersman_simulator.replay.propensity import at_least
from steersman_simulator.replay.survival import Survival

MOST_WEIGHT = 10.0
"""No explored step counts for more than so many average ones of its segment."""


class Rows(Struct):
    """Of one policy, each [row]; tokens are sums over the requests of the row."""

    accepted: Floats
    drafted: Floats
    """Both by truncation and model."""
    censored: Floats
    """Requests whose tokens are not known by truncation."""
    wanting: Floats
    """Requests of rows that were verified less far than wanted."""
    raised: Floats
    """Requests for which exploration has to speak: the wanted K is above the one in force, and it ever goes
    that far."""
    unsupported: Floats
    """The same where it never does: the model alone speaks."""
    weight: Floats
    """Of an explored step that shows the wanted K, self-normalised by segment; 0 for all others."""
    missed_accepted: Floats
    missed_drafted: Floats
    """What the model fell short by, where there is a weight."""


def rows_of(evidence: Evidence, targets: Targets, *, block: int | None = None) -> Rows:
    """What a policy's K would have brought. `block`: impute everywhere with the model of that block."""
    logged, wanted = evidence.logged, targets.k
    kinds = logged.kinds_of_chance
    base = np.array([chances.base for chances in kinds])[logged.chances]
    likely = _at_least(logged, wanted)
    # Where the policy itself tries something, its chance may be that of the recorded one: no weights there.
    above = (wanted > base) & (targets.explored[logged.at] == 0.0)
    seen = np.where(above, np.minimum(logged.k, base), logged.k)
    blocks = evidence.row_block if block is None else np.full(len(wanted), block)
    accepted, drafted = (
        kind.seen(wanted, seen) + kind.beyond(wanted, seen, blocks, logged.segment)
        for kind in (evidence.accepted, evidence.drafted)
    )
    raised = above & (likely > 0.0)
    shows = raised & (logged.k >= wanted)
    weight = np.where(shows, 1.0 / np.maximum(likely, 1e-12), 0.0)
    weight = _clipped(weight, logged.segment)
    open_ended = evidence.accepted.counts[np.arange(len(wanted)), np.minimum(logged.k, wanted)]
    wanting = logged.k < wanted
    return Rows(
        accepted=accepted,
        drafted=drafted,
        censored=np.where(wanting, open_ended, 0).astype(np.float64),
        wanting=np.where(wanting, logged.requests, 0).astype(np.float64),
        raised=np.where(raised, logged.requests, 0).astype(np.float64),
        unsupported=np.where(above & ~raised, logged.requests, 0).astype(np.float64),
        weight=weight,
        missed_accepted=np.where(shows, _shown(evidence.accepted, wanted) - accepted, 0.0),
        missed_drafted=np.where(shows, _shown(evidence.drafted, wanted) - drafted, 0.0),
    )


def effective_size(weight: Floats) -> float:
    """Of weighted steps (Kish 1965): (sum of weights)^2 / sum of their squares.

    >>> effective_size(np.array([1.0, 1.0, 0.0])), effective_size(np.zeros(3))
    (2.0, 0.0)
    """
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def _shown(kind: Survival, wanted: Ints) -> NDArray[np.int64]:
    return kind.sums[np.arange(len(wanted)), wanted]


def _at_least(logged: Logged, wanted: Ints) -> Floats:
    most = int(wanted.max()) + 1
    table = np.array([[at_least(chances, k) for k in range(most)] for chances in logged.kinds_of_chance])
    found: Floats = table[logged.chances, wanted]
    return found


def _clipped(weight: Floats, segment: Ints) -> Floats:
    shown = weight > 0.0
    count = np.bincount(segment, shown)
    mean = np.bincount(segment, weight) / np.maximum(count, 1.0)
    return np.minimum(weight, MOST_WEIGHT * mean[segment])
