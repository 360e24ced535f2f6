"""Other policies on recorded telemetry."""

import json
import math
from functools import cache
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_truths import STEPS
from msgspec.structs import replace
from replay_world import goodput, replayed, served

from steersman_controller import cli
from steersman_controller.events import ControllerConfig, PolicySet
from steersman_controller.trace.parquet import convert
from steersman_policies.executor import Executor, Load
from steersman_policies.messages import Lease, StepReport
from steersman_policies.plan import Explore, Plan
from steersman_simulator.replay import estimate as estimating
from steersman_simulator.replay.propensity import Propensities, at_least
from steersman_simulator.replay.resample import resampled
from steersman_simulator.replay.survival import Survival, survival
from steersman_simulator.replay.visits import Visits
from steersman_simulator.report.show import encode_result
from steersman_simulator.world.chance import generator

EXPLORING = ("fixed", {"k": 2, "explore": 0.5})
POINT = EntryPoint("replay", "steersman_simulator.replay.verbs:replay", cli.ENTRY_POINTS)


@pytest.fixture(scope="module")
def record(make_world, write_recording, tmp_path_factory):
    """Serves requests under a policy and writes what a sidecar would have recorded."""

    def run(policy, params, **parts):
        outcome = served(make_world, policy, params, **parts)
        return outcome, write_recording(tmp_path_factory.mktemp("replay") / "journal.bin", outcome.events)

    return run


@pytest.fixture(scope="module")
def explored(record):
    """K = 2, and in half of the steps K = 8."""
    return record(*EXPLORING)


@pytest.fixture(scope="module")
def result(explored):
    """Several policies on it."""
    return replayed(explored[1], *(("fixed", {"k": k}) for k in (1, 6)))


def by_policy(result):
    return {policy["policy"]: policy for policy in result["policies"]}


@pytest.fixture(scope="module")
def truth(make_world, explored):
    """Goodput of a real run at K over that of the recorded one."""
    recorded = goodput(explored[0], STEPS)
    return cache(lambda k: goodput(served(make_world, "fixed", {"k": k}), STEPS) / recorded)


# What the policy would have commanded


@pytest.mark.parametrize("policy", [EXPLORING, ("goodput", {"explore": 0.1})])
def test_a_policy_replayed_on_its_own_recording_commands_what_it_commanded(record, policy):
    """The real controller and executor meet the recorded loads: not one K differs, explored ones included."""
    config = ControllerConfig()
    _, path = record(*policy, count=40, together=False, config=config)
    again = replayed(path, policy, ("fixed", {"k": 5}), allow_model=True)["policies"]
    assert again[0]["same_k_share"] == 1.0
    assert again[1]["same_k_share"] < 1.0


def test_operators_changes_are_not_those_of_the_replayed_policy(explored, write_recording, tmp_path):
    """A policy pushed in the middle of a recording does not steer the replayed one."""
    events = list(explored[0].events)
    events.insert(len(events) // 2, PolicySet(events[len(events) // 2].at_s, "", "off", {}))
    path = write_recording(tmp_path / "journal.bin", events)
    again = replayed(path, ("fixed", {"k": 1}))
    assert again["policies"][0]["mean_k"] == 1.0
    assert again["recorded"]["policies"] == ["fixed:explore=0.5,k=2", "off"]


# Truncation


@given(
    tables=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=30),
    recorded=st.integers(0, 8),
    wanted=st.integers(0, 8),
)
def test_truncation_is_what_the_shorter_draft_would_have_brought(tables, recorded, wanted):
    """Whatever drafts were offered and accepted: tokens at a K are exact where the recorded K shows them."""
    kept = [(min(offered, recorded), min(accepted, offered, recorded)) for offered, accepted in tables]
    for which in (0, 1):
        counts = np.array(
            [[sum(row[which] >= j for row in kept) for j in range(recorded + 1)]], dtype=np.uint16
        )
        rows = survival(counts, np.array([recorded]), np.array([0]), np.array([0]), deepest=8)
        found = rows.seen(np.array([wanted]), np.array([recorded]))[0]
        other = [(min(o, wanted), min(a, o, wanted)) for o, a in tables]
        censored = any(row[which] == recorded for row in kept)
        if wanted <= recorded or not censored:
            assert found == sum(row[which] for row in other)
            assert (
                rows.beyond(np.array([wanted]), np.array([recorded]), np.array([0]), np.array([0]))[0] == 0.0
            )
        else:
            assert found <= sum(row[which] for row in other)


def test_a_model_is_asked_only_for_what_was_not_seen(result):
    """K = 1 is exact in every row; K = 6 is not where both tokens of K = 2 were accepted."""
    found = by_policy(result)
    assert found["fixed:k=1"]["exact_share"] == 1.0
    assert found["fixed:k=1"]["basis"] == "exact"
    assert 0.5 < found["fixed:k=6"]["exact_share"] < 1.0
    assert found["fixed:k=6"]["basis"] == "doubly robust"
    assert found["fixed:k=6"]["supported_share"] == 1.0


# Propensities


def exploring_plan(hello, fingerprint, k_set, epsilon):
    table = ((2,),)
    return Plan(
        plan_id=1, policy="p", policy_version="1", fingerprint=fingerprint, mode="steer", batch_edges=(),
        context_edges=(), proposal_length={"unknown": table, "chat": ((4,),)}, fallback=(0,),
        explore=Explore(7, epsilon, k_set),
    )  # fmt: skip


def step_of(decision, step):
    return StepReport(
        step, 0.0, 0.0, 0.01, 0.0, 3, 0, 3, 30, 0, 0, 0, 0.0, 3, decision.plan_id,
        explored=decision.explored, probability=decision.probability, reason=decision.reason,
        commanded=decision.proposal_length,
    )  # fmt: skip


@pytest.mark.parametrize("per_request_k", [True, False])
@pytest.mark.parametrize("k_set", [(8,), (0, 4, 8)])
def test_propensities_are_the_frequencies_of_the_executor(hello, per_request_k, k_set):
    """Over many steps of the real executor every K is reached as often as its probability says."""
    hello = replace(hello, per_request_k=per_request_k)
    executor = Executor(hello, "f")
    executor.adopt(exploring_plan(hello, "f", k_set, 0.3))
    executor.renew(Lease(1, 1e9), 0.0)
    propensities = Propensities(per_request_k=per_request_k)
    steps = 4000
    reached, likely = np.zeros((2, 10)), np.zeros((2, 10))
    for number in range(steps):
        decision = executor.decide(Load(number, {"edit": 2, "chat": 1}, 10.0, 0, 0), number * 0.01)
        chances = propensities.of(step_of(decision, number), k_set)
        for row, segment in enumerate(("edit", "chat")):
            for k in range(10):
                reached[row, k] += decision.proposal_length[segment] >= k
                likely[row, k] += at_least(chances[segment], k)
    assert np.abs(reached - likely).max() / steps < 4.0 * math.sqrt(0.25 / steps)
    assert likely[:, 8].max() > 0.0


# The estimate


def test_what_is_estimated_is_what_a_real_run_brings(truth, result):
    """Shorter and longer K than the recorded ones, within 2 % and inside the interval."""
    for k in (1, 6):
        true = truth(k)
        found = by_policy(result)[f"fixed:k={k}"]["against_recorded"]
        assert found["low"] <= true <= found["high"]
        assert found["ratio"] == pytest.approx(true, rel=0.02)


def test_explored_steps_put_a_wrong_model_right(truth, explored, monkeypatch):
    """Doubly robust: with a model that takes every censored draft for a rejected one, the propensities are
    enough; without what they say the estimate is off by more than 3 %."""
    monkeypatch.setattr(Survival, "beyond", lambda *args: np.zeros(len(args[1])))
    longer = ("fixed", {"k": 6})
    found = replayed(explored[1], longer)["policies"][0]["against_recorded"]
    assert found["ratio"] == pytest.approx(truth(6), rel=0.01)
    monkeypatch.setattr(estimating, "rows_of", uncorrected(estimating.rows_of))
    wrong = replayed(explored[1], longer, allow_model=True)["policies"][0]["against_recorded"]
    assert abs(wrong["ratio"] / truth(6) - 1.0) > 0.03
    assert not wrong["low"] <= truth(6) <= wrong["high"]


def uncorrected(rows_of):
    """Without what the explored steps say of the model."""

    def made(*args, **settings):
        rows = rows_of(*args, **settings)
        return replace(rows, weight=np.zeros_like(rows.weight))

    return made


def test_counting_the_recorded_steps_once_each_is_noticed(truth, explored, monkeypatch):
    """Planted: the segments keep their shares of the steps, whatever text that makes of them."""

    def once(totals, found):
        factors = factors_of(totals, found)
        recorded = totals[..., 1, :].sum(axis=-1, keepdims=True)
        brought = (totals[..., 1, :] / factors.weight).sum(axis=-1, keepdims=True)
        return replace(factors, weight=np.broadcast_to(recorded / brought, factors.weight.shape).copy())

    factors_of = estimating._factors
    monkeypatch.setattr(estimating, "_factors", once)
    found = replayed(explored[1], ("fixed", {"k": 1}))["policies"][0]["against_recorded"]
    assert found["ratio"] < 0.98 * truth(1)
    assert found["high"] < truth(1)


def test_stretches_are_predicted_from_the_others(result, explored, monkeypatch):
    """Estimated against measured goodput of the recorded K is inside its interval nearly everywhere."""
    inside = [stretch["inside"] for stretch in result["calibration"]]
    assert len(inside) == 5
    assert sum(inside) >= 4
    monkeypatch.setattr(Survival, "beyond", lambda *args: np.zeros(len(args[1])))
    wrong = replayed(explored[1], ("off", {}))["calibration"]
    assert not any(stretch["inside"] for stretch in wrong)


def test_resampling_keeps_what_neighbours_share():
    """The spread of a mean of autocorrelated numbers, which independent resampling puts far too low."""
    chance = generator(1, 2)
    noise = np.zeros(4000)
    for at in range(1, len(noise)):
        noise[at] = 0.8 * noise[at - 1] + chance.standard_normal()
    true_sd = math.sqrt(len(noise)) / (1.0 - 0.8)
    blocks = resampled(noise[:, None], 60.0, 400, generator(3)).std()
    single = resampled(noise[:, None], 1.0, 400, generator(3)).std()
    assert 0.7 * true_sd < blocks < 1.2 * true_sd
    assert single < 0.5 * true_sd


# Refusal


@pytest.fixture(scope="module")
def plain(record):
    """K = 2 without any exploration."""
    return record("fixed", {"k": 2})[1]


def test_a_longer_k_than_any_that_was_tried_is_refused(plain):
    """No propensities: K = 4 is refused, with the number of probes; a shorter K needs none."""
    result = replayed(plain, ("fixed", {"k": 4}), ("fixed", {"k": 1}))
    refused, shorter = result["policies"]
    assert "no explored step reached it" in refused["refused"]
    assert "needs 200 probes" in refused["refused"]
    assert "against_recorded" not in refused
    assert refused["effective_sample_size"] == 0.0
    assert refused["supported_share"] == 0.0
    assert result["refused"] == ["fixed:k=4"]
    assert shorter["refused"] is None


def test_the_models_word_is_called_that(plain):
    """With `allow_model` there is an estimate, and it says what it stands on."""
    found = replayed(plain, ("fixed", {"k": 4}), allow_model=True)["policies"][0]
    assert found["refused"] is None
    assert found["basis"] == "model"
    assert found["model_share"] > 0.1


def test_there_is_no_word_of_a_model_without_a_draft(record):
    """Steps that never drafted tell neither the cost nor the yield of drafts, `allow_model` or not."""
    path = record("off", {})[1]
    longer, off = replayed(path, ("fixed", {"k": 2}), ("off", {}), allow_model=True)["policies"][:2]
    assert "no scored step drafted" in longer["refused"]
    assert "against_recorded" not in longer
    assert off["refused"] is None


def test_too_few_explored_steps_are_refused(record):
    """Some probes, but fewer than 200: how many more are needed is said."""
    _, path = record("fixed", {"k": 2, "explore": 0.1})
    found = replayed(path, ("fixed", {"k": 4}))["policies"][0]
    assert 0 < found["effective_sample_size"] < 200
    missing = math.ceil(200 - found["effective_sample_size"])
    assert f"needs {missing} more probes" in found["refused"]


def test_too_few_steps_are_refused(record):
    """Even what is exact needs 200 steps."""
    _, path = record("fixed", {"k": 2}, count=60)
    found = replayed(path, ("off", {}))["policies"][0]
    assert "at least 200" in found["refused"]


# The verb


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line; exit code, output, errors."""
    monkeypatch.setattr(cli, "entry_points", lambda group: [POINT])

    def call(*args):
        code = cli.run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_verb_writes_json_page_and_picture(explored, run, tmp_path):
    """One JSON object on standard output, the same in the folder, and a page that loads nothing."""
    options = ["--trace", explored[1], "--policy", "fixed:k=6", "--policy", "off", "--draws", "200"]
    code, out, _ = run("replay", *options, "--json", "--out", tmp_path / "out")
    assert code == 0
    found = json.loads(out)
    assert [policy["policy"] for policy in found["policies"]] == ["fixed:k=6", "off"]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == found
    assert (tmp_path / "out" / "ratio.png").stat().st_size > 1000
    page = (tmp_path / "out" / "report.html").read_text()
    assert "fixed:k=6" in page
    assert "src=" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    code, _, err = run("replay", *options, "--out", tmp_path / "out")
    assert (code, "exists already" in err) == (2, True)


def test_a_refusal_is_exit_code_2(plain, run):
    """The table says why, and scripts see it."""
    code, out, _ = run("replay", "--trace", plain, "--policy", "fixed:k=4", "--draws", "200")
    assert code == 2
    assert "fixed:k=4: refused. segment" in out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--policy", "fixd:k=2"], "did you mean 'fixed'?"),
        (["--policy", "fixed:q=2"], "no parameter 'q'"),
        (["--policy", "fixed:k"], "not of the form name=value"),
        (["--policy", "off", "--engine", "simulate"], "did you mean 'simulated'?"),
        (["--policy", "off", "--under", "fixd"], "did you mean 'fixed'?"),
    ],
)
def test_wrong_input_is_one_line(plain, run, options, line):
    """What, where, and what was meant."""
    code, _, err = run("replay", "--trace", plain, *options)
    assert code == 2
    assert line in err
    assert err.count("\n") == 1


def test_a_parquet_recording_gives_the_same_bytes(explored, tmp_path):
    """Journal and Parquet, read again: equal results to the byte, but for the name."""
    policies = [("goodput", {})]
    once, again = (
        encode_result(replayed(path, *policies) | {"trace": ""})
        for path in (explored[1], convert(explored[1], tmp_path / "trace.parquet"))
    )
    assert once == again


def test_the_same_k_visits_the_same_places(result):
    """Nothing is corrected where nothing changes; a longer K lands in harder places."""
    segments = by_policy(result)["fixed:k=6"]["segments"]
    assert Visits().tokens == 1.0
    factors = {segment["segment"]: segment["visit_factor"] for segment in segments}
    assert factors["edit"] < 1.0
