"""Seconds of recorded steps under another K: curves fitted on other stretches of time, and the step's own
residual.

A recorded step that was slow for a reason of its own stays as slow beside the curves, whatever K it gets:
that pairs the policies, and what they share cancels.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from steersman_simulator.replay.logged import Floats, Ints
from steersman_simulator.truths.curves import Columns, Curves, fit_curves

MOST_FITTED = 8_000
"""Of more steps so many are taken, evenly."""

LEAST_STEPS = 100


class Work(Struct):
    """What pairs have to do, each [pair]."""

    requests: Floats
    context_tokens: Floats
    prefill_tokens: Floats
    padding_tokens: Floats
    """Tokens of the forward that are neither anchors nor drafts nor prompts."""
    draft_tokens: Floats
    switched: Floats
    committed_tokens: Floats
    depth: Floats
    asked: Floats
    """Requests that the drafter is asked about."""

    def without_prefill(self) -> "Work":
        """The same steps without their prompts."""
        return replace(self, prefill_tokens=np.zeros_like(self.prefill_tokens))


class Model(Struct):
    """Curves of the three parts of a pair."""

    verify: Curves
    draft: Curves
    other: Curves

    def parts(self, work: Work) -> tuple[Floats, Floats, Floats]:
        """Seconds of drafting, verifying and the rest."""
        drafting = np.where(_drafts(work), self.draft.column(_draft_columns(work)), 0.0)
        return drafting, self.verify.column(_verify_columns(work)), self.other.column(_other_columns(work))


class Actual(Struct):
    """Measured seconds, each [pair], and which pairs are fit to learn from."""

    draft_s: Floats
    verify_s: Floats
    other_s: Floats
    teaches: Floats


def fit_blocks(work: Work, actual: Actual, block: Ints) -> list[Model]:
    """A model for each block, fitted on all others; raises ValueError where too few steps teach."""
    blocks = int(block.max()) + 1
    usable = actual.teaches > 0.0
    found = int(usable.sum())
    if found < LEAST_STEPS:
        raise ValueError(f"trace: {found} usable steps to learn step seconds from, at least {LEAST_STEPS}")
    return [_fit(work, actual, usable & (block != held_out)) for held_out in range(blocks)]


def _fit(work: Work, actual: Actual, rows: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Model:
    chosen = np.flatnonzero(rows)
    if len(chosen) > MOST_FITTED:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_FITTED).astype(np.int64)]
    taken = Work(**{name: getattr(work, name)[chosen] for name in work.__struct_fields__})
    drafting = np.flatnonzero(_drafts(taken))
    draft = Curves(0.0, {})
    if len(drafting):
        draft = fit_curves(_picked(_draft_columns(taken), drafting), actual.draft_s[chosen][drafting])
    return Model(
        fit_curves(_verify_columns(taken), actual.verify_s[chosen]),
        draft,
        fit_curves(_other_columns(taken), actual.other_s[chosen]),
    )


def _picked(columns: Columns, rows: Ints) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _drafts(work: Work) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return (work.depth > 0.0) & (work.asked > 0.0)


def _verify_columns(work: Work) -> Mapping[str, Floats]:
    plain = work.requests + work.prefill_tokens + work.padding_tokens
    return {
        "target_tokens": plain + work.draft_tokens,
        # A step with drafts runs another path than a plain one, whatever the number of drafts.
        "draft_tokens": work.draft_tokens,
        "context_tokens": work.context_tokens,
        "prefill_tokens": work.prefill_tokens,
        "decode_requests": work.requests,
        "switched": work.switched,
    }


def _draft_columns(work: Work) -> Mapping[str, Floats]:
    return {
        "requests_drafting": work.asked,
        "draft_slots": work.asked * work.depth,
        "context_tokens": work.context_tokens,
    }


def _other_columns(work: Work) -> Mapping[str, Floats]:
    return {"decode_requests": work.requests, "committed_tokens": work.committed_tokens}
