"""Measured step times, interpolated in batch, K and, where it was measured, context.

What a whole step took is split into drafting and the rest as it was timed; where it was not, in the
proportion in which non-negative least squares on physical terms (`steersman train`'s model) splits it.
Padding and ragged rows are in what was measured.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from steersman_controller.train.cells import Cells, Flags, Floats, shapes
from steersman_controller.train.physics import PhysicsModel, fit_physics
from steersman_simulator.truths.noise import Noise
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.world.chance import Chance

_IQR_OF_NORMAL = 1.349
"""Distance of a normal distribution's quartiles, in standard deviations."""

_FORWARD_TOKENS = 4096
"""A forward with more continues the slope up to here."""


class _Point(NamedTuple):
    """One batch size at one K: seconds by context tokens per request."""

    contexts: tuple[float, ...]
    verify_s: tuple[float, ...]
    draft_s: tuple[float, ...]


class _Row(NamedTuple):
    """One K: points by batch size."""

    batches: tuple[int, ...]
    points: tuple[_Point, ...]


_Weighted = tuple[tuple[float, _Point], ...]


class StepTable:
    """Step seconds of one group of cells; there is no chance in them.

    Between measured batch sizes, Ks and contexts it is linear. Below the smallest batch size and context
    the value there holds, beyond the largest ones the last slope goes on, if it rises.
    """

    def __init__(
        self, cells: Cells, *, drafter_loaded: bool = True, prefill_token_s: float | None = None
    ) -> None:
        plain = _of_drafter(cells.take(cells.prefill == 0.0), drafter_loaded)
        if not len(plain):
            raise ValueError("step times: every row has prefill tokens; rows without are needed")
        model = fit_physics(cells)
        self._rows = {int(k): _row(plain.take(plain.k == k), model) for k in np.unique(plain.k)}
        self._ks = sorted(self._rows)
        self._prefill_token_s = prefill_token_s
        self._forward_s = _forward_seconds(model)
        self._prefill_terms = dict(zip(model.terms, model.coefficients, strict=True))
        self._verify: dict[tuple[int, int], _Weighted] = {}
        self._draft: dict[tuple[int, int], _Weighted] = {}

    @property
    def k_max(self) -> int:
        """The largest K that was measured."""
        return self._ks[-1]

    def sampler(self, chance: Chance) -> "StepTable":
        """No chance in it."""
        del chance
        return self

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward and the host. Raises ValueError for more drafts than were measured."""
        requests, drafts = work.decode_requests, work.draft_tokens
        parts = self._verify.get((requests, drafts))
        if parts is None:
            size = max(requests, 1)
            parts = self._verify[requests, drafts] = self._weighted(size, drafts / size)
        context = work.context_tokens / requests if requests else 0.0
        seconds = 0.0
        for weight, point in parts:
            seconds += weight * _at(point.contexts, point.verify_s, context)
        return seconds + self._prefill_s(work) if work.prefill_tokens else seconds

    def draft_s(self, work: DraftWork) -> float:
        """Drafting; 0 where nobody is asked."""
        depth, requests = work.depth, work.requests
        if not (depth and requests):
            return 0.0
        parts = self._draft.get((requests, depth))
        if parts is None:
            parts = self._draft[requests, depth] = self._weighted(requests, float(depth))
        context = work.context_tokens / requests
        seconds = 0.0
        for weight, point in parts:
            seconds += weight * _at(point.contexts, point.draft_s, context)
        return seconds

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Nothing: it is in the forward's part."""
        return 0.0

    def _weighted(self, batch: int, k: float) -> _Weighted:
        """The points around, and how much each counts."""
        if k > self.k_max:
            raise ValueError(f"step times: K = {k:g}, measured up to {self.k_max}")
        right = bisect_left(self._ks, k)
        high = self._ks[right]
        if high == k or not right:
            return _around(self._rows[high], batch)
        low = self._ks[right - 1]
        part = (k - low) / (high - low)
        below = tuple((w * (1.0 - part), p) for w, p in _around(self._rows[low], batch))
        return below + tuple((w * part, p) for w, p in _around(self._rows[high], batch))

    def _prefill_s(self, work: VerifyWork) -> float:
        if self._prefill_token_s is not None:
            return self._prefill_token_s * work.prefill_tokens
        whole = self._at_tokens(work.target_tokens)
        alone = self._at_tokens(work.decode_requests + work.draft_tokens)
        terms = self._prefill_terms
        extra = terms.get("any_prefill", 0.0) + terms.get("prefill", 0.0) * work.prefill_tokens
        return max(whole - alone, 0.0) + extra

    def _at_tokens(self, tokens: int) -> float:
        known = self._forward_s
        last = len(known) - 1
        if tokens <= last:
            return known[tokens]
        return known[last] + (tokens - last) * (known[last] - known[last // 2]) / (last - last // 2)


def spread_of(cells: Cells) -> Noise:
    """The noise of repeats: the middle cell's distance between quartiles, as of a normal distribution."""
    repeated = cells.spread[cells.steps > 1]
    return Noise(float(np.median(repeated)) / _IQR_OF_NORMAL if len(repeated) else 0.0)


def _of_drafter(cells: Cells, loaded: bool) -> Cells:
    """K = 0 beside a drafter, or without one; where only the other was measured, that."""
    off = cells.k == 0.0
    wanted = off & (cells.loaded == loaded)
    return cells.take(~off | wanted) if wanted.any() else cells


def _row(cells: Cells, model: PhysicsModel) -> _Row:
    drafting = model.part_s(cells, "draft")
    rest = model.part_s(cells, "verify") + model.part_s(cells, "other")
    share = drafting / np.maximum(drafting + rest, 1e-12)
    draft_s = np.where(np.isfinite(cells.draft_s), cells.draft_s, share * cells.seconds)
    draft_s = np.where(cells.k > 0.0, np.minimum(draft_s, cells.seconds), 0.0)
    batches = tuple(int(batch) for batch in np.unique(cells.batch))
    return _Row(
        batches, tuple(_point(cells, cells.batch == b, cells.seconds - draft_s, draft_s) for b in batches)
    )


def _point(cells: Cells, mine: Flags, verify_s: Floats, draft_s: Floats) -> _Point:
    contexts, weights = cells.mean_context[mine], cells.steps[mine]
    at = sorted(set(contexts.tolist()))

    def means(seconds: Floats) -> tuple[float, ...]:
        values = seconds[mine]
        return tuple(float(np.average(values[contexts == x], weights=weights[contexts == x])) for x in at)

    return _Point(tuple(at), means(verify_s), means(draft_s))


def _around(row: _Row, batch: int) -> _Weighted:
    batches, points = row.batches, row.points
    if batch <= batches[0] or len(batches) == 1:
        return ((1.0, points[0]),)
    right = min(bisect_left(batches, batch), len(batches) - 1)
    low, high = points[right - 1], points[right]
    part = (batch - batches[right - 1]) / (batches[right] - batches[right - 1])
    if part >= 1.0 and (part == 1.0 or _level(high) <= _level(low)):
        return ((1.0, high),)
    return ((1.0 - part, low), (part, high))


def _level(point: _Point) -> float:
    return sum(point.verify_s) / len(point.verify_s) + sum(point.draft_s) / len(point.draft_s)


def _at(grid: Sequence[float], values: Sequence[float], at: float) -> float:
    if len(grid) == 1 or at <= grid[0]:
        return values[0]
    right = min(bisect_left(grid, at), len(grid) - 1)
    low, high = values[right - 1], values[right]
    part = (at - grid[right - 1]) / (grid[right] - grid[right - 1])
    if part > 1.0 and high <= low:
        return high
    return low + part * (high - low)


def _forward_seconds(model: PhysicsModel) -> list[float]:
    """Seconds by tokens in the forward, without context."""
    tokens = np.arange(_FORWARD_TOKENS + 1, dtype=np.float64)
    cells = replace(shapes(np.ones(len(tokens)), np.zeros(len(tokens))), tokens=tokens)
    return [float(x) for x in model.part_s(cells, "verify")]
