"""What a recording holds for a replay, as columns: decisions, what came of them, and what else was commanded.

One *pair* is a decision in one step and its effect: the drafts are made in that step and verified in the
next one, so the seconds of drafting come from the first and all others from the second. One *row* is one
segment of a pair.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from steersman_controller.events import Event, PolicySet, Received, Started, Ticked
from steersman_controller.stream import Stream
from steersman_policies.messages import Hello, StepReport
from steersman_simulator.replay.propensity import Chances, Propensities
from steersman_simulator.replay.shadow import Shadow

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PAIR_COLUMNS = (
    "ended_s", "decode_requests", "context_tokens", "prefill_tokens", "target_tokens", "draft_tokens",
    "committed_tokens", "draft_s", "verify_s", "other_s", "depth", "requests_drafting", "switched", "trains",
)  # fmt: skip

_ROW_COLUMNS = ("at", "segment", "requests", "barren", "k", "chances")


class Targets(Struct):
    """What one policy would have commanded."""

    k: Ints
    """[row]"""
    depth: Floats
    """[pair]: the longest of a pair"""
    switched: Floats
    """[pair]: 1 where a K changed"""
    explored: Floats
    """[pair]: 1 where it would have tried another K of its own accord"""
    plans: int

    def only(self, pairs: NDArray[np.bool_], rows: NDArray[np.bool_]) -> "Targets":
        """Some of the pairs, and their rows."""
        depth, switched, explored = (column[pairs] for column in (self.depth, self.switched, self.explored))
        return Targets(self.k[rows], depth, switched, explored, self.plans)


class Logged(Struct):
    """The pairs of one engine, in order."""

    engine_id: str
    hello: Hello
    segments: tuple[str, ...]
    policies: tuple[str, ...]
    pair: dict[str, Floats]
    """`PAIR_COLUMNS`, each [pair]"""
    under: Ints
    """[pair]: index into `policies`, the one in force"""
    at: Ints
    """[row]: its pair"""
    segment: Ints
    """[row]: index into `segments`"""
    requests: Ints
    """[row]"""
    barren: Ints
    """[row]: requests that committed nothing"""
    k: Ints
    """[row]: the K that was commanded"""
    chances: Ints
    """[row]: index into `kinds_of_chance`"""
    kinds_of_chance: tuple[Chances, ...]
    accepted: NDArray[np.uint16]
    """[row][j]: requests of which at least j draft tokens were accepted; 0 beyond the commanded K"""
    drafted: NDArray[np.uint16]
    """[row][j]: requests that verified at least j"""
    unpaired: int
    """Requests whose drafts were made under another K than the one commanded in the step before."""
    missing: int
    """Steps without the one before them: lost, or the first of a boot."""

    @property
    def deepest(self) -> int:
        """The largest position that any row was verified at."""
        return int(self.accepted.shape[1]) - 1

    def only(self, pairs: NDArray[np.bool_]) -> "Logged":
        """Some of the pairs, and their rows."""
        rows = pairs[self.at]
        return replace(
            self,
            pair={name: column[pairs] for name, column in self.pair.items()},
            under=self.under[pairs],
            at=(np.cumsum(pairs) - 1)[self.at[rows]],
            **{name: getattr(self, name)[rows] for name in _ROW_COLUMNS if name != "at"},
            accepted=self.accepted[rows],
            drafted=self.drafted[rows],
        )


class Reader:
    """Takes the events of a recording one by one; `shadows` meet each of them, too."""

    def __init__(self, engine_id: str, shadows: Sequence[Shadow]) -> None:
        self._engine_id = engine_id
        self._shadows = shadows
        self._stream = Stream()
        self._hello: Hello | None = None
        self._last: tuple[StepReport, float] | None = None
        self._propensities = Propensities(per_request_k=True)
        self._explored: dict[int, tuple[int, ...]] = {}
        self._policy = ""
        self._pairs: dict[str, array[float]] = {name: array("d") for name in PAIR_COLUMNS}
        self._under = array("q")
        self._rows: dict[str, array[int]] = {name: array("q") for name in _ROW_COLUMNS}
        self._counts: tuple[array[int], array[int], array[int]] = (array("q"), array("H"), array("H"))
        """Positions of each row, and its counts one after the other."""
        self._targets = [(array("q"), array("d"), array("d"), array("d")) for _ in shadows]
        self._names: dict[str, int] = {}
        self._policies: dict[str, int] = {}
        self._chances: dict[Chances, int] = {}
        self.unpaired = self.missing = self.steps = 0

    def take(self, event: Event) -> None:
        """The next event."""
        match event:
            case Started(policy=policy, params=params):
                self._policy = policy_label(policy, params)
                return
            case PolicySet(policy=policy, params=params, engine_id=to) if to in {"", self._engine_id}:
                self._policy = policy_label(policy, params)
            case Ticked(engine_id=to, plan=plan) if to == self._engine_id and plan is not None:
                self._explored[plan.plan_id] = () if plan.explore is None else plan.explore.k_set
            case Received(engine_id=sender) if sender == self._engine_id:
                self._received(event)
        for shadow in self._shadows:
            shadow.apply(event)

    def _received(self, event: Received) -> None:
        boots = self._stream.boots
        if not self._stream.accept(event):
            return
        if self._stream.boots > boots:
            self._last = None
            self._explored.clear()
            for shadow in self._shadows:
                shadow.restarted()
        if isinstance(event.record, Hello):
            if self._hello is None or self._hello.per_request_k != event.record.per_request_k:
                self._propensities = Propensities(per_request_k=event.record.per_request_k)
            self._hello = event.record
        elif isinstance(event.record, StepReport):
            self.steps += 1
            if self._last is not None and self._last[0].step + 1 == event.record.step:
                self._pair(*self._last, event.record)
            else:
                self.missing += 1
            self._last = (event.record, event.at_s)

    def _pair(self, step: StepReport, ended_s: float, after: StepReport) -> None:
        at = len(self._under)
        chances = self._propensities.of(step, self._explored.get(step.plan_id, ()))
        decisions = [shadow.decide(step, after, ended_s) for shadow in self._shadows]
        deepest = [0] * len(self._shadows)
        for row in _rows(after):
            segment, k, requests, barren, accepted, drafted = row
            if k != step.commanded.get(segment):
                self.unpaired += requests
                continue
            number = self._names.setdefault(segment, len(self._names))
            chance = self._chances.setdefault(chances[segment], len(self._chances))
            for name, value in zip(self._rows, (at, number, requests, barren, k, chance), strict=True):
                self._rows[name].append(value)
            self._counts[0].append(len(accepted))
            self._counts[1].extend(accepted)
            self._counts[2].extend(drafted)
            for index, decision in enumerate(decisions):
                wanted = k if decision is None else decision.proposal_length.get(segment, k)
                self._targets[index][0].append(wanted)
                deepest[index] = max(deepest[index], wanted)
        for index, decision in enumerate(decisions):
            self._targets[index][1].append(deepest[index])
            self._targets[index][2].append(decision is not None and decision.switched)
            self._targets[index][3].append(decision is not None and decision.explored)
        self._append_pair(step, after, ended_s)

    def _append_pair(self, step: StepReport, after: StepReport, ended_s: float) -> None:
        drafts = sum(d * count for group in after.groups for d, _, count in group.outcomes)
        values: tuple[float, ...] = (
            ended_s, after.decode_requests, after.context_tokens, after.prefill_tokens, after.target_tokens,
            drafts, after.committed_tokens, step.draft_s, after.verify_s, after.other_s, step.drafting_depth,
            step.requests_drafting, after.first_after_switch, step.trains and after.trains,
        )  # fmt: skip
        for column, value in zip(self._pairs.values(), values, strict=True):
            column.append(value)
        self._under.append(self._policies.setdefault(self._policy, len(self._policies)))

    def logged(self) -> Logged:
        """All that was taken. Raises ValueError where the engine reported no two steps in a row."""
        if self._hello is None or not self._rows["at"]:
            raise ValueError(f"trace: engine {self._engine_id!r} reported no two busy steps in a row")
        rows = {name: np.array(column, dtype=np.int64) for name, column in self._rows.items()}
        lengths = np.array(self._counts[0], dtype=np.int64)
        return Logged(
            engine_id=self._engine_id,
            hello=self._hello,
            segments=tuple(self._names),
            policies=tuple(self._policies),
            pair={name: np.array(column, dtype=np.float64) for name, column in self._pairs.items()},
            under=np.array(self._under, dtype=np.int64),
            **rows,
            kinds_of_chance=tuple(self._chances),
            accepted=_padded(self._counts[1], lengths),
            drafted=_padded(self._counts[2], lengths),
            unpaired=self.unpaired,
            missing=self.missing,
        )

    def targets(self) -> list[Targets]:
        """What each shadow commanded, row by row."""
        return [
            Targets(
                np.array(k, dtype=np.int64), np.array(deep), np.array(switch), np.array(tried), shadow.plans
            )
            for shadow, (k, deep, switch, tried) in zip(self._shadows, self._targets, strict=True)
        ]


def _rows(after: StepReport) -> Iterator[tuple[str, int, int, int, list[int], list[int]]]:
    """Segment, K, requests, those that committed nothing, and requests by least accepted and verified."""
    found: dict[tuple[str, int], tuple[list[int], list[int], list[int]]] = {}
    for group in after.groups:
        k = group.commanded_k
        key = (group.segment, k)
        if key not in found:
            found[key] = ([0, 0], [0] * (k + 1), [0] * (k + 1))
        totals, accepted, drafted = found[key]
        totals[0] += group.requests
        totals[1] += group.requests_empty
        for verified, kept, count in group.outcomes:
            for position in range(1, min(verified, k) + 1):
                drafted[position] += count
                accepted[position] += count if position <= kept else 0
    for (segment, k), (totals, accepted, drafted) in found.items():
        accepted[0] = drafted[0] = totals[0]
        yield segment, k, totals[0], totals[1], accepted, drafted


def _padded(counts: "array[int]", lengths: Ints) -> NDArray[np.uint16]:
    out = np.zeros((len(lengths), int(lengths.max())), dtype=np.uint16)
    flat = np.frombuffer(counts, dtype=np.uint16)
    inside = np.arange(out.shape[1]) < lengths[:, None]
    out[inside] = flat
    return out


def policy_label(policy: str, params: dict[str, Any]) -> str:
    """A policy and its parameters, as one word.

    >>> policy_label("fixed", {"k": 4}), policy_label("off", {})
    ('fixed:k=4', 'off')
    """
    listed = ",".join(f"{key}={value}" for key, value in sorted(params.items()))
    return f"{policy}:{listed}" if listed else policy


def never(logged: Logged) -> Targets:
    """The smallest K that the engine can be asked for, all the time."""
    least = min(logged.hello.reachable_k)
    pairs = len(logged.under)
    present = np.bincount(logged.at, minlength=pairs) > 0
    still = np.zeros(pairs)
    return Targets(np.full(len(logged.k), least), np.where(present, float(least), 0.0), still, still, 0)


def read_logged(
    events: Iterable[Event], engine_id: str, shadows: Sequence[Shadow], seen: Callable[[int], None]
) -> tuple[Logged, list[Targets]]:
    """One pass over a recording; `seen` is told now and then how many events have passed."""
    reader = Reader(engine_id, shadows)
    for number, event in enumerate(events):
        reader.take(event)
        if number % 1000 == 0:
            seen(number)
    return reader.logged(), reader.targets()
