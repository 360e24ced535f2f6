"""The model card: what a bundle was trained on, how wrong it is and where."""

from typing import Any

import msgspec
import numpy as np

from steersman_controller.train.bundle import Bundle, GroupCard, Manifest, WorstCell
from steersman_controller.train.cells import Cells
from steersman_controller.train.compiled import Tables
from steersman_controller.train.crossover import acceptances, best_k, crossover_lines, drafter_loses
from steersman_controller.train.intervals import NOMINAL, Residuals
from steersman_controller.train.physics import PhysicsModel, fit_physics
from steersman_controller.train.report import LOW_LOAD, ChoiceReport
from steersman_controller.train.segment_lines import facts_lines, segmenter_lines, segments_lines
from steersman_controller.train.selection import Selected
from steersman_policies.messages import Fingerprint

WORST = 5


def group_card(
    group: tuple[str, ...],
    cells: Cells,
    selected: Selected,
    residuals: Residuals,
    tables: Tables,
    fingerprint: Fingerprint | None = None,
) -> GroupCard:
    """The card of one group."""
    out = selected.out_of_fold
    model = selected.model
    errors = np.abs(out.seconds / cells.seconds - 1.0)
    affine = np.abs(out.affine_s / cells.seconds - 1.0)
    low = cells.batch <= LOW_LOAD
    # Trees know no ceiling; how many requests run at once is asked of the sum then.
    physics = model if isinstance(model, PhysicsModel) else fit_physics(cells, jumps=False)
    return GroupCard(
        group=group,
        model=selected.candidate,
        cells=len(cells),
        steps=float(cells.steps.sum()),
        terms_s=dict(zip(physics.terms, physics.coefficients, strict=True)) if physics is model else {},
        ceiling=physics.ceiling,
        ceiling_without_drafter=physics.ceiling_without_drafter,
        scores=selected.scores,
        cv_mape=mean(errors),
        cv_mape_to_64=mean(errors[low]),
        affine_cv_mape=mean(affine),
        affine_cv_mape_to_64=mean(affine[low]),
        cv_mape_by_batch={
            str(int(batch)): float(np.mean(errors[cells.batch == batch]))
            for batch in np.unique(cells.batch)
            if np.isfinite(errors[cells.batch == batch]).any()
        },
        interval=residuals.interval(),
        coverage=residuals.coverage(),
        spread=float(np.median(cells.spread)),
        worst=_worst(cells, out.seconds, errors),
        planner_table_error=tables.cost_error,
        batches=tables.batches,
        ks=tables.ks,
        mean_contexts=tables.mean_contexts,
        tokens_grid=tables.cost.tokens_grid,
        context_grid_tokens=tables.cost.context_grid_tokens,
        prefill_grid_tokens=tables.cost.prefill_grid_tokens,
        requests_grid=tables.cost.requests_grid,
        relative_error=tables.cost.relative_error,
        fingerprint=fingerprint,
    )


def mean(errors: Any) -> float | None:
    """Of the finite ones; None where there is none."""
    known = errors[np.isfinite(errors)]
    return float(known.mean()) if len(known) else None


def described(bundle: Bundle) -> dict[str, Any]:
    """The whole card as plain values, with the crossover."""
    plain: dict[str, Any] = msgspec.to_builtins(bundle.manifest)
    for index, group in enumerate(plain["groups"]):
        group["steps_by_batch_and_k"] = bundle.table(index, "steps").tolist()
        group["best_k"] = {
            segment: best_k(bundle, index, acceptance).tolist()
            for segment, acceptance in acceptances(bundle, index).items()
        }
        group["drafter_loses"] = {
            segment: drafter_loses(bundle, index, acceptance).tolist()
            for segment, acceptance in acceptances(bundle, index).items()
        }
    plain["acceptance_assumed"] = not bundle.manifest.acceptance
    return plain


def card_lines(bundle: Bundle) -> list[str]:
    """The card for people."""
    manifest = bundle.manifest
    lines = [
        f"bundle format {manifest.format}, made {manifest.created_at}, "
        + ("signed" if manifest.signature else "not signed"),
        *(f"trained on {e.name}: {e.rows} rows, sha256 {e.sha256[:16]}" for e in manifest.evidence),
    ]
    if manifest.fingerprint is not None:
        named = msgspec.to_builtins(msgspec.structs.asdict(manifest.fingerprint))
        lines.append("for " + ", ".join(f"{key} {value}" for key, value in named.items() if value))
    lines += [f"{name.replace('_', ' ')}: {percent(value)}" for name, value in manifest.figures.items()]
    lines += [_acceptance_line(manifest, segment) for segment in manifest.acceptance]
    if not manifest.acceptance:
        lines.append("no acceptance is known: the best K is shown for assumed ones")
    for index, card in enumerate(manifest.groups):
        lines += [
            "",
            *_group_lines(card, manifest.by, bundle.table(index, "steps")),
            *crossover_lines(bundle, index),
        ]
    if manifest.choice is not None:
        lines += ["", *choice_lines(manifest.choice)]
    if manifest.facts:
        lines += ["", *facts_lines(manifest.facts)]
    if manifest.segments is not None:
        lines += ["", *segments_lines(manifest.segments), *segmenter_lines(manifest.segmenter)]
    return lines


def _acceptance_line(manifest: Manifest, segment: str) -> str:
    shares = " ".join(f"{share:.2f}" for share in manifest.acceptance[segment])
    covered = manifest.coverage.get(segment)
    drafted = "" if covered is None else f"; {covered:.0%} of the requests asked had a draft"
    return f"acceptance by position, {segment or 'all segments'}: {shares}{drafted}"


def choice_lines(choice: ChoiceReport) -> list[str]:
    """How well K was chosen."""
    rules = {"learned": choice.learned, **choice.naive}
    return [
        f"choice of K at batch sizes left out, acceptance from another {choice.column}: regret over "
        f"{choice.cells} cells, {choice.cells_to_64} of them at batch <= {LOW_LOAD}",
        f"  {'rule':<28}{'mean':>8}{'max':>8}{'mean<=64':>10}{'max<=64':>9}",
        *(
            f"  {name:<28}{score.mean_regret:>8.2%}{score.max_regret:>8.2%}"
            f"{score.mean_regret_to_64:>10.2%}{score.max_regret_to_64:>9.2%}"
            for name, score in rules.items()
        ),
    ]


def percent(value: float | None) -> str:
    """A fraction for people.

    >>> percent(0.0123), percent(None)
    ('1.23 %', 'unknown')
    """
    return "unknown" if value is None else f"{100.0 * value:.2f} %"


def _group_lines(card: GroupCard, by: tuple[str, ...], steps: Any) -> list[str]:
    named = ", ".join(f"{name} {value}" for name, value in zip(by, card.group, strict=True)) or "all rows"
    lines = [
        f"{named}: {card.model}, {card.cells} cells, {card.steps:.0f} steps",
        f"  error on batch sizes left out: {percent(card.cv_mape)}, at batch <= {LOW_LOAD} "
        f"{percent(card.cv_mape_to_64)}; affine {percent(card.affine_cv_mape)}",
        "  by batch size: " + ", ".join(f"{b} {percent(e)}" for b, e in card.cv_mape_by_batch.items()),
    ]
    if card.interval is not None:
        lines.append(
            f"  90 % interval: {card.interval.q05:.3f} to {card.interval.q95:.3f} of the prediction; "
            f"covers {percent(card.coverage)} of what was left out, nominal {percent(NOMINAL)}"
        )
    else:
        lines.append("  no interval: too few rows between the smallest and the largest batch size")
    if card.ceiling is not None:
        lines.append(f"  more than {card.ceiling:.0f} requests did not run at once beside the drafter")
    seen = steps[steps > 0]
    if len(seen):
        lines.append(
            f"  {len(seen)} of {steps.size} table cells were measured, the others are predictions; "
            f"{seen.min():.0f} to {seen.max():.0f} steps a cell, median {np.median(seen):.0f}"
        )
    else:
        lines.append("  nothing was measured: every cell is a prediction")
    if card.spread:
        lines.append(f"  half of the steps of a cell lie within {percent(card.spread)} of its median time")
    worst = (f"batch {w.batch_size} K {w.num_draft_tokens} {percent(w.error)}" for w in card.worst)
    lines.append("  worst cells: " + (", ".join(worst) or "unknown"))
    return lines


def _worst(cells: Cells, predicted_s: Any, errors: Any) -> tuple[WorstCell, ...]:
    order = np.argsort(np.where(np.isfinite(errors), -errors, np.inf))[:WORST]
    return tuple(
        WorstCell(
            int(cells.batch[i]),
            int(cells.k[i]),
            1e3 * float(cells.seconds[i]),
            1e3 * float(predicted_s[i]),
            float(errors[i]),
        )
        for i in order
        if np.isfinite(errors[i])
    )
