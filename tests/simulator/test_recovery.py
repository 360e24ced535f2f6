"""K = 0 is no dead end: the real controller, planner and executor in a world whose drafter recovers."""

from dataclasses import dataclass

import pytest

from steersman_policies.messages import StepReport
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.workload.arrival import Arrival

RECOVERS_AT = 48
"""Ordinal of the first request whose drafts are any good."""


@dataclass(frozen=True)
class Recovering:
    """Nothing is accepted of the first requests, and four tokens of five of the later ones."""

    def table(self, arrival: Arrival, ordinal: int, seed: int, at_s: float) -> DraftTable:
        level = 0.8 if ordinal >= RECOVERS_AT else 0.0
        return ConstantAcceptance(level).table(arrival, ordinal, seed, at_s)

    def changes(self) -> tuple[float, ...]:
        return ()


def run(make_world, arm, seed: int) -> tuple[list[StepReport], int]:
    """All steps, and the first one in which every request is of the later kind."""
    world = make_world(acceptance=Recovering(), policy="goodput", seed=seed, max_batch=8)
    arrivals = [Arrival(0.0, "chat", 20, 120) for _ in range(104)]
    outcome = world.run([arm(arrivals, "goodput")])
    early = [one.report for one in outcome.served if one.report.request < RECOVERS_AT]
    recovered_s = max(report.arrived_s + report.e2e_s for report in early)
    steps = [step.report for step in outcome.steps]
    return steps, next(i for i, step in enumerate(steps) if step.started_s >= recovered_s)


def drafting(step: StepReport) -> bool:
    """Whether the plan's table asks for drafts."""
    return step.reason in {"table", "dwell"} and max(step.commanded.values(), default=0) > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_off_is_not_absorbing(make_world, arm, seed):
    """Through 500 steps in which nothing is accepted K stays 0 but for a few probes; 300 steps after drafts
    have become good it is above 0, and stays there in nearly all."""
    steps, recovered = run(make_world, arm, seed)
    assert recovered > 600
    before = steps[recovered - 500 : recovered - 50]
    assert sum(map(drafting, before)) == 0
    assert 0 < sum(max(s.commanded.values(), default=0) > 0 for s in before) <= 25
    after = [drafting(step) for step in steps[recovered:] if step.reason in {"table", "dwell"}]
    assert after.index(True) <= 300
    late = after[300:]
    assert sum(late) > 0.9 * len(late) > 0.0


def test_a_planner_that_never_probes_stays_off(make_world, arm, monkeypatch):
    """Without exploration nobody ever learns that drafts are good again."""
    monkeypatch.setattr("steersman_policies.zoo.goodput.Policy._explore", lambda self, view, menu: None)
    steps, recovered = run(make_world, arm, 1)
    assert not any(drafting(step) for step in steps[recovered:])
