"""What sorting requests is worth in tokens per second, by the learned cost of a step.

K is chosen from what was known without the fold, once for all requests and once per segment; both choices are
then scored with the acceptance that the fold shows in each segment. The mix of request-steps is that of the
fold for both, and acceptance is the same at every position: a comparison, no forecast of a throughput.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_controller.train.compiled import Tables
from steersman_controller.train.outcomes import Outcomes
from steersman_controller.train.report import GoodputGain
from steersman_controller.train.tree_fit import rates
from steersman_policies.view import StepCost

BATCHES = 6

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
"""Of a normal distribution."""

ROUNDS = 4
"""Of improving one segment's K after the other."""


class Goodput(Struct, frozen=True):
    """Tokens per second of one fold."""

    batch: int
    one: float
    sorted_by: float


@dataclass(frozen=True)
class Mix:
    """Segments beside each other; one entry per segment."""

    share: NDArray[np.float64]
    """Of the request-steps."""
    coverage: NDArray[np.float64]
    """Share of the steps with a draft."""
    acceptance: NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """What a step costs in one group of the bundle."""

    cost: StepCost
    batches: tuple[int, ...]
    mean_context_tokens: int

    def goodput(
        self,
        known: Outcomes,
        known_labels: NDArray[np.str_],
        asked: Outcomes,
        labels: NDArray[np.str_],
    ) -> list[Goodput]:
        """Of the fold `asked`, by batch size, with K as chosen from `known`."""
        names = np.unique(labels).tolist()
        truth = _mix(asked, labels, names)
        shares = rates(known_labels, known)
        leaning = np.array([shares.get(name, shares[None]) for name in names])
        believed = replace(_mix(known, known_labels, names), acceptance=leaning)
        together = _mix(known, np.full(len(known), "all"), ["all"])
        found = []
        for batch in self.batches:
            one = self._best_common(batch, together)
            k = self._best(batch, believed)
            found.append(
                Goodput(
                    batch,
                    self._tokens_per_s(batch, truth, np.full(len(names), one)),
                    self._tokens_per_s(batch, truth, k),
                )
            )
        return found

    def _tokens_per_s(self, batch: int, mix: Mix, k: NDArray[np.int64]) -> float:
        requests = batch * mix.share
        chain = mix.acceptance[:, None] ** np.arange(1, len(self.cost.draft_s))
        gained = np.where(np.arange(1, len(self.cost.draft_s)) <= k[:, None], chain, 0.0).sum(axis=1)
        tokens = float((requests * (1.0 + mix.coverage * gained)).sum())
        drafting = requests[k > 0].sum()
        seconds = (
            self._verify_s(batch, mix, k)
            + self.cost.draft_at(int(k.max()), float(drafting))
            + self.cost.other_at(batch)
        )
        return tokens / max(seconds, 1e-9)

    def _verify_s(self, batch: int, mix: Mix, k: NDArray[np.int64]) -> float:
        """Expected, as each request is of a random segment and has a draft or none: a step of the cost is
        crossed by some of the batches, never by none or all because of what it takes on average."""
        drafted = mix.share * mix.coverage
        mean = float((drafted * k).sum())
        variance = max(float((drafted * k * k).sum()) - mean * mean, 0.0)
        tokens = batch * (1.0 + mean) + np.sqrt(batch * variance) * NODES
        tokens = np.clip(tokens, batch, batch * (1 + k.max()))
        context = batch * self.mean_context_tokens
        return float(WEIGHTS @ [self.cost.verify_at(each, context) for each in tokens.tolist()])

    def _best_common(self, batch: int, mix: Mix) -> int:
        found = [
            self._tokens_per_s(batch, mix, np.full(len(mix.share), k)) for k in range(len(self.cost.draft_s))
        ]
        return int(np.argmax(found))

    def _best(self, batch: int, mix: Mix) -> NDArray[np.int64]:
        """The best of what each common K leads to: a depth may pay only where several segments take it."""
        depths = range(len(self.cost.draft_s)) if len(mix.share) > 1 else [self._best_common(batch, mix)]
        found = [self._improved(batch, mix, np.full(len(mix.share), k, dtype=np.int64)) for k in depths]
        return max(found, key=lambda k: self._tokens_per_s(batch, mix, k))

    def _improved(self, batch: int, mix: Mix, k: NDArray[np.int64]) -> NDArray[np.int64]:
        """One segment's K after the other, until none gets better."""
        for _ in range(ROUNDS):
            before = k
            for place in range(len(k)):
                here = np.arange(len(k)) == place
                tried = [np.where(here, other, k) for other in range(len(self.cost.draft_s))]
                k = max([k, *tried], key=lambda each: self._tokens_per_s(batch, mix, each))
            if (k == before).all():
                break
        return k


def step_of(tables: Tables) -> Step:
    """The cost of steps in a group, at up to `BATCHES` batch sizes and the median context."""
    places = np.unique(np.linspace(0, len(tables.batches) - 1, BATCHES).round().astype(int))
    return Step(
        tables.cost,
        tuple(tables.batches[place] for place in places),
        tables.mean_contexts[len(tables.mean_contexts) // 2],
    )


def goodput_gains(by_way: Mapping[str, Sequence[Goodput]]) -> dict[str, tuple[GoodputGain, ...]]:
    """Over one K for all, by way of sorting and batch size."""
    return {
        way: tuple(
            _gain(batch, [each for each in found if each.batch == batch])
            for batch in sorted({each.batch for each in found})
        )
        for way, found in by_way.items()
        if way != "one"
    }


def _gain(batch: int, found: Sequence[Goodput]) -> GoodputGain:
    gains = [each.sorted_by / each.one - 1.0 for each in found]
    total = sum(each.sorted_by for each in found) / sum(each.one for each in found) - 1.0
    return GoodputGain(batch, total, min(gains), max(gains))


def _mix(outcomes: Outcomes, labels: NDArray[np.str_], names: Sequence[str]) -> Mix:
    """By name; what was never seen under a name is taken from all."""
    masks = np.stack([labels == name for name in names])
    steps, drafted = masks @ outcomes.steps, masks @ outcomes.steps_drafted
    reached, accepted = masks @ outcomes.reached, masks @ outcomes.accepted
    coverage = outcomes.steps_drafted.sum() / max(outcomes.steps.sum(), 1.0)
    overall = outcomes.accepted.sum() / max(outcomes.reached.sum(), 1.0)
    return Mix(
        share=steps / max(steps.sum(), 1.0),
        coverage=np.where(steps > 0, drafted / np.maximum(steps, 1.0), coverage),
        acceptance=np.where(reached > 0, accepted / np.maximum(reached, 1.0), overall),
    )
