"""Requests that differ beyond chance are seen to, whatever K they lived under."""

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import traffic

from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig
from steersman_controller.request_spread import RequestSpread
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import RequestReport
from steersman_policies.policy import load


def controller() -> Controller:
    digest = fingerprint_digest(traffic.FINGERPRINT)
    return Controller(traffic.HELLO, digest, load("fixed", {"k": 4}), ControllerConfig())


def finished(request: int, accepted: npt.NDArray[np.int64], k: int, segment: str = "code") -> RequestReport:
    """A request with these tokens accepted of drafts of k."""
    drafts, reached = len(accepted), int(np.minimum(accepted + 1, k).sum())
    numbers = (drafts, drafts * k, int(accepted.sum()), "stop", reached, drafts)
    return RequestReport(request, segment, 0.0, 10, 90, 0.0, 0.1, 0.01, 1.0, *numbers)


def served(differ: float, k: int = 4, number: int = 400, seed: int = 1) -> tuple[Controller, float]:
    """A controller after these requests of 40 drafts, and how their acceptance spreads.

    `differ`: standard deviation of their log-odds of acceptance.
    """
    rng, one, shares = np.random.default_rng(seed), controller(), []
    for request in range(number):
        alpha = float(1.0 / (1.0 + np.exp(-(0.5 + differ * rng.standard_normal()))))
        accepted = np.minimum(rng.geometric(1.0 - alpha, 40) - 1, k)
        shares.append(alpha)
        for half in (accepted[:20], accepted[20:]):
            step = 2 * request + (half is not accepted[:20])
            one.observe(traffic.report(step, [traffic.group("code", k, half.tolist())]), 0.02 * step)
        one.observe(finished(request, accepted, k), 0.02 * step)
    return one, float(np.std(shares))


@pytest.mark.parametrize("k", [2, 4, 8])
def test_the_spread_between_requests_is_found(k: int) -> None:
    """Within a fifth of the truth, at every K."""
    one, truth = served(0.8, k)
    found = one.variation()["code"].between_requests
    assert found is not None
    assert found.between_sd == pytest.approx(truth, rel=0.2)
    assert found.dispersion > 3.0
    assert found.worth_splitting


def test_requests_that_are_alike_show_no_spread() -> None:
    """What chance does between equal requests is not taken for a difference."""
    found = served(0.0)[0].variation()["code"].between_requests
    assert found is not None
    assert found.between_sd < 0.03
    assert found.dispersion == pytest.approx(1.0, abs=0.3)
    assert not found.worth_splitting


def test_a_spread_that_ignores_chance_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were drafts taken for certain, requests that are alike would seem to differ."""

    monkeypatch.setattr(RequestSpread, "_chance", 0.0)
    found = served(0.0)[0].variation()["code"].between_requests
    assert found is not None
    assert found.between_sd > 0.03


def test_reports_that_cannot_be_true_are_counted_and_ignored() -> None:
    """More accepted than drafted or decided, or more decided than drafted, teaches nothing."""
    one = served(0.8, number=20)[0]
    before = one.snapshot()
    good = finished(99, np.ones(10, np.int64), 4)
    for lie in ({"accepted": 41, "reached": 0}, {"accepted": 21}, {"reached": 41}):
        one.observe(msgspec.structs.replace(good, **lie), 100.0)
    assert one.counters["reports_refused"] == 3
    one.counters["reports_refused"] = 0
    del one.counters["reports_refused"]
    assert one.snapshot() == before


def test_a_request_whose_decided_drafts_are_not_told_teaches_nothing() -> None:
    """It is counted, and no spread is made of accepted / drafted, which falls with K alone."""
    one = served(0.8, number=30)[0]
    before = one.variation()
    for request in range(30):
        untold = msgspec.structs.replace(finished(request, np.full(10, request % 5), 4), reached=0)
        one.observe(untold, 100.0)
    assert one.counters["requests_undecided"] == 30
    assert one.counters["requests"] == 60
    assert one.variation() == before


def test_it_outlives_the_sidecar_and_is_shown() -> None:
    """The sums are part of a snapshot, and status says what they mean."""
    one, other = served(0.8)[0], controller()
    other.restore(one.snapshot())
    assert other.variation() == one.variation()
    shown = msgspec.to_builtins(one.status(1000.0).variation)
    assert shown["code"]["between_requests"]["between_sd"] > 0.0
    assert shown["code"]["dispersion"] > 1.0


def live(one: Controller, steps: int, *, seed: int = 2, level: float = 0.7, first: int = 0) -> None:
    """Steps of eight requests that differ, and live for 60 steps each on average; plans as they fall due."""
    rng = np.random.default_rng(seed)
    odds = level + 0.8 * rng.standard_normal(8)
    taken: list[list[int]] = [[] for _ in range(8)]
    for step in range(first, first + steps):
        for row in np.flatnonzero(rng.random(8) < 1.0 / 60.0).tolist():
            if taken[row]:
                one.observe(finished(step, np.array(taken[row]), 5), 0.01 * step)
            odds[row], taken[row] = level + 0.8 * rng.standard_normal(), []
        found = np.minimum(rng.geometric(1.0 - 1.0 / (1.0 + np.exp(-odds))) - 1, 5)
        for row, tokens in enumerate(found.tolist()):
            taken[row].append(tokens)
        one.observe(traffic.report(step, [traffic.group("code", 5, found.tolist())]), 0.01 * step)
        one.plan(0.01 * step)


def test_requests_that_come_and_go_are_no_drift() -> None:
    """Eight requests that differ move their mean for as long as they live; in 10,000 steps nothing is alarmed
    after the first requests are over, and a drafter that becomes bad is noticed within 300 steps."""
    one = controller()
    live(one, 2000)
    one.belief.fold()
    before = one.belief.alarms["acceptance"]
    live(one, 8000, first=2000, seed=3)
    one.belief.fold()
    assert one.belief.alarms["acceptance"] == before
    live(one, 300, first=10_000, seed=4, level=-1.5)
    one.belief.fold()
    assert one.belief.alarms["acceptance"] > before


def test_a_watch_that_takes_requests_for_alike_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without knowing how requests differ it raises alarm after alarm."""
    monkeypatch.setattr("steersman_controller.belief.watch.WANDER", 0.0)
    one = controller()
    live(one, 8000)
    one.belief.fold()
    assert one.belief.alarms["acceptance"] > 3
