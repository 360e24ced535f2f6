"""What every estimate from one recording shares: its pairs, its models, and how its steps hang together."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.replay.logged import Floats, Ints, Logged, Targets
from steersman_simulator.replay.seconds import Actual, Model, Work, fit_blocks
from steersman_simulator.replay.survival import BLOCKS, Survival, survival

LEAST_RUN_STEPS = 20.0
"""Mean length of the runs of the bootstrap, or twice a request's steps where that is more."""


class Evidence(Struct):
    """Read-only once made."""

    logged: Logged
    block: Ints
    """[pair]: its stretch of time"""
    accepted: Survival
    drafted: Survival
    work: Work
    actual: Actual
    models: list[Model]
    """By stretch, each fitted on the others."""
    residual: tuple[Floats, Floats, Floats]
    """[pair], measured over fitted seconds of drafting, verifying and the rest; 1 where nobody drafted."""
    acceptance: Acceptance | None
    """For the places that another K visits; None where nothing was drafted."""
    lengths: tuple[tuple[int, ...], ...]
    """Output tokens of finished requests, by segment."""
    run_steps: float

    @property
    def row_block(self) -> Ints:
        """[row]: its stretch of time."""
        return self.block[self.logged.at]


def evidence(
    logged: Logged,
    targets: Sequence[Targets],
    acceptance: Acceptance | None,
    lengths: Sequence[Sequence[int]],
    steps_per_request: float,
) -> Evidence:
    """From scored pairs. Raises ValueError where too few of them can teach."""
    pairs = len(logged.under)
    block = np.arange(pairs) * BLOCKS // max(pairs, 1)
    row_block = block[logged.at]
    deepest = max([logged.deepest, *(int(target.k.max()) for target in targets)])
    accepted, drafted = (
        survival(counts, logged.k, row_block, logged.segment, deepest=deepest)
        for counts in (logged.accepted, logged.drafted)
    )
    pair = logged.pair
    plain = pair["decode_requests"] + pair["prefill_tokens"] + pair["draft_tokens"]
    work = Work(
        requests=pair["decode_requests"],
        context_tokens=pair["context_tokens"],
        prefill_tokens=pair["prefill_tokens"],
        padding_tokens=np.maximum(pair["target_tokens"] - plain, 0.0),
        draft_tokens=pair["draft_tokens"],
        switched=pair["switched"],
        committed_tokens=pair["committed_tokens"],
        depth=pair["depth"],
        asked=pair["requests_drafting"],
    )
    actual = Actual(pair["draft_s"], pair["verify_s"], pair["other_s"], pair["trains"])
    models = fit_blocks(work, actual, block)
    found = Evidence(
        logged=logged,
        block=block,
        accepted=accepted,
        drafted=drafted,
        work=work,
        actual=actual,
        models=models,
        residual=(work.requests, work.requests, work.requests),
        acceptance=acceptance,
        lengths=tuple(tuple(each) for each in lengths),
        run_steps=max(LEAST_RUN_STEPS, 2.0 * steps_per_request),
    )
    return replace(found, residual=residuals(found, by_block(found, work)))


def by_block(evidence: Evidence, work: Work, *, model: int | None = None) -> tuple[Floats, Floats, Floats]:
    """Fitted seconds of every pair: by the model that never saw it, or all by the model of one block."""
    if model is not None:
        return evidence.models[model].parts(work)
    out = tuple(np.empty(len(evidence.block)) for _ in range(3))
    for number, fitted in enumerate(evidence.models):
        rows = np.flatnonzero(evidence.block == number)
        taken = Work(**{name: getattr(work, name)[rows] for name in work.__struct_fields__})
        for column, seconds in zip(out, fitted.parts(taken), strict=True):
            column[rows] = seconds
    return out[0], out[1], out[2]


def residuals(evidence: Evidence, fitted: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats, Floats]:
    """Measured over fitted seconds."""
    actual = evidence.actual
    draft, verify, other = (
        np.where(seconds > 0.0, measured / np.maximum(seconds, 1e-12), 1.0)
        for measured, seconds in zip((actual.draft_s, actual.verify_s, actual.other_s), fitted, strict=True)
    )
    drafted = (evidence.work.depth > 0.0) & (evidence.work.asked > 0.0)
    return np.where(drafted, draft, 1.0), verify, other
