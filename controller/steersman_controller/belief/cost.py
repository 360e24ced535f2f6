"""What a step costs: belief, learned online and compiled into the tables that planners read."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from steersman_controller.belief.fit import Line, LineState
from steersman_controller.belief.verify import ASSUMED_S, VerifyCost, VerifyState
from steersman_policies.messages import CONTEXT_EDGES_TOKENS, Hello, StepReport
from steersman_policies.view import StepCost

Phase: TypeAlias = Literal["draft", "verify", "other", "step"]

SOLVE_EVERY = 32
"""Steps between two solutions; the first `SOLVE_ALWAYS` are solved at once."""

SOLVE_ALWAYS = 16

ERROR_GAIN = 0.05
"""Weight of the newest step in the running errors."""


class StepSeconds(Struct, frozen=True, gc=False):
    """Seconds by phase."""

    draft_s: float
    verify_s: float
    other_s: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.draft_s + self.verify_s + self.other_s


class PredictionError(Struct):
    """Predicted against actual seconds of one phase; means are over recent steps."""

    predicted_s: float = 0.0
    actual_s: float = 0.0
    mean_error_s: float = 0.0
    mean_actual_s: float = 0.0

    def observe(self, predicted_s: float, actual_s: float, gain: float) -> None:
        """Add one step, of which `gain` is the weight."""
        self.predicted_s, self.actual_s = predicted_s, actual_s
        self.mean_error_s += gain * (abs(predicted_s - actual_s) - self.mean_error_s)
        self.mean_actual_s += gain * (actual_s - self.mean_actual_s)

    @property
    def relative(self) -> float:
        """|predicted - actual| / actual, at most 1; 1 before there is any evidence."""
        if self.mean_actual_s <= 0.0:
            return 1.0
        return min(self.mean_error_s / self.mean_actual_s, 1.0)


class CostState(Struct):
    """What a `CostModel` has learned; part of a snapshot."""

    verify: VerifyState
    draft: LineState
    other: LineState
    errors: dict[Phase, PredictionError]
    steps: int = 0
    first_after_switch_s: float = 0.0
    """Mean seconds that the first step after a switch takes longer than predicted."""


class CostModel:
    """Learns from reports. Nothing but `observe` changes it."""

    def __init__(self, hello: Hello) -> None:
        self.max_batch = max(hello.max_batch, 1)
        self.k_max = hello.k_max
        self.verify = VerifyCost(self.max_batch * (self.k_max + 1))
        # Features: asked at all, requests asked, depth, depth x requests (in hundreds). Until it is
        # seen, a draft token is believed to cost a fiftieth of a forward.
        self.draft = Line(prior=(0.0, 0.0, ASSUMED_S / 50.0, 0.0), strength=(0.02, 0.02, 0.02, 0.02))
        # Features: a step at all, decode requests (in hundreds).
        self.other = Line(prior=(0.0, 0.0), strength=(1e-3, 0.02))
        self.errors: dict[Phase, PredictionError] = {
            phase: PredictionError() for phase in ("draft", "verify", "other", "step")
        }
        self.steps = 0
        self.first_after_switch_s = 0.0

    @property
    def relative_error(self) -> float:
        """Typical |predicted - actual| / actual of recent steps; 1.0 before there is any evidence."""
        return self.errors["step"].relative

    def observe(self, report: StepReport) -> None:
        """Learn from a step. Ignores those that teach nothing."""
        if not report.trains or report.target_tokens == 0:
            return
        predicted = self.predict(
            target_tokens=report.target_tokens,
            context_tokens=report.context_tokens,
            prefill_tokens=report.prefill_tokens,
            depth=report.drafting_depth,
            requests_drafting=report.requests_drafting,
            decode_requests=report.decode_requests,
        )
        if report.first_after_switch:
            excess_s = report.busy_s - predicted.step_s
            self.first_after_switch_s += ERROR_GAIN * (excess_s - self.first_after_switch_s)
            return
        if self.steps:
            self._note_errors(predicted, report)
        self._learn(report)
        self.steps += 1
        if self.steps <= SOLVE_ALWAYS or self.steps % SOLVE_EVERY == 0:
            for part in (self.verify, self.draft, self.other):
                part.solve()

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
        """Seconds by phase of such a step; finite and not negative."""
        verify_s = self.verify.predict(target_tokens, context_tokens, decode_requests, prefill_tokens)
        draft_s = self.draft.predict(_draft_features(depth, requests_drafting)) if depth else 0.0
        other_s = self.other.predict((1.0, decode_requests / 100.0))
        return StepSeconds(draft_s, verify_s, other_s)

    def compile(self, prefill_tokens: float) -> StepCost:
        """The tables for a planner; `prefill_tokens`: the usual number in a step that carries prefill."""
        curve = self.verify.curve_s()
        per_context, per_request, per_prefill, any_prefill = self.verify.terms_s()
        contexts = _context_grid(self.max_batch)
        prefills = (0, max(round(prefill_tokens), 1)) if prefill_tokens > 0.0 else (0,)

        def row(context: int, prefill: int) -> tuple[float, ...]:
            extra = per_context * context + per_prefill * prefill + (any_prefill if prefill else 0.0)
            return tuple(max(at_knot + extra, 0.05 * at_knot) for at_knot in curve)

        # All that is linear in the requests needs two grid points.
        requests = (1, self.max_batch) if self.max_batch > 1 else (1,)
        return StepCost(
            tokens_grid=tuple(self.verify.state.knots),
            context_grid_tokens=contexts,
            prefill_grid_tokens=prefills,
            verify_s=tuple(tuple(row(context, prefill) for context in contexts) for prefill in prefills),
            requests_grid=requests,
            draft_s=tuple(
                tuple(self.draft.predict(_draft_features(depth, n)) if depth else 0.0 for n in requests)
                for depth in range(self.k_max + 1)
            ),
            # What a request costs in the forward whatever its draft is no matter of tokens: it goes here.
            other_s=tuple(self.other.predict((1.0, n / 100.0)) + per_request * n for n in requests),
            relative_error=self.relative_error,
        )

    def state(self) -> CostState:
        """What was learned, for a snapshot. Shares its lists with the model: encode it at once."""
        return CostState(
            verify=self.verify.state,
            draft=self.draft.state,
            other=self.other.state,
            errors=self.errors,
            steps=self.steps,
            first_after_switch_s=self.first_after_switch_s,
        )

    def restore(self, state: CostState) -> None:
        """Continue from a snapshot. Raises ValueError where it was taken of an engine of another size."""
        if state.verify.knots != self.verify.state.knots:
            raise ValueError(
                f"snapshot: cost knots up to {state.verify.knots[-1]} tokens, "
                f"this engine needs {self.verify.state.knots[-1]}"
            )
        self.verify.state, self.draft.state, self.other.state = state.verify, state.draft, state.other
        self.errors, self.steps = state.errors, state.steps
        self.first_after_switch_s = state.first_after_switch_s

    def _note_errors(self, predicted: StepSeconds, report: StepReport) -> None:
        gain = max(ERROR_GAIN, 1.0 / self.steps)
        errors = self.errors
        errors["draft"].observe(predicted.draft_s, report.draft_s, gain)
        errors["verify"].observe(predicted.verify_s, report.verify_s, gain)
        errors["other"].observe(predicted.other_s, report.other_s, gain)
        errors["step"].observe(predicted.step_s, report.busy_s, gain)

    def _learn(self, report: StepReport) -> None:
        self.verify.observe(
            report.target_tokens,
            report.context_tokens,
            report.decode_requests,
            report.prefill_tokens,
            report.verify_s,
        )
        if report.drafting_depth and report.requests_drafting:
            features = _draft_features(report.drafting_depth, report.requests_drafting)
            self.draft.observe(features, report.draft_s)
        self.other.observe((1.0, report.decode_requests / 100.0), report.other_s)


def _draft_features(depth: int, requests: float) -> Sequence[float]:
    return (1.0, requests / 100.0, float(depth), depth * requests / 100.0)


def _context_grid(max_batch: int) -> tuple[int, ...]:
    """Summed contexts from one short request to a full batch of long ones, growing fourfold."""
    grid, longest = [0], max_batch * CONTEXT_EDGES_TOKENS[-1]
    at = CONTEXT_EDGES_TOKENS[0]
    while at < longest:
        grid.append(at)
        at *= 4
    return (*grid, longest)
