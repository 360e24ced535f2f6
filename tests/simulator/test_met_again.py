"""Requests that were recorded under one K and come again."""

import numpy as np
import pytest
from made_steps import made_step

from steersman_policies.messages import RequestReport
from steersman_simulator.acceptance.met_again import MetAgain, constant_k, seen_under
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth
from steersman_simulator.workload.arrival import Arrival

SEGMENT = SegmentTruth(0.6, 0.5, (1.0, 0.9), (0.6, 0.7), effect_sd=1.0)
TRUTH = AcceptanceTruth({"unknown": SEGMENT})


def steps_at(table, k: int, tokens: int) -> int:
    """Steps after the first token, K drafts a step where there are so many."""
    at, steps = 1, 0
    while at < tokens:
        drafted = min(k, int(table.offered[at]), tokens - at - 1)
        at, steps = at + 1 + min(drafted, int(table.accepted[at])), steps + 1
    return steps


def report(request: int, prompt: int, steps: int, tokens: int = 60) -> RequestReport:
    return RequestReport(
        request, "chat", float(request), prompt, tokens, 0.0, 0.1, 0.1, 1.0, steps, 0, 0, "length"
    )


def test_a_request_that_was_easy_is_easy_again_whatever_k():
    """From its steps under K = 4, those under K = 2 follow better than from its segment."""
    recorded, wanted, found, plain = [], [], [], []
    for number in range(60):
        table = TRUTH.table(Arrival(0.0, "chat", number, 60), number, 1, 0.0)
        recorded.append(report(number, number, steps_at(table, 4, 60)))
        wanted.append(steps_at(table, 2, 60))
    again = MetAgain(TRUTH, seen_under(4, recorded))
    for number in range(60):
        arrival = Arrival(5.0, "chat", number, 60)
        found.append(steps_at(again.table(arrival, number + 7, 2, 0.0), 2, 60))
        plain.append(steps_at(TRUTH.table(arrival, number + 7, 2, 0.0), 2, 60))
    assert np.corrcoef(found, wanted)[0, 1] > 0.85
    assert np.corrcoef(plain, wanted)[0, 1] < 0.5


def test_a_request_never_seen_is_one_of_its_segment():
    """Other lengths make another request; and a draw depends on the arguments alone."""
    again = MetAgain(TRUTH, seen_under(4, [report(0, 30, 20)]))
    other, same = Arrival(0.0, "chat", 31, 60), Arrival(0.0, "chat", 30, 60)
    for mine, plain in zip(again.table(other, 3, 9, 0.0), TRUTH.table(other, 3, 9, 0.0), strict=True):
        assert (mine == plain).all()
    for one, two in zip(again.table(same, 3, 9, 0.0), again.table(same, 3, 9, 0.0), strict=True):
        assert (one == two).all()


@pytest.mark.parametrize(("rows", "k"), [([(4, 99), (0, 1)], 4), ([(4, 60), (0, 40)], 0), ([], 0)])
def test_a_window_has_a_constant_k_or_none(rows, k):
    """A few steps may still run under what was in force before."""
    assert (
        constant_k([made_step(0.0, 0.1, requests, k=commanded).report for commanded, requests in rows]) == k
    )
