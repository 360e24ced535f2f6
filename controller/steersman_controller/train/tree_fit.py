"""Learns a small tree from outcomes. Leaves that evidence cannot tell apart get the same segment."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman_controller.request_spread import RequestSpread, merged, spread_of
from steersman_controller.train.cells import Floats
from steersman_controller.train.outcomes import LEAF_PREFIX, Outcomes
from steersman_policies.segment_tree import LEAF, MAX_DEPTH, MAX_LEAVES, SegmentTree

LEAST_LEAF = 30
"""Requests in a leaf."""

SIZES = (2, 3, 5, 9, MAX_LEAVES)
"""Numbers of leaves that compete on requests left out."""

FOLDS = 5
BLOCKS = 20
"""Requests that come one after the other are alike, so whole stretches of time are left out, and every fold
has some from everywhere."""

PRIOR_REQUESTS = 2.0
"""What all requests together say counts in each segment as this many requests."""


def folds_of(count: int) -> NDArray[np.int64]:
    """The fold of each of `count` requests in order of time.

    >>> folds_of(40).tolist()[:12]
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 0]
    """
    return np.arange(count) * BLOCKS // max(count, 1) % FOLDS


def fit_tree(outcomes: Outcomes, most_leaves: int = MAX_LEAVES) -> SegmentTree | None:
    """The tree with the best held-out log loss; None where no question lowers it."""
    sizes = (1, *(size for size in SIZES if size <= most_leaves))
    if outcomes.reached.sum() <= 0 or len(outcomes) < 2 * LEAST_LEAF:
        return None
    features = outcomes.features()
    folds = folds_of(len(outcomes))
    losses = np.zeros(len(sizes))
    for fold in range(FOLDS):
        train, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        known = outcomes.pick(train)
        for index, size in enumerate(sizes):
            places = np.zeros(len(outcomes), dtype=np.int64)
            if size > 1:
                places = _grown(features[train], known, size).apply(features)
            shares = rates(places[train], known)
            losses[index] += log_loss(
                np.array([shares.get(place, shares[None]) for place in places[held].tolist()]),
                outcomes.pick(held),
            ).sum()
    best = int(losses.argmin())
    return _exported(_grown(features, outcomes, sizes[best]), outcomes, features) if best else None


def rates(labels: NDArray[Any], outcomes: Outcomes) -> dict[Any, float]:
    """Accepted / reached by label, leaning on that of all; None stands for a label that was not seen."""
    overall = float(outcomes.accepted.sum() / max(outcomes.reached.sum(), 1.0))
    weight = PRIOR_REQUESTS * float(outcomes.reached.mean()) if len(outcomes) else 0.0
    names, places = np.unique(labels, return_inverse=True)
    accepted = np.bincount(places, outcomes.accepted, len(names))
    reached = np.bincount(places, outcomes.reached, len(names))
    found = (accepted + weight * overall) / np.maximum(reached + weight, 1e-9)
    return {None: overall, **dict(zip(names.tolist(), found.tolist(), strict=True))}


def log_loss(share: Floats, outcomes: Outcomes) -> Floats:
    """Of each request, summed over its decided draft tokens."""
    share = np.clip(share, 1e-3, 1.0 - 1e-3)
    rejected = outcomes.reached - outcomes.accepted
    found: Floats = -outcomes.accepted * np.log(share) - rejected * np.log1p(-share)
    return found


def spreads_by(labels: NDArray[Any], outcomes: Outcomes) -> dict[Any, RequestSpread]:
    """How the requests of each label differ."""
    return {
        name: spread_of(
            zip(
                outcomes.accepted[labels == name].tolist(),
                outcomes.reached[labels == name].tolist(),
                outcomes.steps_drafted[labels == name].tolist(),
                strict=True,
            )
        )
        for name in np.unique(labels).tolist()
    }


def _grown(features: Floats, outcomes: Outcomes, leaves: int) -> Any:
    """Scikit-learn's tree. Each request stands there twice: once for what was accepted, once for the rest."""
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(
        criterion="log_loss",
        max_leaf_nodes=leaves,
        max_depth=MAX_DEPTH,
        min_samples_leaf=2 * LEAST_LEAF,
        random_state=0,
    )
    # What weighs nothing at all is not counted as a sample.
    weights = np.concatenate([outcomes.accepted, outcomes.reached - outcomes.accepted]) + 1e-9
    answers = np.repeat([1, 0], len(outcomes))
    return tree.fit(np.concatenate([features, features]), answers, sample_weight=weights)


def _exported(grown: Any, outcomes: Outcomes, features: Floats) -> SegmentTree | None:
    """As flat arrays, segments numbered from the lowest acceptance; None where all leaves are alike."""
    inner = grown.tree_
    spreads = spreads_by(grown.apply(features), outcomes)
    stands_for = merged({str(leaf): spread for leaf, spread in spreads.items()})
    ranked = sorted(set(stands_for.values()), key=lambda leaf: _share(stands_for, spreads, leaf))
    if len(ranked) < 2:
        return None
    names = {leaf: f"{LEAF_PREFIX}{ranked.index(first) + 1}" for leaf, first in stands_for.items()}
    tree = _flat(_Nodes(inner, {int(leaf): name for leaf, name in names.items()}))
    _check_export(tree, outcomes, [names[str(leaf)] for leaf in grown.apply(features).tolist()])
    return tree


class _Nodes:
    """The grown tree with the segments of its leaves; a node above leaves of one segment is that segment."""

    def __init__(self, inner: Any, names: dict[int, str]) -> None:
        self.inner = inner
        self.names = [names.get(node, "") for node in range(inner.node_count)]
        for node in reversed(range(inner.node_count)):  # children stand behind their parent
            left, right = inner.children_left[node], inner.children_right[node]
            if left != LEAF and self.names[left] == self.names[right]:
                self.names[node] = self.names[left]


def _flat(nodes: _Nodes) -> SegmentTree:
    """Only what is left of the tree, its nodes numbered anew."""
    kept, at = [0], 0
    while at < len(kept):
        if not nodes.names[kept[at]]:
            kept += [int(nodes.inner.children_left[kept[at]]), int(nodes.inner.children_right[kept[at]])]
        at += 1
    place = {node: index for index, node in enumerate(kept)}
    asks = [not nodes.names[node] for node in kept]

    def column(values: Any, elsewhere: Any) -> tuple[Any, ...]:
        return tuple(values[node].item() if ask else elsewhere for node, ask in zip(kept, asks, strict=True))

    return SegmentTree(
        features=column(nodes.inner.feature, LEAF),
        thresholds=column(nodes.inner.threshold, 0.0),
        left=tuple(place.get(child, LEAF) for child in column(nodes.inner.children_left, LEAF)),
        right=tuple(place.get(child, LEAF) for child in column(nodes.inner.children_right, LEAF)),
        segments=tuple(nodes.names[node] for node in kept),
    )


def _check_export(tree: SegmentTree, outcomes: Outcomes, wanted: list[str]) -> None:
    """What is deployed leads every known request to where the estimator does."""
    found = [tree.segment_of(each) for each in outcomes.statistics]
    assert found == wanted, "the exported tree sorts differently than the one that was grown"


def _share(stands_for: dict[str, str], spreads: dict[Any, RequestSpread], first: str) -> float:
    """Acceptance of all the leaves that `first` stands for."""
    together = RequestSpread()
    for leaf, spread in spreads.items():
        if stands_for[str(leaf)] == first:
            together = together.plus(spread)
    return together.acceptance
