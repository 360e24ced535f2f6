"""V6, V8 and V11: against measurements, and with the faults that they are there for."""

import pytest
from msgspec.structs import replace
from validate_faults import outside

from steersman_simulator.truths.recorded import StepTruth
from steersman_simulator.validate import closed_batch, crossover, recording
from steersman_simulator.validate.check import Asked, Skip
from steersman_simulator.validate.public_traces import H100Steps
from steersman_simulator.windows import engine_trace
from steersman_simulator.world import kernels

SMALL = {"V6": 0.2, "V8": 0.3}


@pytest.fixture(scope="module")
def journal(experiment, write_recording, tmp_path_factory):
    """A recording of off, K = 4 and steered, by an engine that is itself simulated."""
    return write_recording(tmp_path_factory.mktemp("v11") / "journal.bin", experiment(60, seed=3).events)


def test_measured_speedups_hold():
    """V6 passes in small."""
    assert outside(closed_batch.V6, scale=SMALL["V6"]) == []


def test_drafts_for_nothing_fail_v6(monkeypatch):
    """A step cost that does not see draft tokens is seen at batch 128."""
    right = H100Steps.verify_s
    monkeypatch.setattr(H100Steps, "verify_s", lambda self, work: right(self, replace(work, draft_tokens=0)))
    assert [figure.what for figure in outside(closed_batch.V6, scale=SMALL["V6"])] == [
        "GSM8K, K = 3, batch 128"
    ]


def test_a_token_more_fails_v6(monkeypatch):
    """An engine that accepts one token too many is seen."""
    right = kernels.draft

    def draft(rows, count, *rest):
        found = right(rows, count, *rest)
        rows[kernels.ACCEPTABLE, :count] += 1
        return found

    monkeypatch.setattr(kernels, "draft", draft)
    assert outside(closed_batch.V6, scale=SMALL["V6"])


def test_the_crossover_holds():
    """V8 passes in small."""
    assert outside(crossover.CHECK, scale=SMALL["V8"]) == []


@pytest.mark.parametrize(
    "fault",
    [
        "no knee",
        pytest.param("drafts for nothing", marks=pytest.mark.slow),
        pytest.param("a draft too short", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_cost_fails_v8(monkeypatch, fault):
    """Forgetting the knee, or the drafter, or the last draft token is seen."""
    if fault == "no knee":
        monkeypatch.setattr(
            crossover.HingedSteps, "verify_s", lambda self, work: 1.0 + self.per_token_s * work.target_tokens
        )
    elif fault == "drafts for nothing":
        monkeypatch.setattr(crossover.HingedSteps, "draft_s", lambda self, work: 0.0)
    else:
        right = kernels.draft
        monkeypatch.setattr(
            kernels, "draft", lambda rows, count, k_of, *rest: right(rows, count, k_of // 2, *rest)
        )
    assert outside(crossover.CHECK, scale=SMALL["V8"])


def test_a_recording_is_simulated_again(journal):
    """V11 fits every second window and predicts the others, here of an engine that is simulated itself."""
    found = recording.CHECK.figures(Asked(recording=journal))
    assert len(found) == 3
    assert all(figure.holds for figure in found)


def test_what_is_fitted_is_not_scored(recorded):
    """Of a policy that served twice one window is fitted and one scored; else every second one is scored."""
    off, fixed, steered = engine_trace(recorded.events).windows
    assert recording.split([off, fixed, off, fixed]) == ([0, 1], [2, 3])
    assert recording.split([off, fixed, steered]) == ([0, 2], [1])


@pytest.mark.slow
def test_slower_steps_fail_v11(monkeypatch, journal):
    """A truth that is 15 % too slow is seen in ITL and E2E."""
    right = StepTruth.sampler

    class Slow:
        def __init__(self, seconds):
            self._seconds = seconds
            self.draft_s, self.other_s = seconds.draft_s, seconds.other_s

        def verify_s(self, work):
            return 1.15 * self._seconds.verify_s(work)

    monkeypatch.setattr(StepTruth, "sampler", lambda self, chance: Slow(right(self, chance)))
    assert outside(recording.CHECK, recording=journal)


def test_a_recording_under_one_policy_is_skipped(
    experiment, write_recording, tmp_path, make_world, arm, mixed
):
    """What was fitted is never scored on itself: one window alone is too little."""
    events = make_world().run([arm(mixed(30, 1.5))]).events
    with pytest.raises(Skip, match="window"):
        recording.CHECK.figures(Asked(recording=write_recording(tmp_path / "journal.bin", events)))


def test_without_a_recording_v11_is_skipped():
    """The reason names the option."""
    with pytest.raises(Skip, match="--recording"):
        recording.CHECK.figures(Asked())
