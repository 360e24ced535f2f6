"""What a step costs: belief, learned online and compiled into the tables that planners read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from steersman_controller.belief.accuracy import Accuracy, AccuracyState
from steersman_controller.belief.arrays import BLOCK_STEPS, Array, Counts, Mask
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.fit import TRUSTED_ROWS, FitState, Line, Rows, predictions
from steersman_controller.belief.prior import CostPrior
from steersman_controller.belief.steps import (
    DRAFT,
    OTHER,
    PHASES,
    VERIFY,
    WIDTH,
    Phase,
    PredictionError,
    Sight,
    StepSeconds,
    expected_s,
    host_features,
    log_ratio,
    phases,
)
from steersman_controller.belief.verify import ASSUMED_S, Curve, VerifyCost
from steersman_policies.messages import CONTEXT_EDGES_TOKENS, Hello
from steersman_policies.view import Row, StepCost

KEEP_DOUBTED = 1.0 / 32.0

PRIOR_ROWS = 2.0
"""Steps that a prior's drafting counts for, at each of four ends of its range."""

FADE = 0.9984
"""Kept after a full block, so that an interval that is never visited again is forgotten in the end."""


class Solution(Struct):
    """Coefficients that fit best."""

    curve: Curve
    draft: Array
    other: Array


class CostState(Struct):
    """What a `CostModel` has learned; part of a snapshot."""

    verify: FitState
    draft: FitState
    other: FitState
    solution: Solution
    """With which steps are predicted until the block ends."""
    compared: Array
    """[solution, reference] by interval: seconds by feature; the reference is what the watch looks at."""
    interval: Counts
    """By step of the block."""
    rows: Array
    predicted: Array
    """By phase."""
    actual: Array
    accuracy: AccuracyState
    filled: int = 0
    """Steps in the block."""
    steps: int = 0
    first_after_switch_s: float = 0.0
    """Mean seconds that the first step after a switch takes longer than predicted."""


class Settled(NamedTuple):
    """What follows from the state and changes only where the belief settles or is doubted; not part of it."""

    bounds: Array
    """Low and high by interval."""
    half_interval: Row
    """Half the width of the bounds by the grid of tokens; empty before anything is known of it."""
    draft_s: tuple[Row, ...]
    """By depth and the grid of requests."""
    other_s: Array
    """By the grid of requests."""


class CostModel:
    """Learns from chunks of steps. Its predictions change when it settles; its tables are up to date."""

    def __init__(self, hello: Hello, prior: CostPrior | None = None) -> None:
        self.max_batch = max(hello.max_batch, 1)
        self.k_max = hello.k_max
        self.prior = prior
        self._settled: Settled | None = None
        """None: not computed yet."""
        self.verify = VerifyCost(self.max_batch * (self.k_max + 1), prior)
        # Features: asked at all, requests asked, depth, depth x requests (in hundreds). Until it is
        # seen, a draft token is believed to cost a fiftieth of a forward.
        self.draft = Line(prior=(0.0, 0.0, ASSUMED_S / 50.0, 0.0), strength=(0.02, 0.02, 0.02, 0.02))
        # Features: a step at all, decode requests (in hundreds).
        self.other = Line(prior=(0.0, 0.0), strength=(1e-3, 0.02))
        curve = self.verify.curve()
        if prior is not None:
            self._expect(prior)
            curve.scale_s = self.verify.assumed_s if prior.is_level_known else 0.0
        intervals = self.verify.intervals
        self.accuracy = Accuracy(intervals, prior)
        self.state = CostState(
            verify=self.verify.fit.state,
            draft=self.draft.state,
            other=self.other.state,
            solution=Solution(curve, self.draft.prior, self.other.prior),
            compared=np.zeros((2, intervals, WIDTH)),
            interval=np.zeros(BLOCK_STEPS, np.int64),
            rows=np.zeros((BLOCK_STEPS, WIDTH)),
            predicted=np.zeros((BLOCK_STEPS, len(PHASES))),
            actual=np.zeros((BLOCK_STEPS, len(PHASES))),
            accuracy=self.accuracy.state,
        )
        self.state.compared[0] = self._coefficients(self.state.solution)
        self._tokens = tuple(int(point) for point in self.verify.grid)
        self._contexts = _context_grid(self.max_batch)
        # All that is linear in the requests needs two grid points.
        self._requests = (1, self.max_batch) if self.max_batch > 1 else (1,)
        self._grids = np.array(self._contexts, np.float64), np.array(self._requests, np.float64)
        self._hosts = np.zeros(((self.k_max + 1) * len(self._requests), WIDTH))
        grid = np.tile(np.array(self._requests, np.float64), self.k_max + 1)
        host_features(self._hosts, np.arange(self.k_max + 1.0).repeat(len(self._requests)), grid, grid)

    @property
    def steps(self) -> int:
        """Steps learned from."""
        return self.state.steps

    @property
    def first_after_switch_s(self) -> float:
        """Mean seconds that the first step after a switch takes longer than predicted."""
        return self.state.first_after_switch_s

    @property
    def level(self) -> float:
        """By what factor steps last longer than the prior says: the first forward gives it where it was not
        known, and it holds for all phases alike."""
        assumed_s = self.verify.assumed_s
        return 1.0 if self.prior is None else (self.state.solution.curve.scale_s or assumed_s) / assumed_s

    @property
    def relative_error(self) -> float:
        """Typical |predicted - actual| / actual of recent steps; before there is any evidence that of a prior
        whose level is known, else 1.0."""
        return self.accuracy.relative_error

    def errors(self) -> dict[Phase, PredictionError]:
        """Predicted against actual, by phase; the means as of the last settling."""
        state, last = self.state, self.state.filled - 1
        return {
            phase: PredictionError(
                float(state.predicted[last, index]), float(state.actual[last, index]), relative
            )
            for index, (phase, relative) in enumerate(zip(PHASES, self.accuracy.relative(), strict=True))
        }

    def look(self, chunk: Columns) -> Sight:
        """What was expected of the steps of a chunk. Changes nothing but the very first scale."""
        teaches = chunk.trains & (chunk.target_tokens > 0.0)
        steps = np.flatnonzero(teaches)
        if len(steps) and self.state.solution.curve.scale_s == 0.0:
            first = steps[0]
            self._start(
                float(chunk.target_tokens[first]),
                float(chunk.context_tokens[first]),
                float(chunk.prefill_tokens[first]),
                float(chunk.verify_s[first]),
            )
        pick = steps if len(steps) < chunk.steps else slice(None)
        interval, rows = self._rows(
            chunk.target_tokens[pick],
            chunk.context_tokens[pick],
            chunk.prefill_tokens[pick],
            chunk.depth[pick],
            chunk.requests_drafting[pick],
            chunk.decode_requests[pick],
        )
        solution, reference = self.state.compared
        predicted, expected = phases(solution, interval, rows), expected_s(reference, interval, rows)
        actual = np.empty((len(steps), len(PHASES)))
        for phase, actual_s in enumerate((chunk.draft_s, chunk.verify_s, chunk.other_s, chunk.busy_s)):
            actual[:, phase] = actual_s[pick]
        log_error = np.where(expected > 0.0, log_ratio(actual[:, 3], expected), 0.0)
        return Sight(steps, interval, rows, predicted, actual, log_error)

    def learn(self, chunk: Columns, sight: Sight) -> None:
        """Learn from the steps of a chunk that `look` has seen."""
        state = self.state
        switched = chunk.after_switch[sight.steps]
        if switched.any():
            for excess_s in (sight.actual[switched, 3] - sight.predicted[switched, 3]).tolist():
                state.first_after_switch_s += 0.05 * (excess_s - state.first_after_switch_s)
            sight = sight.taken(~switched)
        more = slice(state.filled, state.filled + len(sight.steps))
        state.interval[more] = sight.interval
        state.rows[more] = sight.rows
        state.predicted[more] = sight.predicted
        state.actual[more] = sight.actual
        state.filled += len(sight.steps)
        state.steps += len(sight.steps)

    def settle(self) -> Array:
        """Let the block count in the predictions of the next one, and begin that.

        Returns |predicted - actual| / actual by step and phase, of those that could be predicted.
        """
        state = self.state
        blocks = self._block()
        fits = (self.verify.fit, self.draft, self.other)
        grams = [fit.gram(block) for fit, block in zip(fits, blocks, strict=True)]
        state.solution = self._solved(grams)
        trusted = self.verify.fit.state.seen >= TRUSTED_ROWS
        grams[0] *= FADE ** (state.filled / BLOCK_STEPS)
        for fit, block, gram in zip(fits, blocks, grams, strict=True):
            fit.settle(block, gram)
        state.compared[0] = self._coefficients(state.solution)
        first = int(state.steps == state.filled)  # nobody can predict the very first step
        now = slice(first, state.filled)
        relative = self.accuracy.add(state.interval[now], state.predicted[now], state.actual[now], trusted)
        self._settled = None
        state.filled = 0
        return relative

    def seen(self) -> list[int]:
        """Steps learned since the last alarm, by interval of tokens; as of the last settling."""
        return [int(steps) for steps in self.verify.fit.state.seen]

    def middle(self, interval: int) -> float:
        """Tokens in the middle of an interval."""
        return float(self.verify.knots[interval : interval + 2].mean())

    def refer(self, intervals: Mask) -> None:
        """From now on compare the steps of these intervals with what is predicted now."""
        self.state.compared[1, intervals] = self.state.compared[0, intervals]

    def doubt(self) -> None:
        """Forget most of what was learned before the present block: steps have changed."""
        for part in (self.verify.fit, self.draft, self.other):
            part.doubt(KEEP_DOUBTED)
        self.accuracy.doubt()
        self._settled = None

    def predict(
        self,
        *,
        target_tokens: float,
        context_tokens: float,
        prefill_tokens: float,
        depth: int,
        requests_drafting: float,
        decode_requests: float,
    ) -> StepSeconds:
        """Seconds by phase of such a step, as in the tables; finite and not negative."""
        interval, rows = self._rows(
            *(
                np.array([float(value)])
                for value in (
                    target_tokens,
                    context_tokens,
                    prefill_tokens,
                    depth,
                    requests_drafting,
                    decode_requests,
                )
            )
        )
        last = self.state.solution
        coefficients = self._coefficients(Solution(self._forward_now(), last.draft, last.other))
        draft_s, verify_s, other_s, _ = phases(coefficients, interval, rows)[0].tolist()
        return StepSeconds(draft_s, verify_s, other_s)

    def bounds(self, target_tokens: float) -> tuple[float, float]:
        """By what factors of its prediction a step of so many tokens may last: its 90 % interval."""
        low, high = self._as_settled().bounds[self.verify.interval(np.array([target_tokens]))[0]].tolist()
        return low, high

    def compile(self, prefill_tokens: float) -> StepCost:
        """The tables for a planner; `prefill_tokens`: the usual number in a step that carries prefill.

        The forward counts all that was seen. Drafting and the rest are as of the last settling: they do not
        depend on where the batch has just moved, and solving for them would take half of the time.
        """
        fitted = self._forward_now()
        curve = self.verify.curve_s(fitted)
        per_context, per_request, per_prefill, any_prefill = self.verify.terms_s(fitted)
        settled, (contexts, requests) = self._as_settled(), self._grids
        prefills = (0, max(round(prefill_tokens), 1)) if prefill_tokens > 0.0 else (0,)
        extra = np.array([per_prefill * n + (any_prefill if n else 0.0) for n in prefills])
        extra = extra[:, None] + per_context * contexts
        verify_s = np.maximum(curve + extra[:, :, None], 0.05 * curve).tolist()
        return StepCost(
            tokens_grid=self._tokens,
            context_grid_tokens=self._contexts,
            prefill_grid_tokens=prefills,
            verify_s=tuple([tuple(map(tuple, plane)) for plane in verify_s]),
            requests_grid=self._requests,
            draft_s=settled.draft_s,
            # What a request costs in the forward whatever its draft is no matter of tokens: it goes here.
            other_s=tuple((settled.other_s + per_request * requests).tolist()),
            relative_error=self.relative_error,
            first_after_switch_s=max(self.first_after_switch_s, 0.0),
            half_interval=settled.half_interval,
        )

    def restore(self, state: CostState) -> None:
        """Continue from a snapshot of an engine of the same size."""
        self.state = state
        self._settled = None
        self.verify.fit.state, self.draft.state, self.other.state = state.verify, state.draft, state.other
        self.accuracy.state = state.accuracy

    def _expect(self, prior: CostPrior) -> None:
        """Lean on what a prior says of drafting and of the rest of a step."""
        depth, requests = (
            np.array(ends) for ends in ((1.0, 1.0, self.k_max, self.k_max), (1.0, self.max_batch) * 2)
        )
        rows = np.zeros((4, WIDTH))
        host_features(rows, depth, requests, requests)
        once, per_request, per_depth, per_token = prior.draft_s
        self.draft.expect(
            (once, 100.0 * per_request, per_depth, 100.0 * per_token), rows[:, DRAFT], PRIOR_ROWS
        )
        if any(prior.other_s):
            self.other.expect((prior.other_s[0], 100.0 * prior.other_s[1]), rows[:, OTHER], PRIOR_ROWS)

    def _start(self, tokens: float, context_tokens: float, prefill_tokens: float, verify_s: float) -> None:
        """Take the first forward for the size of all of them."""
        curve = self.state.solution.curve
        _, rows = self._rows(
            *(np.array([n]) for n in (tokens, context_tokens, prefill_tokens, 0.0, 0.0, 0.0))
        )
        expected = float((self.verify.coefficients(curve)[0, 2:] * rows[0, 2 : VERIFY.stop]).sum())
        shape = self.verify.shape_at(tokens) + expected / self.verify.assumed_s
        curve.scale_s = max(verify_s, 1e-6) / shape
        self.state.compared[0] = self._coefficients(self.state.solution)

    def _as_settled(self) -> Settled:
        if self._settled is None:
            bounds, solution, rows = self.accuracy.bounds(), self.state.solution, self._hosts
            low, high = bounds[self.verify.interval(self.verify.grid)].T
            half = tuple((0.5 * (high - low)).tolist()) if np.isfinite(high).all() else ()
            number = len(self._requests)
            draft_s = predictions(solution.draft, rows[:, DRAFT]).reshape(-1, number)
            other_s = predictions(solution.other, rows[:number, OTHER])
            self._settled = Settled(bounds, half, tuple(map(tuple, draft_s.tolist())), other_s)
        return self._settled

    def _rows(
        self,
        target_tokens: Array,
        context_tokens: Array,
        prefill_tokens: Array,
        depth: Array,
        requests_drafting: Array,
        decode_requests: Array,
    ) -> tuple[Counts, Array]:
        """Interval and features of steps."""
        rows = np.empty((len(target_tokens), WIDTH))
        interval = self.verify.features(rows, target_tokens, context_tokens, decode_requests, prefill_tokens)
        host_features(rows, depth, requests_drafting, decode_requests)
        return interval, rows

    def _forward(self) -> Rows:
        """The steps of the block, for the fit of the forward."""
        state, now = self.state, slice(0, self.state.filled)
        rows, predicted, actual = state.rows[now], state.predicted[now], state.actual[now]
        return Rows(state.interval[now], rows[:, VERIFY], predicted[:, 1], actual[:, 1])

    def _block(self) -> tuple[Rows, Rows, Rows]:
        """The steps of the block, for each of the fits."""
        state = self.state
        now = slice(0, state.filled)
        rows, predicted, actual = state.rows[now], state.predicted[now], state.actual[now]
        drafted = (rows[:, DRAFT.start] > 0.0) & (rows[:, DRAFT.start + 1] > 0.0)
        nowhere = np.zeros(state.filled, np.int64)
        return (
            self._forward(),
            Rows(nowhere[drafted], rows[drafted, DRAFT], predicted[drafted, 0], actual[drafted, 0]),
            Rows(nowhere, rows[:, OTHER], predicted[:, 2], actual[:, 2]),
        )

    def _forward_now(self) -> Curve:
        """The forward as of the last settling, with what the present block says about it."""
        gram = self.verify.fit.gram(self._forward())
        return self.verify.solved(gram, self.state.solution.curve.scale_s)

    def _solved(self, grams: Sequence[Array]) -> Solution:
        """What fits best."""
        verify, draft, other = grams
        scale_s = self.state.solution.curve.scale_s
        return Solution(
            self.verify.solved(verify, scale_s),
            self.draft.solved(draft, self.level),
            self.other.solved(other, self.level),
        )

    def _coefficients(self, solution: Solution) -> Array:
        out = np.empty((self.verify.intervals, WIDTH))
        out[:, VERIFY] = self.verify.coefficients(solution.curve)
        out[:, DRAFT], out[:, OTHER] = solution.draft, solution.other
        return out


def _context_grid(max_batch: int) -> tuple[int, ...]:
    """Summed contexts from one short request to a full batch of long ones, growing fourfold."""
    grid, longest = [0], max_batch * CONTEXT_EDGES_TOKENS[-1]
    at = CONTEXT_EDGES_TOKENS[0]
    while at < longest:
        grid.append(at)
        at *= 4
    return (*grid, longest)
