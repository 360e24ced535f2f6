"""A recording against its own simulation, on made-up recordings whose truth is known."""

import pytest
from msgspec.structs import replace

from steersman_controller.events import ControllerConfig
from steersman_policies.messages import StepReport
from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.fidelity import recorded as fidelity
from steersman_simulator.truths.recorded import StepTruth
from steersman_simulator.truths.scaled import ScaledSeconds
from steersman_simulator.windows import EngineTrace, engine_trace


@pytest.fixture(scope="module")
def trace(experiment) -> EngineTrace:
    """Off, fixed, steered: 40 requests each, which differ by their lengths alone."""
    return engine_trace(experiment(40, seed=8, acceptance=ConstantAcceptance(0.6)).events)


def slower(trace: EngineTrace, number: int, factor: float) -> EngineTrace:
    """As if the machine had been slower while it served one window, its arrivals included."""
    window = trace.windows[number]

    def slow(step: StepReport) -> StepReport:
        return replace(step, verify_s=factor * step.verify_s, draft_s=factor * step.draft_s)

    changed = replace(window, steps=tuple(slow(step) for step in window.steps))
    return replace(trace, windows=(*trace.windows[:number], changed, *trace.windows[number + 1 :]))


def predicted(trace: EngineTrace, fitted=(0, 1), scored=(2,)) -> fidelity.Fidelity:
    return fidelity.predict(trace, ControllerConfig(), fitted, scored, seeds=1)


def test_a_world_predicts_what_it_has_not_seen(trace):
    """Fitted on off and fixed, the steered window comes out within what is allowed."""
    found = predicted(trace)
    assert found.passed, found.scored
    (one,) = found.scored
    assert (one.policy, one.windows, one.requests) == ("goodput", (2,), 40)
    assert {score.figure for score in one.scores} == set(fidelity.ALLOWED)


def test_steps_a_fifth_too_long_are_seen(trace, monkeypatch):
    """A simulator whose every step takes 1.2 times the seconds fails by goodput and by the medians."""
    right = StepTruth.sampler
    slow = lambda truth, chance: ScaledSeconds(right(truth, chance), 1.2)  # noqa: E731
    monkeypatch.setattr(StepTruth, "sampler", slow)
    found = predicted(trace)
    assert not found.passed
    failed = {score.figure for score in found.scored[0].scores if not score.passed}
    assert failed >= {"goodput_tokens_per_busy_s", "median_tpot_ms", "median_e2el_ms"}


def test_drafts_that_are_never_accepted_are_seen(trace, monkeypatch):
    """The acceptance truth counts: without it the goodput is too low."""
    from steersman_simulator.acceptance import segments

    right = segments.segment_table
    monkeypatch.setattr(
        segments,
        "segment_table",
        lambda *arguments: (table := right(*arguments))._replace(accepted=table.accepted * 0),
    )
    score = next(s for s in predicted(trace).scored[0].scores if s.figure == "goodput_tokens_per_busy_s")
    assert score.error_fraction < -0.04


def test_a_machine_that_was_slower_in_the_scored_window_is_told(trace):
    """Nothing of the window is used, so its goodput is missed; its pace says why."""
    found = predicted(slower(trace, 2, 1.2))
    assert not found.passed
    assert found.paces[2].pace == pytest.approx(1.2, rel=0.03)
    assert found.paces[1].pace == pytest.approx(1.0, rel=0.03)


def test_windows_are_split_by_policy_or_number(trace):
    """By default the policies that hold K still are fitted; what is missing is named."""
    assert fidelity.split(trace) == ((0, 1), (2,))
    assert fidelity.split(trace, ["goodput"]) == ((2,), (0, 1))
    assert fidelity.split(trace, ["fixed"], [2]) == ((1, 2), (0,))
    with pytest.raises(ValueError, match="no window under 'godput', did you mean 'goodput'"):
        fidelity.split(trace, ["godput"])
    with pytest.raises(ValueError, match="no window 7; there are 0 to 2"):
        fidelity.split(trace, fit_numbers=[7])
    with pytest.raises(ValueError, match="no window is left to score"):
        fidelity.split(trace, fit_numbers=[0, 1, 2])
