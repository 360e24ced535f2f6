"""How much requests of a segment differ, and whether two segments do."""

import random

import msgspec
import pytest
import segment_truth as truth

from steersman_controller.autocorrelation import Autocorrelation
from steersman_controller.request_spread import RequestSpread, merged
from steersman_controller.train.outcomes import outcomes_of


def test_acceptance_that_does_not_depend_on_k_is_not_a_difference() -> None:
    """The ratio trap: accepted / drafted falls with K alone. Two tags that differ in K only are merged."""

    def at(k: int, seed: int) -> RequestSpread:
        rng, found = random.Random(seed), RequestSpread()
        for _ in range(80):
            accepted = reached = 0
            for _ in range(20):
                kept = next((j for j in range(k) if rng.random() >= 0.7), k)
                accepted, reached = accepted + kept, reached + min(kept + 1, k)
            found.add(accepted, reached, 20)
        return found

    spreads = {"short": at(2, 0), "long": at(8, 1)}
    assert len(set(merged(spreads).values())) == 1
    assert abs(spreads["short"].accepted / (80 * 20 * 2) - spreads["long"].accepted / (80 * 20 * 8)) > 0.2


@pytest.mark.parametrize(("sd", "split"), [(0.0, False), (0.2, True)])
def test_a_segment_of_several_kinds_is_noticed(sd: float, split: bool) -> None:
    """Spread between requests beyond chance is measured, and makes a request count for less."""
    spread = RequestSpread()
    for report in truth.requests(400, easy=0.6, hard=0.6, between_sd=sd):
        spread.add(report.accepted, report.reached, report.steps_drafted)
    assert spread.worth_splitting is split
    assert spread.between_sd == pytest.approx(sd, abs=0.04)
    assert (spread.dispersion > 2.0) is split


def test_steps_in_bursts_have_an_autocorrelation() -> None:
    """Acceptance of independent steps has none, that of bursts has that of the bursts; a gap is no pair."""
    rng = random.Random(0)
    alone, bursts, gaps = Autocorrelation(), Autocorrelation(), Autocorrelation()
    easy = True
    for step in range(4_000):
        easy = easy if rng.random() < 0.9 else not easy
        alone.add(step, 1, rng.random() < 0.6, 1)
        bursts.add(step, 1, rng.random() < (0.9 if easy else 0.1), 1)
        gaps.add(2 * step, 1, rng.random() < 0.6, 1)
    # Of a two-state chain that stays with 0.9: (2 * 0.9 - 1) of the variance that the states explain.
    assert bursts.lag_one == pytest.approx(0.8 * 0.4**2 / 0.25, abs=0.06)
    assert alone.lag_one < 0.05
    assert gaps.lag_one == 0.0


def test_reports_that_contradict_themselves_teach_nothing() -> None:
    """More accepted than decided, or more decided than drafted: left out, the others count."""
    good = truth.requests(10)
    bad = [
        msgspec.structs.replace(good[0], reached=good[0].accepted - 1),
        msgspec.structs.replace(good[1], reached=good[1].drafted + 1),
        msgspec.structs.replace(good[2], reached=0),
    ]
    assert len(outcomes_of([*good, *bad])) == len(good)
