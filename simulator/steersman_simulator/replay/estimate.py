"""Step goodput that an engine would have had under a policy, from a recording under another one.

The question is put for the *same text*: every segment still has to bring the tokens that it brought. A
segment that brings more tokens a step needs fewer steps, so with `weight` = recorded tokens per request and
step over the policy's, a recorded step of n requests becomes g = mean weight of its requests such steps, in
which segments are mixed in proportion to n x weight. Prompts are read once whatever g is. (To count the
recorded steps once each, whoever is in them, would give the easy segments more text than they had.)

Nothing here knows of a queue: batches are as large as they were recorded.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from steersman_simulator.replay.evidence import Evidence, by_block, residuals
from steersman_simulator.replay.logged import Floats, Ints, Logged, Targets
from steersman_simulator.replay.resample import chunked, resampled
from steersman_simulator.replay.tokens import Rows, effective_size, rows_of
from steersman_simulator.replay.visits import Visits, visits
from steersman_simulator.world.chance import generator

_SUMS = ("requests", "recorded", "imputed", "raised", "weights", "missed", "raised_drafts", "missed_drafts")
"""Of each segment; what its factors are made of."""

_STEP = 1e-3
"""Of a finite difference."""


class Factors(Struct):
    """Of a policy, by segment."""

    weight: Floats
    """Steps that the same text needs, over recorded ones."""
    more_drafts: Floats
    """What explored steps add to the imputed drafts of raised rows, as a fraction."""


class Estimate(Struct):
    """Of one policy."""

    rows: Rows
    factors: Factors
    visits: tuple[Visits, ...]
    tokens_per_step: Floats
    """By segment, of one request."""
    drafts_per_step: Floats
    seconds: float
    """Busy seconds of the scored pairs under the policy."""
    draws: Floats
    """[draw]: the same from resampled pairs"""
    recorded_draws: Floats
    """[draw]: recorded seconds of the same resamples"""
    by_model: Floats
    """[block]: log seconds with the models of that block in place of all others"""
    effective: Floats
    """By segment: effective number of explored steps where K is raised."""


def estimate(evidence: Evidence, targets: Targets, *, draws: int, seed: int) -> Estimate:
    """The seconds that a policy would have needed for the recorded tokens."""
    rows = rows_of(evidence, targets)
    found = _visits(evidence, targets, seed)
    sums = _sums(evidence.logged, rows)
    totals = sums.sum(axis=0)
    factors = _factors(totals, found)
    pair_seconds = _pair_seconds(evidence, targets, rows, factors, found)
    drawn, recorded = _draws(evidence, targets, rows, found, factors, sums, pair_seconds, draws, seed)
    segments = len(evidence.logged.segments)
    segment, weight = evidence.logged.segment, rows.weight
    drafts = np.bincount(segment, _drafts(rows, factors, segment), segments) / totals[0]
    return Estimate(
        rows=rows,
        factors=factors,
        visits=found,
        tokens_per_step=totals[1] / totals[0] / factors.weight,
        drafts_per_step=drafts * np.array([each.drafts for each in found]),
        seconds=float(pair_seconds.sum()),
        draws=drawn,
        recorded_draws=recorded,
        by_model=np.array([_log_seconds(evidence, targets, found, b) for b in range(len(evidence.models))]),
        effective=np.array([effective_size(weight[segment == s]) for s in range(segments)]),
    )


def _sums(logged: Logged, rows: Rows) -> Floats:
    """[pair][sum][segment]"""
    pairs, segments = len(logged.under), len(logged.segments)
    cell = logged.at * segments + logged.segment
    plain = (logged.requests - logged.barren).astype(np.float64)
    kept = logged.accepted[:, 1:].sum(axis=1, dtype=np.float64)
    counted = rows.weight * logged.requests
    columns = {
        "requests": logged.requests,
        "recorded": plain + kept,
        "imputed": plain + rows.accepted,
        "raised": rows.raised,
        "weights": counted,
        "missed": rows.weight * rows.missed_accepted,
        "raised_drafts": np.where(rows.raised > 0.0, rows.drafted, 0.0),
        "missed_drafts": rows.weight * rows.missed_drafted,
    }
    return np.stack(
        [np.bincount(cell, columns[name], pairs * segments).reshape(pairs, segments) for name in _SUMS],
        axis=1,
    )


def _factors(totals: Floats, found: Sequence[Visits]) -> Factors:
    """From [.., sum, segment]."""
    requests, recorded, imputed, raised, weights, missed, raised_drafts, missed_drafts = np.moveaxis(
        totals, -2, 0
    )
    per_weight = raised / np.maximum(weights, 1e-12)
    brought = imputed + np.where(weights > 0.0, per_weight * missed, 0.0)
    brought = np.maximum(brought, 1e-9) * np.array([each.tokens for each in found])
    more = np.where(weights > 0.0, per_weight * missed_drafts, 0.0) / np.maximum(raised_drafts, 1e-12)
    return Factors(
        weight=np.where(requests > 0.0, recorded / brought, 1.0),
        more_drafts=np.where(raised_drafts > 0.0, np.maximum(more, -1.0), 0.0),
    )


def _visits(evidence: Evidence, targets: Targets, seed: int) -> tuple[Visits, ...]:
    logged, acceptance = evidence.logged, evidence.acceptance
    if acceptance is None:
        return (Visits(),) * len(logged.segments)
    out = []
    for number, segment in enumerate(logged.segments):
        rows = logged.segment == number
        lengths = evidence.lengths[number]
        counted = logged.requests[rows]
        out.append(visits(acceptance, segment, lengths, logged.k[rows], targets.k[rows], counted, seed=seed))
    return tuple(out)


def _drafts(rows: Rows, factors: Factors, segment: Ints) -> Floats:
    """[row]: draft tokens, corrected where K is raised."""
    return rows.drafted * np.where(rows.raised > 0.0, 1.0 + factors.more_drafts[segment], 1.0)


def _pair_seconds(
    evidence: Evidence,
    targets: Targets,
    rows: Rows,
    factors: Factors,
    found: Sequence[Visits],
    *,
    model: int | None = None,
) -> Floats:
    """[pair]: seconds that its share of the text takes."""
    logged, recorded = evidence.logged, evidence.work
    at, pairs = logged.at, len(logged.under)
    weighted = logged.requests * factors.weight[logged.segment]
    present = np.bincount(at, logged.requests, pairs)
    times = np.where(present > 0.0, np.bincount(at, weighted, pairs) / np.maximum(present, 1.0), 1.0)
    scale = np.array([each.drafts for each in found]) * factors.weight
    drafts = _drafts(rows, factors, logged.segment) * scale[logged.segment]
    asked = np.bincount(at, np.where(targets.k > 0, weighted, 0.0), pairs) * _share_asked(logged)
    work = replace(
        recorded,
        draft_tokens=np.bincount(at, drafts, pairs) / times,
        switched=targets.switched,
        committed_tokens=recorded.committed_tokens / times,
        depth=targets.depth,
        asked=asked / times,
    )
    residual = evidence.residual
    if model is not None:
        residual = residuals(evidence, by_block(evidence, recorded, model=model))
    draft, verify, other = by_block(evidence, work, model=model)
    plain = by_block(evidence, work.without_prefill(), model=model)[1]
    verify = times * plain + (verify - plain)
    return residual[0] * times * draft + residual[1] * verify + residual[2] * times * other


def _share_asked(logged: Logged) -> float:
    """Of the requests whose segment drafts, those that are asked: not all are."""
    drafting = float(logged.requests[logged.k > 0].sum())
    return min(float(logged.pair["requests_drafting"].sum()) / drafting, 1.0) if drafting else 1.0


def _draws(
    evidence: Evidence,
    targets: Targets,
    rows: Rows,
    found: Sequence[Visits],
    factors: Factors,
    sums: Floats,
    pair_seconds: Floats,
    draws: int,
    seed: int,
) -> tuple[Floats, Floats]:
    """Seconds of resampled pairs, to first order in the factors, and recorded ones of the same pairs."""
    segments = len(evidence.logged.segments)
    slopes = []
    for name in ("weight", "more_drafts"):
        for segment in range(segments):
            values = getattr(factors, name).copy()
            values[segment] += _STEP
            moved = replace(factors, **{name: values})
            slopes.append((_pair_seconds(evidence, targets, rows, moved, found) - pair_seconds) / _STEP)
    actual = evidence.actual.draft_s + evidence.actual.verify_s + evidence.actual.other_s
    flat = sums.reshape(len(sums), -1)
    columns = chunked(np.column_stack([flat, pair_seconds, actual, *slopes]))
    size = len(actual) / len(columns)
    block = max(evidence.run_steps / size, 1.0)
    drawn = resampled(columns, block, draws, generator(seed, 2))
    wide = flat.shape[1]
    again = _factors(drawn[:, :wide].reshape(draws, len(_SUMS), segments), found)
    apart = np.concatenate([again.weight - factors.weight, again.more_drafts - factors.more_drafts], axis=1)
    seconds = drawn[:, wide] + (drawn[:, wide + 2 :] * apart).sum(axis=1)
    return seconds, drawn[:, wide + 1]


def _log_seconds(evidence: Evidence, targets: Targets, found: Sequence[Visits], block: int) -> float:
    """Log seconds with what was learned without one block, everywhere."""
    rows = rows_of(evidence, targets, block=block)
    factors = _factors(_sums(evidence.logged, rows).sum(axis=0), found)
    return float(np.log(_pair_seconds(evidence, targets, rows, factors, found, model=block).sum()))
