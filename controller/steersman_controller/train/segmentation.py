"""Do segments pay? Ways to sort requests, scored on stretches of time that were left out.

Every way, merging and growing of a tree included, is learned anew without the fold that it is scored on. What
is scored is what would be deployed: the exported arrays, asked for each request.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from steersman_controller.request_spread import RequestSpread, merged
from steersman_controller.train.outcomes import Outcomes
from steersman_controller.train.report import Gain, LeafCard, SegmentsCard
from steersman_controller.train.segment_gain import Goodput, Step, goodput_gains
from steersman_controller.train.tree_fit import FOLDS, fit_tree, folds_of, log_loss, rates, spreads_by
from steersman_policies.segment_tree import MAX_LEAVES, SegmentTree
from steersman_policies.segmenter import Segmenter
from steersman_policies.units import UNKNOWN_SEGMENT

LEAST_REQUESTS = 200
"""Fewer requests teach no segments."""

LEAST_TAGGED = 50
"""A tag with fewer requests is left alone: to lack evidence of a difference is no evidence of none."""

RESAMPLES = 2_000
CHUNKS = 100
"""The bootstrap draws stretches of neighbouring requests, about so many."""

Labels: TypeAlias = NDArray[np.str_]
Sorter: TypeAlias = Callable[[Outcomes], Labels]
"""Sorts requests that it may not have seen."""


def enough(outcomes: Outcomes) -> Outcomes:
    """The same; raises ValueError where they are too few to learn from."""
    if len(outcomes) < LEAST_REQUESTS or not outcomes.reached.sum():
        raise ValueError(
            f"--segments: {len(outcomes)} requests with prompt statistics and decided drafts, "
            f"at least {LEAST_REQUESTS} are needed; only an engine that drafts records any"
        )
    return outcomes


def segments_of(
    outcomes: Outcomes, before: Segmenter, step: Step | None
) -> tuple[Segmenter | None, SegmentsCard]:
    """The segmenter to deploy and the card; None where nothing new is worth deploying.

    `before` gave the tags of `outcomes`, which are `enough`; its rules are carried on.
    """
    untagged = outcomes.tags == UNKNOWN_SEGMENT
    losses, goodput = _scored(outcomes, step)
    over_one = {name: _gain(losses["one"] - loss, outcomes) for name, loss in losses.items() if name != "one"}
    over_tags = _gain(losses["tags"] - losses["tags + tree"], outcomes) if untagged.any() else None
    tree = _tree_beside_tags(outcomes)
    same_as = _same_tags(outcomes)
    kept, reason = _verdict(tree, over_tags)
    card = SegmentsCard(
        requests=len(outcomes),
        tagged=int((~untagged).sum()),
        decided=float(outcomes.reached.sum()),
        log_loss={name: float(loss.sum() / outcomes.reached.sum()) for name, loss in losses.items()},
        over_one=over_one,
        tree_over_tags=over_tags,
        goodput=goodput_gains(goodput),
        kept=kept,
        reason=reason,
        leaves=() if tree is None else _leaves(tree, outcomes.pick(np.flatnonzero(untagged))),
        same_as=same_as,
    )
    if not kept and not same_as:
        return None, card
    return Segmenter(before.version + 1, before.rules, tree if kept else None, same_as), card


def _verdict(tree: SegmentTree | None, gain: Gain | None) -> tuple[bool, str]:
    if gain is None:
        return False, "every request has a tag, so no request would ask a tree"
    if tree is None:
        return False, "no question about the prompt tells requests apart"
    if gain.low <= 0.0:
        return False, "its held-out gain is within the noise"
    return True, "its held-out gain is beyond the noise"


def _scored(
    outcomes: Outcomes, step: Step | None
) -> tuple[dict[str, NDArray[np.float64]], dict[str, list[Goodput]]]:
    """Held-out log loss of each request, and the goodput of each fold, by way of sorting."""
    folds = folds_of(len(outcomes))
    losses: dict[str, NDArray[np.float64]] = {}
    goodput: dict[str, list[Goodput]] = {}
    for fold in range(FOLDS):
        train, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        known, asked = outcomes.pick(train), outcomes.pick(held)
        for name, sorter in _ways(known).items():
            labels = sorter(asked)
            shares = rates(sorter(known), known)
            found = np.array([shares.get(label, shares[None]) for label in labels.tolist()])
            losses.setdefault(name, np.zeros(len(outcomes)))[held] = log_loss(found, asked)
            if step is not None:
                goodput.setdefault(name, []).extend(step.goodput(known, sorter(known), asked, labels))
    return losses, goodput


def _ways(known: Outcomes) -> dict[str, Sorter]:
    """Everything that competes, learned from `known`."""
    same_as = _same_tags(known)
    everywhere = fit_tree(known)
    untagged = np.flatnonzero(known.tags == UNKNOWN_SEGMENT)
    rest = everywhere if len(untagged) == len(known) else _tree_beside_tags(known)
    return {
        "one": lambda asked: np.full(len(asked), UNKNOWN_SEGMENT),
        "tags": lambda asked: asked.tags,
        "tags, merged": lambda asked: _renamed(asked.tags, same_as),
        "tree": lambda asked: _sorted_by(everywhere, asked, np.full(len(asked), True)),
        "tags + tree": lambda asked: _sorted_by(rest, asked, asked.tags == UNKNOWN_SEGMENT),
    }


def _tree_beside_tags(outcomes: Outcomes) -> SegmentTree | None:
    """For the requests without a tag; an engine has to find room for its segments beside the tags."""
    tags = len(set(outcomes.tags.tolist()) - {UNKNOWN_SEGMENT})
    return fit_tree(outcomes.pick(np.flatnonzero(outcomes.tags == UNKNOWN_SEGMENT)), MAX_LEAVES - tags)


def _same_tags(outcomes: Outcomes) -> dict[str, str]:
    """Tags that stand for another one; `unknown` is nobody's."""
    tags = spreads_by(outcomes.tags, outcomes)
    known = {name: each for name, each in tags.items() if each.requests >= LEAST_TAGGED}
    known.pop(UNKNOWN_SEGMENT, None)
    return {name: first for name, first in merged(known).items() if name != first}


def _renamed(tags: Labels, same_as: Mapping[str, str]) -> Labels:
    return np.array([same_as.get(tag, tag) for tag in tags.tolist()], dtype=np.str_)


def _sorted_by(tree: SegmentTree | None, asked: Outcomes, where: NDArray[np.bool_]) -> Labels:
    """The tree's segments `where` it is asked, elsewhere the tags."""
    if tree is None:
        return np.where(where, UNKNOWN_SEGMENT, asked.tags)
    found = np.array([tree.segment_of(each) for each in asked.statistics], dtype=np.str_)
    return np.where(where, found, asked.tags)


def _gain(falls: NDArray[np.float64], outcomes: Outcomes) -> Gain:
    """Paired bootstrap over stretches of neighbouring requests."""
    chunks = min(CHUNKS, len(outcomes))
    chunk = np.arange(len(outcomes)) * chunks // len(outcomes)
    falls_by = np.bincount(chunk, falls, chunks)
    reached_by = np.bincount(chunk, outcomes.reached, chunks)
    draws = np.random.default_rng(0).integers(0, chunks, (RESAMPLES, chunks))
    drawn = falls_by[draws].sum(axis=1) / np.maximum(reached_by[draws].sum(axis=1), 1.0)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return Gain(float(falls.sum() / outcomes.reached.sum()), low, high)


def _leaves(tree: SegmentTree, outcomes: Outcomes) -> tuple[LeafCard, ...]:
    labels = np.array([tree.segment_of(each) for each in outcomes.statistics], dtype=np.str_)
    spreads = spreads_by(labels, outcomes)
    ways: dict[str, list[str]] = {}
    for line in tree.lines():
        name, _, when = line.partition(": ")
        ways.setdefault(name, []).append(when)
    none = RequestSpread()
    return tuple(
        LeafCard(
            segment=name,
            when=tuple(when),
            requests=int((labels == name).sum()),
            acceptance=spreads.get(name, none).acceptance,
            between_sd=spreads.get(name, none).between_sd,
        )
        for name, when in sorted(ways.items())
    )
