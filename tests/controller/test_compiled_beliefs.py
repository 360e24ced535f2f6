"""Compiled loops behind a plan's view, against the same in plain arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman_controller.belief.arrays import Array
from steersman_controller.belief.fit import KEEP, TRUSTED_ROWS, Fit, Rows, solve_non_negative
from steersman_controller.belief.shrinkage import (
    EQUAL_AT_MOST,
    KNOWN_REACHED,
    PER_FREEDOM,
    apart,
    burstiness_of,
    drafted_shares,
    positions,
)
from steersman_controller.belief.verify import FEATURES, TERMS, VerifyCost

SEEDS = st.integers(0, 2**32 - 1)
CELLS = 5


def whole(gram: Array, knots: int, scale: float) -> tuple[Array, Array]:
    """All products in one matrix of the ratios, the terms and the result, scaled."""
    out = np.zeros((knots + TERMS + 1,) * 2)
    for cell, products in enumerate(gram):
        at = np.r_[cell, cell + 1, knots : knots + TERMS + 1]
        out[np.ix_(at, at)] += products
    out[:-1] *= scale
    out[:, :-1] *= scale
    return out[:-1, :-1], out[:-1, -1]


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_curve_is_what_solving_for_all_at_once_gives(seed: int) -> None:
    """Ratios one by one and the terms after them fit as well as all of them together."""
    chance, cost = np.random.default_rng(seed), VerifyCost(576)
    gram, knots = np.zeros_like(cost.fit.state.gram), len(cost.knots)
    for cell in chance.choice(len(gram), chance.integers(1, 8)):
        rows = chance.random((chance.integers(1, 60), FEATURES + 1)) * chance.choice(
            [0.0, 0.3, 3.0], FEATURES + 1
        )
        rows[:, 1], rows[:, FEATURES] = 1.0 - rows[:, 0], 1.0 + 0.3 * chance.standard_normal(len(rows))
        gram[cell] += rows.T @ rows
    scale = 10.0 ** chance.uniform(-1.0, 1.0)
    normal, wanted = whole(gram, knots, scale)
    expected = solve_non_negative(normal + cost._prior, wanted + cost._wanted, (knots, knots + 1))
    found = cost.solved(gram, scale)
    assert found.ratios == pytest.approx(np.maximum(expected[:knots], 1e-3), rel=1e-6, abs=1e-9)
    assert found.terms == pytest.approx(expected[knots:], rel=1e-6, abs=1e-9)
    assert (found.terms[:2] >= 0.0).all()


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_products_of_a_block(seed: int) -> None:
    """Each cell holds the faded products of its rows, results clipped where the evidence is trusted."""
    chance, fit = np.random.default_rng(seed), Fit(CELLS, 2)
    number = int(chance.integers(0, 80))
    fit.state.gram[:] = chance.random(fit.state.gram.shape)
    fit.state.seen[:] = chance.choice([0, TRUSTED_ROWS], CELLS)
    cells, rows = chance.integers(0, CELLS, number), chance.random((number, 2))
    predicted, results = 0.1 + chance.random(number), 10.0 * chance.random(number)
    expected = fit.state.gram.copy()
    for cell in range(CELLS):
        mine = cells == cell
        known = fit.state.seen[cell] >= TRUSTED_ROWS
        base = predicted[mine] if known else results[mine]
        relative = np.clip(results[mine] / base, -0.5, 2.5) if known else np.ones(mine.sum())
        block = np.column_stack([rows[mine] / base[:, None], relative])
        weight = KEEP ** np.arange(len(block))[::-1]
        expected[cell] = KEEP ** len(block) * expected[cell] + (block.T * weight) @ block
    assert fit.gram(Rows(cells, rows, predicted, results)) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_what_the_marks_of_a_segment_say(seed: int) -> None:
    """Positions, shares that were offered, the part of each in bursts, and K that differ."""
    chance = np.random.default_rng(seed)
    marks, gain = 200.0 * np.tri(9) * chance.random((9, 9)) * chance.choice([0, 1], (9, 1)), 1.5
    offered = positions(marks, gain)
    assert offered == pytest.approx((marks / gain) @ np.tri(9, 8, -1))

    could = 1.0 + np.array([offered[j + 1 :, 0].sum() for j in range(8)])
    above, shares = 1.0, []
    for did, asked in zip(offered.sum(axis=0), could, strict=True):
        above = min(above, (above + did) / asked)
        shares.append(above)
    assert drafted_shares(offered) == pytest.approx(shares)

    accepted = offered * chance.uniform(0.5, 0.5 + 0.4 * chance.random() ** 2, (9, 1))
    mean = (accepted[8] + 0.5) / (offered[8] + 1.0)
    variance = offered[8] * mean * (1.0 - mean)
    bursts = burstiness_of(offered[8], accepted[8], 3.0)
    assert bursts == pytest.approx(1.0 + 2.0 * variance / max(variance.sum(), 1e-300))

    known = offered[:, 0] >= KNOWN_REACHED
    shared = slice(0, int(known.argmax()))
    common = (accepted[known].sum(axis=0) + 1.0) / (offered[known].sum(axis=0) + 2.0)
    surplus = (accepted[known] - offered[known] * common)[:, shared].sum(axis=1)
    spread = (offered[known] * common * (1.0 - common))[:, shared].sum(axis=1)
    square = (surplus**2 / np.maximum(spread, 1e-9)).sum()
    if known.sum() > 1 and square > 0.1:  # it grows with what a draft is worth
        limit = (EQUAL_AT_MOST + PER_FREEDOM * (known.sum() - 1)) / square
        assert not apart(offered, accepted, 0.99 * limit).any()
        assert apart(offered, accepted, 1.01 * limit).tolist() == known.tolist()
    else:
        assert not apart(offered, accepted, 1.0).any()
