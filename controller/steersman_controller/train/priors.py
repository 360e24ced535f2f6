"""What a sidecar may believe at first, out of a bundle or data sheets, as plain data.

Light: a sidecar reads a bundle without anything that trains.
"""

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steersman_controller.belief.fit import solve_non_negative
from steersman_controller.belief.prior import CostPrior, Prior, WithoutDrafter
from steersman_controller.train.bundle import Bundle, GroupCard, read_bundle
from steersman_policies.policy import did_you_mean
from steersman_policies.units import SEGMENT_PATTERN, UNKNOWN_SEGMENT
from steersman_policies.view import Row, StepCost

if TYPE_CHECKING:
    from steersman_controller.train.hardware import Hardware

Floats: TypeAlias = NDArray[np.float64]

NEGLIGIBLE = 0.002
"""Relative error of a point of the curve that need not be kept."""

MOST_POINTS = 96
"""Of the curve over tokens: planners walk along it in every cell of a plan."""


def read_priors(path: Path, group: str = "") -> tuple[Prior, ...]:
    """The priors in a bundle: one for each engine that it was recorded from, else that of the `group`.

    Raises ValueError or OSError in one line where the file is no bundle, or it has several groups and none or
    no such one is named.
    """
    bundle = read_bundle(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return priors_of(bundle, f"{path.name} ({digest[:12]})", group)


def priors_of(bundle: Bundle, source: str, group: str = "") -> tuple[Prior, ...]:
    """The same of a bundle that was read."""
    cards = bundle.manifest.groups
    names = ["/".join(card.group) for card in cards]
    if group and group not in names:
        known = f"it has {', '.join(names)}" if bundle.manifest.by else "it has a single one without a name"
        raise ValueError(f"--bundle-group: no {group!r}{did_you_mean(group, names)}; {known}")
    by_engine = bundle.manifest.by == ("engine",)
    if len(cards) > 1 and not group and not by_engine:
        raise ValueError(f"--bundle: has several groups; name one with --bundle-group: {', '.join(names)}")
    places = [names.index(group)] if group else range(len(cards))
    # What was seen most speaks for engines that the bundle does not know.
    ordered = sorted(places, key=lambda place: -cards[place].steps)
    return tuple(_prior(bundle, place, source, by_engine and not group) for place in ordered)


def hardware_prior(hardware: "Hardware") -> Prior:
    """What data sheets or operator tables say. Raises ValueError in one line."""
    from steersman_controller.train.compiled import compile_tables
    from steersman_controller.train.hardware import forwards_of
    from steersman_controller.train.prior import nobody_measured
    from steersman_controller.train.selection import unscored

    forwards = forwards_of(hardware)
    cells = forwards.cells()
    cost = compile_tables(unscored(cells, "prior").model, nobody_measured(cells), 1.0).cost
    source = f"{hardware.target_config.name} on {hardware.device.lower()} ({forwards.source})"
    return Prior(source[:256], cost=_cost_prior(cost))


def _prior(bundle: Bundle, place: int, source: str, by_engine: bool) -> Prior:
    manifest, card = bundle.manifest, bundle.manifest.groups[place]
    own = "/".join(card.group)
    known = {UNKNOWN_SEGMENT: manifest.acceptance[own]} if own in manifest.acceptance else manifest.acceptance
    named = {name or UNKNOWN_SEGMENT: shares for name, shares in known.items()}
    for name in named:
        if re.match(SEGMENT_PATTERN, name) is None:
            raise ValueError(f"--bundle: acceptance of {name!r}, which no segment can be called")
    return Prior(
        source=source[:256],
        fingerprint=card.fingerprint or manifest.fingerprint,
        engine_id=own if by_engine else "",
        cost=_cost_prior(bundle.step_cost(place), card, _without_drafter(bundle, place)),
        acceptance=named,
        coverage={name or UNKNOWN_SEGMENT: share for name, share in manifest.coverage.items()},
    )


def _cost_prior(
    cost: StepCost, card: GroupCard | None = None, without_drafter: WithoutDrafter | None = None
) -> CostPrior:
    plain = np.array(cost.verify_s)
    row = plain[0, 0]
    per_context = per_prefill = 0.0
    contexts, prefills = np.array(cost.context_grid_tokens), np.array(cost.prefill_grid_tokens)
    if len(contexts) > 1:
        per_context = float((plain[0, -1] - row).mean() / (contexts[-1] - contexts[0]))
    if len(prefills) > 1:
        per_prefill = float((plain[-1, 0] - row).mean() / (prefills[-1] - prefills[0]))
    grid, verify_s = _thinned(np.array(cost.tokens_grid, np.float64), row)
    interval = None if card is None else card.interval
    return CostPrior(
        tokens_grid=tuple(int(tokens) for tokens in grid),
        verify_s=tuple(verify_s.tolist()),
        context_token_s=max(per_context, 0.0),
        prefill_token_s=max(per_prefill, 0.0),
        draft_s=_draft(cost),
        other_s=_other(cost),
        relative_error=cost.relative_error,
        interval=() if interval is None else (interval.q05, interval.q95),
        without_drafter=without_drafter,
    )


def _thinned(grid: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """At most `MOST_POINTS` of a curve: those that a straight line through the others would miss most."""
    kept = [0, len(grid) - 1] if len(grid) > 1 else [0]
    while len(kept) < min(MOST_POINTS, len(grid)):
        missed = np.abs(np.interp(grid, grid[kept], seconds[kept]) / np.maximum(seconds, 1e-9) - 1.0)
        worst = int(missed.argmax())
        if missed[worst] < NEGLIGIBLE:
            break
        kept = sorted([*kept, worst])
    return grid[kept], seconds[kept]


def _draft(cost: StepCost) -> tuple[float, float, float, float]:
    """Seconds at all, per request, per depth, per depth and request."""
    ks, requests = range(1, len(cost.draft_s)), cost.requests_grid
    cells = [(k, r, cost.draft_s[k][i]) for k in ks for i, r in enumerate(requests)]
    if not cells or not any(seconds for _, _, seconds in cells):
        return (0.0, 0.0, 0.0, 0.0)
    weight = np.array([1.0 / max(seconds, 1e-6) for _, _, seconds in cells])
    rows = np.array([(1.0, r, k, k * r) for k, r, _ in cells]) * weight[:, None]
    scale = np.sqrt((rows**2).sum(axis=0))
    rows /= scale
    wanted = rows.T @ (weight * np.array([seconds for _, _, seconds in cells]))
    # A trace of ridge: with one batch size or one K its terms cannot be told apart.
    solution = solve_non_negative(rows.T @ rows + 1e-9 * np.eye(4), wanted, range(4)) / scale
    found: list[float] = np.maximum(solution, 0.0).tolist()
    return (found[0], found[1], found[2], found[3])


def _other(cost: StepCost) -> tuple[float, float]:
    first, last = cost.other_s[0], cost.other_s[-1]
    span = cost.requests_grid[-1] - cost.requests_grid[0]
    slope = max((last - first) / span, 0.0) if span else 0.0
    return max(first - slope * cost.requests_grid[0], 0.0), slope


def _without_drafter(bundle: Bundle, place: int) -> WithoutDrafter | None:
    card, seconds = bundle.manifest.groups[place], bundle.table(place, "no_drafter_s")
    if not np.isfinite(seconds).all():
        return None
    rows: tuple[Row, ...] = tuple(tuple(row) for row in seconds.tolist())
    return WithoutDrafter(card.batches, card.mean_contexts, rows)
