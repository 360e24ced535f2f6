"""Figures and comparisons of arms, on made-up runs whose right answers are known."""

import random

import pytest
from made_steps import made_step as step

from steersman_simulator.demo.arms import ArmRun, running_order
from steersman_simulator.demo.client import Outcome
from steersman_simulator.demo.compare import contrast, equal_outputs, steered_vs_best
from steersman_simulator.demo.measure import arm_figures, busy, mean_k
from steersman_simulator.demo.predict import Predicted, prediction_figures
from steersman_simulator.demo.schedule import Phase, Request, Schedule
from steersman_simulator.demo.timeline import timeline
from steersman_simulator.demo.workload import WorkItem

SCHEDULE = Schedule(
    (Request(0, "quiet", 0.0, WorkItem(prompt="a")), Request(1, "saturated", 10.0, WorkItem(prompt="b"))),
    (Phase("quiet", 0.0), Phase("saturated", 10.0)),
)


def outcome(
    number: int, *, first_s: float = 1.0, last_s: float = 3.0, tokens: int = 5, **more: object
) -> Outcome:
    phase, at_s = ("quiet", 0.0) if number == 0 else ("saturated", 10.0)
    fields = {
        "segment": "chat",
        "phase": phase,
        "scheduled_s": at_s,
        "sent_s": at_s,
        "prompt_tokens": 7,
        "text": "same",
        "drafted": 0,
        "accepted": 0,
        "finish_reason": "length",
    }
    moments = {"first_token_s": at_s + first_s, "last_token_s": at_s + last_s, "tokens": tokens}
    return Outcome(number=number, **(fields | moments | more))  # type: ignore[arg-type]


def run(arm: str, quiet_s: float, saturated_s: float, *, number: int = 1, text: str = "same") -> ArmRun:
    """Ten tokens in each of the two phases, at these busy seconds per token."""
    steps = (step(1.0, quiet_s * 10, 10), step(11.0, saturated_s * 10, 10))
    outcomes = (outcome(0, text=text), outcome(1, text=text))
    return ArmRun(arm, number, SCHEDULE, outcomes, steps)


def runs(*figures: tuple[float, float, float]) -> dict[str, list[ArmRun]]:
    """Whole-arm busy seconds per token of off, fixed and steered in each round."""
    return {
        arm: [run(arm, row[index], row[index], number=n) for n, row in enumerate(figures, start=1)]
        for index, arm in enumerate(("off", "fixed", "steered"))
    }


def test_every_second_round_runs_backwards() -> None:
    """Arms are interleaved and mirrored, and each runs once a round."""
    order = [(number, arm.name) for number, arm in running_order(3)]
    assert order[3:6] == [(2, "steered"), (2, "fixed"), (2, "off")]
    assert len(set(order)) == len(order) == 9


def test_busy_seconds_are_summed_by_phase() -> None:
    """A step belongs to the phase in which it ended; idle time costs nothing."""
    figures = arm_figures([run("off", 0.05, 0.02)])
    assert figures["by_phase"]["quiet"]["busy_s_per_token"] == pytest.approx(0.05)
    assert figures["by_phase"]["saturated"]["busy_s_per_token"] == pytest.approx(0.02)
    assert figures["busy_s_per_token"] == pytest.approx(0.035)


def test_latencies_are_the_clients_from_the_scheduled_arrival() -> None:
    """TTFT, TPOT and E2E come from the client's moments; a failed request is counted and left out."""
    late = outcome(1, sent_s=10.5)
    failed = outcome(1, error="HTTP 500", first_token_s=None, last_token_s=None)
    figures = arm_figures([ArmRun("off", 1, SCHEDULE, (outcome(0), late, failed), ())])
    assert figures["ttft_p50_s"] == pytest.approx(1.0)
    assert figures["tpot_p50_s"] == pytest.approx(0.5)
    assert figures["e2e_p99_s"] == pytest.approx(3.0)
    assert (figures["requests"], figures["failed_requests"]) == (3, 1)
    assert figures["busy_s_per_token"] is None


def test_saturated_rate_counts_the_burst_alone() -> None:
    """Tokens of the saturated requests over first arrival to last token."""
    figures = arm_figures([run("off", 0.05, 0.02)])
    assert figures["saturated_tokens_per_s"] == pytest.approx(5 / 3.0)
    given = Schedule((), (Phase("given", 0.0),))
    assert arm_figures([ArmRun("off", 1, given, (), ())])["saturated_tokens_per_s"] is None


def test_mean_k_counts_request_steps() -> None:
    """K is weighted by the requests verified under it."""
    steps = [step(0.0, 1.0, 3, k=8).report, step(1.0, 1.0, 1).report]
    assert mean_k(steps) == {"chat": 6.0}
    assert busy(steps).tokens == 4


def test_ratio_is_the_speed_against_the_better_other_arm() -> None:
    """Half the time per token of the better arm is a ratio of 2, whatever the worse arm does."""
    found = steered_vs_best(runs(*[(0.08, 0.04, 0.02)] * 5))
    assert found["best"] == "fixed"
    assert found["ratio"] == pytest.approx(2.0)
    assert found["low"] == pytest.approx(2.0)
    assert (found["unit"], found["units"]) == ("rounds", 5)
    assert found["other_arms"]["off"] == pytest.approx(4.0)


def test_interval_covers_the_spread_between_rounds() -> None:
    """Rounds that differ widen the interval; a drift that hits both arms alike does not."""
    noisy = steered_vs_best(runs((9, 0.02, 0.02), (9, 0.03, 0.02), (9, 0.02, 0.02), (9, 0.03, 0.02)))
    assert noisy["low"] < 1.0 < noisy["ratio"] < noisy["high"]
    drift = steered_vs_best(runs((9, 0.02, 0.02), (9, 0.04, 0.04), (9, 0.08, 0.08), (9, 0.16, 0.16)))
    assert (drift["low"], drift["high"]) == (pytest.approx(1.0), pytest.approx(1.0))


def test_interval_has_the_promised_coverage() -> None:
    """With five rounds of 5 % noise the 95 % interval holds the true ratio in about 95 % of trials."""
    rng = random.Random(5)
    trials, held = 400, 0
    for _ in range(trials):
        rounds = [(9.0, 0.02 * rng.gauss(1, 0.05), 0.02 * rng.gauss(1, 0.05)) for _ in range(5)]
        found = steered_vs_best(runs(*rounds))
        held += found["low"] <= 1.0 <= found["high"]
    assert 0.91 <= held / trials <= 0.99


def test_one_round_has_no_interval() -> None:
    """The phases of a round share what the machine did to it: they say nothing about its spread."""
    found = steered_vs_best(runs((0.08, 0.04, 0.02)))
    assert (found["unit"], found["units"], found["low"]) == ("rounds", 1, None)
    assert "an interval needs at least two" in found["reason"]


def test_interval_is_null_with_a_reason_where_it_cannot_be_computed() -> None:
    """One unit has no spread: no number is made up."""
    lone = Schedule(SCHEDULE.requests, (Phase("given", 0.0),))
    found = steered_vs_best(
        {a: [ArmRun(a, 1, lone, (outcome(0),), (step(1.0, 1.0, 10),))] for a in ("off", "fixed", "steered")}
    )
    assert (found["low"], found["high"]) == (None, None)
    assert "an interval needs at least two" in found["reason"]


def test_arm_without_tokens_is_an_error_not_a_number() -> None:
    """Nothing committed cannot be compared."""
    empty = ArmRun("steered", 1, SCHEDULE, (), ())
    with pytest.raises(ValueError, match="arm steered: no token was committed"):
        steered_vs_best({"off": [run("off", 1, 1)], "fixed": [run("fixed", 1, 1)], "steered": [empty]})


def test_contrast_names_where_each_arm_loses() -> None:
    """Off and fixed are each held against the other in every phase, and the worst place is named."""
    found = contrast({"off": [run("off", 0.10, 0.02)], "fixed": [run("fixed", 0.05, 0.03)]})
    assert found["off_loses"] == {"where": "quiet", "to": "fixed", "loses_fraction": pytest.approx(0.5)}
    assert found["fixed_loses"]["where"] == "saturated"
    assert found["fixed_loses"]["loses_fraction"] == pytest.approx(1 / 3)


def test_different_texts_are_found() -> None:
    """A request whose text depends on the arm is counted and named."""
    same = equal_outputs({"off": [run("off", 1, 1)], "fixed": [run("fixed", 1, 1)]})
    assert (same["equal"], same["different"]) == (2, 0)
    other = equal_outputs({"off": [run("off", 1, 1)], "fixed": [run("fixed", 1, 1, text="other")]})
    assert (other["equal"], other["different_requests"]) == (0, [0, 1])


def test_timeline_bins_by_the_end_of_a_step() -> None:
    """Each stretch holds the mean K of its steps, and None where there was none."""
    steps = (step(0.2, 0.1, 1, k=4), step(0.8, 0.1, 1, k=8), step(2.5, 0.1, 2))
    line = timeline(ArmRun("steered", 1, SCHEDULE, (), steps))
    assert line.k_by_segment == {"chat": [6.0, None, 0.0]}
    assert line.live_requests == [1.0, None, 2.0]


def test_prediction_errors_leave_out_the_first_steps() -> None:
    """The figures are about steps after the controller has seen some."""
    wrong, right = Predicted(2.0, 1.0), Predicted(1.1, 1.0)
    figures = prediction_figures([wrong] * 50 + [right] * 10)
    assert figures["mean_relative_error_fraction"] == pytest.approx(0.1)
    assert "reason" in prediction_figures([right])


def test_backlog_is_billed_to_the_phase_that_caused_it() -> None:
    """A step after the start of the next phase still belongs to the burst while that is not drained."""
    schedule = Schedule(SCHEDULE.requests, (*SCHEDULE.phases, Phase("quiet_again", 20.0)))
    outcomes = (outcome(0), outcome(1, last_s=15.0), outcome(1, phase="quiet_again", last_s=18.0))
    steps = (step(11.0, 1.0, 1), step(24.0, 1.0, 2), step(26.0, 1.0, 4))
    found = ArmRun("off", 1, schedule, outcomes, steps)
    assert [r.committed_tokens for r in found.reports("saturated")] == [1, 2]
    assert [r.committed_tokens for r in found.reports("quiet_again")] == [4]
