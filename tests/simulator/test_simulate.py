"""From a recording to a prediction, and what the verb says about it."""

import gc
import json
from types import ModuleType

import pytest

from steersman_controller.belief.prior import CostPrior, Prior
from steersman_controller.cli import run as cli
from steersman_controller.trace.recording import read_recording
from steersman_simulator.report.run_report import FILES
from steersman_simulator.simulate import Settings, arm_summary, fit, rerun, simulate, window_summary
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.windows import engine_trace

VLLM_NAMES = {
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "total_token_throughput", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms",
    "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms",
    "median_itl_ms", "std_itl_ms", "p99_itl_ms", "mean_e2el_ms", "p99_e2el_ms",
}  # fmt: skip


@pytest.fixture
def trace(recorded, write_recording, tmp_path):
    """The recording of an experiment in a hand-made world."""
    return write_recording(tmp_path / "journal.bin", recorded.events)


def test_the_steered_arm_is_predicted_from_the_others(recorded):
    """Fitted on off and fixed alone, the steered arm comes out within 6 %."""
    truth = engine_trace(recorded.events)
    fitted = fit(truth, ["off", "fixed"])
    assert [window.policy for window in fitted.windows] == ["off", "fixed"]
    predicted = [arm_summary(rerun(truth, fitted, _config(), seed=seed), 2) for seed in range(4)]
    measured = window_summary(truth.windows[2])
    for name in ("busy_s_per_token", "mean_tpot_ms", "mean_e2el_ms"):
        mean = sum(result[name] for result in predicted) / len(predicted)
        assert mean == pytest.approx(measured[name], rel=0.06), name


def test_a_world_with_another_truth_is_predicted_otherwise(experiment):
    """The prediction comes from the recording: half the speed is seen as half the speed."""
    slow = ConstantSteps(step_s=0.06, per_token_s=0.004, per_draft_token_s=2e-4, host_s=0.002)
    results = []
    for parts in ({}, {"truth": slow}):
        trace = engine_trace(experiment(15, **parts).events)
        results.append(arm_summary(rerun(trace, fit(trace, ["off", "fixed"]), _config()), 0))
    seconds = [result["busy_s"] / result["num_steps"] for result in results]
    assert seconds[1] > 1.8 * seconds[0]


def test_the_controller_cannot_reach_the_truth(make_world, arm, mixed):
    """Nothing that the fleet, its controllers or the executor refer to leads to a truth."""
    world = make_world()
    world.run([arm(mixed(10), "goodput")])
    truths = {*map(id, world._acceptance), id(world.engines[0].seconds), id(world.engines[0].batch)}
    reached, todo = set(), [world.links[0]]
    while todo:
        thing = todo.pop()
        if id(thing) in reached or isinstance(thing, type | ModuleType):
            continue
        reached.add(id(thing))
        # The globals of a module are not part of an object.
        todo += [r for r in gc.get_referents(thing) if not (isinstance(r, dict) and "__builtins__" in r)]
    assert id(world.links[0].sidecar.fleet) in reached
    assert len(reached) > 1000
    assert not truths & reached


def test_result_says_what_was_fitted_and_has_the_usual_names(trace):
    """The JSON names the windows of the fit, their errors, and every metric of a serving benchmark."""
    result, outcome = simulate(
        Settings(trace, "fixed", {"k": "4"}, fit_policies=("off", "fixed"), arrivals_policies=("off",))
    )
    assert result.keys() >= VLLM_NAMES
    assert [w["policy"] for w in result["fitted"]["windows"]] == ["off", "fixed(k=4)"]
    assert set(result["fitted"]["step_error_fraction"]) == {"fitted", "held_out", "other_windows"}
    assert result["fitted"]["step_error_fraction"]["other_windows"] < 0.05
    assert result["arrived"] == result["completed"] + len(result["running"]) == len(outcome.served) == 40
    assert set(result["segments"]) == {"chat", "edit"}


def test_json_is_one_object_on_standard_output(trace, capsys):
    """`--json` prints one JSON object and nothing else; tables come without it."""
    options = ["simulate", "--trace", str(trace), "--policy", "off", "--arrivals-policies", "off"]
    assert cli([*options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert cli(options) == 0
    shown = capsys.readouterr().out
    assert result["completed"] == 40
    assert "Time to first token" in shown
    assert "held out" in shown


def test_out_leaves_a_recording_that_simulates_again(trace, tmp_path, capsys):
    """The folder holds the result, all that belongs to it, and a recording like any other."""
    out = tmp_path / "out"
    options = ["--policy", "fixed", "--param", "k=3", "--arrivals-policies", "off", "--json"]
    assert cli(["simulate", "--trace", str(trace), *options, "--out", str(out)]) == 0
    assert json.loads((out / "result.json").read_text()) == json.loads(capsys.readouterr().out)
    assert {path.name for path in out.iterdir()} == set(FILES)
    again = engine_trace(read_recording(out).events)
    assert [window.label for window in again.windows] == ["fixed(k=3)"]
    assert len(again.requests) == 40


def test_more_load_waits_longer_and_fewer_slots_too(trace):
    """`--load` and `--max-batch` act."""
    plain, dense, narrow = (
        simulate(Settings(trace, "off", arrivals_policies=("off",), load=load, max_batch=slots))[0]
        for load, slots in ((1.0, 0), (3.0, 0), (1.0, 2))
    )
    assert dense["mean_ttft_ms"] > plain["mean_ttft_ms"]
    assert narrow["mean_queue_ms"] > plain["mean_queue_ms"]
    assert narrow["max_batch"] == 2


def test_a_controller_that_begins_with_a_prior_begins_with_longer_drafts(trace, hello, tmp_path):
    """It is in the result and in the recording, from where another simulation takes it; and it acts."""
    edits = {"edit": (0.9, 0.95, 0.95, 0.95), "chat": (0.3, 0.2)}
    prior = Prior(
        "a bundle",
        hello.fingerprint,
        cost=CostPrior((1, 200), (0.032, 0.43), 2e-6, 0.0, (0.0, 2e-4, 0.0, 1e-4), (0.001, 0.0)),
        acceptance=edits,
        coverage={"edit": 0.9, "chat": 0.5},
    )
    drafted = []
    for priors in ((prior,), ()):
        settings = Settings(trace, "goodput", arrivals_policies=("off",), priors=priors)
        result, outcome = simulate(settings, tmp_path / "out" if priors else None)
        assert result["prior"] == ("a bundle" if priors else "")
        drafted.append(next(k for step in outcome.steps if (k := step.report.commanded.get("edit"))))
    assert drafted[0] > drafted[1]
    again = simulate(Settings(tmp_path / "out", "goodput"))[0]
    assert again["prior"] == "a bundle"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "godput"], "did you mean 'goodput'"),
        (["--policy", "fixed", "--param", "q=4"], "no parameter 'q'"),
        (["--policy", "fixed", "--param", "k"], "not of the form name=value"),
        (["--policy", "off", "--fit-policies", "offf"], "did you mean 'off'"),
        (["--policy", "off", "--load", "0"], "load: 0.0, must be above 0"),
        (["--policy", "off", "--engine", "none"], "no step of engine 'none'; held: "),
        (["--policy", "fixed", "--fit-policies", "off"], "only K = 0 can be simulated"),
    ],
)
def test_wrong_input_gives_one_line_and_exit_code_2(trace, capsys, options, said):
    """What was wrong, and what would be right."""
    assert cli(["simulate", "--trace", str(trace), *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_torn_recording_is_used_up_to_the_tear(trace, capsys):
    """A truncated trace still simulates, and the loss is said on standard error."""
    trace.write_bytes(trace.read_bytes()[:-7])
    options = ["--policy", "off", "--arrivals-policies", "off", "--json"]
    assert cli(["simulate", "--trace", str(trace), *options]) == 0
    assert "torn" in json.loads(capsys.readouterr().out)["warning"]


def _config():
    from steersman_controller.events import ControllerConfig

    return ControllerConfig()
