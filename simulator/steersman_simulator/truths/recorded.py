"""The truth behind recorded steps: fitted curves, and the noise of the recording.

The controller never sees these objects.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_policies.messages import StepReport
from steersman_simulator.truths.curves import Columns, Curves, fit_curves
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.world.chance import Chance

_RUN_STEPS = 20
"""Mean length of a run of consecutive residuals (stationary bootstrap, Politis and Romano 1994)."""

_MIN_STEPS = 20


class StepTruth(Struct, frozen=True):
    """Fitted curves and the relative residuals of the steps they were fitted on, in time order."""

    verify: Curves
    draft: Curves
    other: Curves
    residuals: tuple[tuple[float, float, float], ...]
    """(actual - fitted) / fitted of verify, draft, other; empty: no noise."""

    def sampler(self, chance: Chance) -> "StepSampler":
        """One stream of noisy step seconds."""
        return StepSampler(self, chance)

    def predicted_s(self, steps: Sequence[StepReport]) -> NDArray[np.float64]:
        """Busy seconds of recorded steps, without noise."""
        total: NDArray[np.float64] = self.verify.column(_verify_features(steps))
        drafting = np.array([s.drafting_depth > 0 and s.requests_drafting > 0 for s in steps])
        total = total + np.where(drafting, self.draft.column(_draft_features(steps)), 0.0)
        return total + self.other.column(_other_features(steps))


class StepSampler:
    """Seconds with the noise of the recording: runs of consecutive residuals, drawn with `chance`.

    Runs keep the autocorrelation, and one position for all three parts keeps a slow moment slow in
    every part. The position moves on when a step ends, that is with `other_s`.
    """

    def __init__(self, truth: StepTruth, chance: Chance) -> None:
        self._truth = truth
        self._chance = chance
        self._at = chance.randrange(len(truth.residuals)) if truth.residuals else -1

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward."""
        fitted = self._truth.verify.seconds(
            target_tokens=work.target_tokens,
            draft_tokens=work.draft_tokens,
            context_tokens=work.context_tokens,
            prefill_tokens=work.prefill_tokens,
            decode_requests=work.decode_requests,
        )
        return fitted * self._noise(0)

    def draft_s(self, work: DraftWork) -> float:
        """Drafting; 0 where nobody is asked."""
        if not (work.depth and work.requests):
            return 0.0
        fitted = self._truth.draft.seconds(
            requests_drafting=work.requests,
            draft_slots=work.depth * work.requests,
            context_tokens=work.context_tokens,
        )
        return fitted * self._noise(1)

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Everything else; ends the step."""
        fitted = self._truth.other.seconds(decode_requests=decode_requests, committed_tokens=committed_tokens)
        seconds = fitted * self._noise(2)
        self._move()
        return seconds

    def _noise(self, part: int) -> float:
        return 1.0 + self._truth.residuals[self._at][part] if self._at >= 0 else 1.0

    def _move(self) -> None:
        count = len(self._truth.residuals)
        if count:
            jump = self._chance.random() < 1.0 / _RUN_STEPS
            self._at = self._chance.randrange(count) if jump else (self._at + 1) % count


def fit_steps(steps: Sequence[StepReport]) -> StepTruth:
    """The truth behind recorded steps. Raises ValueError where there are too few of them."""
    usable = [s for s in steps if s.trains]
    if len(usable) < _MIN_STEPS:
        raise ValueError(f"trace: {len(usable)} usable steps to fit step seconds on, at least {_MIN_STEPS}")
    verify_x, draft_x, other_x = _verify_features(usable), _draft_features(usable), _other_features(usable)
    verify_y, draft_y, other_y = (
        np.array([getattr(s, part) for s in usable]) for part in ("verify_s", "draft_s", "other_s")
    )
    drafting = np.array([s.drafting_depth > 0 and s.requests_drafting > 0 for s in usable])
    verify, other = fit_curves(verify_x, verify_y), fit_curves(other_x, other_y)
    draft = Curves(0.0, {})
    if drafting.any():
        draft = fit_curves({name: column[drafting] for name, column in draft_x.items()}, draft_y[drafting])
    residuals = zip(
        _relative(verify_y, verify.column(verify_x)),
        _carried(_relative(draft_y, draft.column(draft_x)), drafting),
        _relative(other_y, other.column(other_x)),
        strict=True,
    )
    return StepTruth(verify, draft, other, tuple(residuals))


def pace(truth: StepTruth, steps: Sequence[StepReport]) -> float | None:
    """Measured over predicted busy seconds of recorded steps; None where there are none to learn from."""
    usable = [s for s in steps if s.trains and s.busy_s > 0.0]
    if not usable:
        return None
    return float(sum(s.busy_s for s in usable) / truth.predicted_s(usable).sum())


def relative_error(truth: StepTruth, steps: Sequence[StepReport]) -> float | None:
    """Mean |fitted - actual| / actual of busy seconds; None without steps."""
    usable = [s for s in steps if s.trains and s.busy_s > 0.0]
    if not usable:
        return None
    actual = np.array([s.busy_s for s in usable])
    return float(np.mean(np.abs(truth.predicted_s(usable) - actual) / actual))


def held_out_error(steps: Sequence[StepReport], *, folds: int = 5) -> float | None:
    """The same error on steps left out of the fit: `folds` contiguous stretches, each left out once."""
    usable = [s for s in steps if s.trains]
    if len(usable) < folds * _MIN_STEPS:
        return None
    bounds = [round(i * len(usable) / folds) for i in range(folds + 1)]
    errors = []
    for start, end in pairwise(bounds):
        error = relative_error(fit_steps(usable[:start] + usable[end:]), usable[start:end])
        if error is not None:
            errors.append(error)
    return float(np.mean(errors)) if errors else None


def _verify_features(steps: Sequence[StepReport]) -> Columns:
    return {
        "target_tokens": np.array([float(s.target_tokens) for s in steps]),
        # A step with drafts runs another path than a plain one, whatever the number of drafts.
        "draft_tokens": np.array(
            [float(max(0, s.target_tokens - s.prefill_tokens - s.decode_requests)) for s in steps]
        ),
        "context_tokens": np.array([float(s.context_tokens) for s in steps]),
        "prefill_tokens": np.array([float(s.prefill_tokens) for s in steps]),
        "decode_requests": np.array([float(s.decode_requests) for s in steps]),
    }


def _draft_features(steps: Sequence[StepReport]) -> Columns:
    return {
        "requests_drafting": np.array([float(s.requests_drafting) for s in steps]),
        "draft_slots": np.array([float(s.requests_drafting * s.drafting_depth) for s in steps]),
        "context_tokens": np.array([float(s.context_tokens) for s in steps]),
    }


def _other_features(steps: Sequence[StepReport]) -> Columns:
    return {
        "decode_requests": np.array([float(s.decode_requests) for s in steps]),
        "committed_tokens": np.array([float(s.committed_tokens) for s in steps]),
    }


def _relative(actual: NDArray[np.float64], fitted: NDArray[np.float64]) -> list[float]:
    return [float(x) for x in (actual - fitted) / np.maximum(fitted, 1e-9)]


def _carried(residuals: list[float], present: NDArray[np.bool_]) -> list[float]:
    """Residuals of steps without drafting replaced by the last one with it."""
    out, last = [], 0.0
    for residual, there in zip(residuals, present.tolist(), strict=True):
        last = residual if there else last
        out.append(last)
    return out
