"""Scenarios: one strict file, the same bytes every time, and files that others can open."""

import json
import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from steersman_controller.cli import run as cli
from steersman_controller.trace.recording import read_recording
from steersman_simulator.acceptance.spec import ConstantSpec
from steersman_simulator.run_scenario import run_scenario
from steersman_simulator.scenario import read_scenario

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"
SCENARIO = """
workload:
  kind: poisson
  rate_per_s: 6
  requests: 40
  prompt_tokens: {kind: lognormal, mean: 300, max: 2000}
  output_tokens: {kind: lognormal, mean: 60, max: 200}
  segments: {chat: 1, edit: 1, code: 1, math: 1, rag: 1}
engine: {max_batch: 8, token_budget: 256, kv_blocks: 150}
truth: {kind: constant, step_s: 0.02, per_token_s: 0.0001, per_draft_token_s: 1e-3}
acceptance: {kind: by_position, acceptance: {chat: [0.5, 0.4], edit: [0.9, 0.9], unknown: [0.5]}}
speculation: {k_max: 4}
policy: {name: goodput}
slo: {ttft_s: 0.5, tpot_s: 0.03}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="module")
def ran(scenario):
    """One run with all its files, that many tests read."""
    out = scenario.parent / "out"
    run_scenario(read_scenario(scenario), scenario.parent, out=out)
    return out


def lines(folder):
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_another_process_with_another_hash_seed_writes_the_same_bytes(scenario, ran, tmp_path):
    """Result, requests, trace and page are byte-identical; another seed gives other ones."""
    out = tmp_path / "again"
    code = "from steersman_controller.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", str(scenario), "--out", str(out), "--no-journal"]
    environment = os.environ | {"PYTHONHASHSEED": "4242"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    for name in ("result.json", "requests.jsonl", "trace.json", "report.html"):
        assert (out / name).read_bytes() == (ran / name).read_bytes(), name
    other = run_scenario(read_scenario(scenario, {"seed": 1}), scenario.parent)
    assert other["busy_s"] != json.loads((ran / "result.json").read_bytes())["busy_s"]


def test_every_request_that_came_is_accounted_for(scenario, tmp_path):
    """Stopped in the middle, with one prompt that fits nowhere: finished, rejected or running, each once."""
    changed = {"horizon_s": 4.0, "engine.kv_blocks": 40}
    out = tmp_path / "out"
    result = run_scenario(read_scenario(scenario, changed), scenario.parent, out=out)
    found = lines(out)
    counts = {
        end: sum(line["outcome"] == end for line in found) for end in ("finished", "rejected", "running")
    }
    assert counts == {
        "finished": result["completed"],
        "rejected": result["failed"],
        "running": result["unfinished"],
    }
    assert all(counts.values())
    assert sum(counts.values()) == result["arrived"] == len(found) < 40
    assert [line["arrival_s"] for line in found] == sorted(line["arrival_s"] for line in found)
    assert all(line["finish_reason"] for line in found if line["outcome"] == "rejected")
    assert sum(result["rejected_by_reason"].values()) == counts["rejected"]


def test_result_and_lines_agree(ran):
    """What the result says is the sum of what the lines say, in the terms of `vllm bench serve`."""
    result, found = json.loads((ran / "result.json").read_bytes()), lines(ran)
    assert result["total_output_tokens"] == sum(line["output_tokens"] for line in found)
    assert result["drafted_tokens"] == sum(line["drafted_tokens"] for line in found)
    assert result["preemptions"] == sum(line["preemptions"] for line in found)
    mean_ms = sum(line["ttft_s"] for line in found) / len(found) * 1e3
    assert result["mean_ttft_ms"] == pytest.approx(mean_ms, rel=1e-6)
    good = sum(line["ttft_s"] <= 0.5 and line["tpot_s"] <= 0.03 for line in found)
    assert 0 < good < len(found)
    assert result["slo_attainment"] == pytest.approx(good / len(found), rel=1e-6)
    assert result["request_goodput"] == pytest.approx(good / result["duration"], rel=1e-6)
    # There, acceptance by position is over all drafts, and the length counts the bonus token.
    by_position = result["spec_decode_per_position_acceptance_rates"]
    assert result["spec_decode_acceptance_length"] == pytest.approx(1.0 + sum(by_position), rel=1e-6)


def test_latencies_between_tokens_need_no_deliveries(scenario, ran):
    """Without them they come from a histogram, right to half a percent, gaps of preempted requests too."""
    exact = json.loads((ran / "result.json").read_bytes())
    rough = run_scenario(read_scenario(scenario), scenario.parent, deliveries=False)
    assert exact["preemptions"] > 0
    names = [name for name in exact if "_itl_" in name]
    assert len(names) == 14
    for name in names:
        assert rough[name] == pytest.approx(exact[name], rel=0.0051), name
        assert rough[name] != exact[name]


def test_a_run_can_be_served_again(scenario, ran):
    """Its requests are a workload: the same requests at the same moments, so the same run."""
    path = scenario.parent / "again.yaml"
    start, end = SCENARIO.index("workload"), SCENARIO.index("engine")
    again = "workload: {kind: table, path: out/requests.jsonl}\n"
    path.write_text(SCENARIO[:start] + again + SCENARIO[end:])
    result = run_scenario(read_scenario(path), scenario.parent)
    first = json.loads((ran / "result.json").read_bytes())
    for name in ("completed", "busy_s", "mean_e2el_ms", "drafted_tokens"):
        assert result[name] == pytest.approx(first[name], rel=1e-8), name


def test_the_trace_is_in_the_trace_event_format(ran):
    """Every event has what its phase needs; slices of a step do not overlap; requests begin and end."""
    tree = json.loads((ran / "trace.json").read_bytes())
    assert tree["otherData"] == {"events_left_out": "0"}
    needed = {"M": "name pid args", "X": "name pid tid ts dur", "C": "name pid ts args", "b": "id cat ts pid",
              "e": "id cat ts pid"}  # fmt: skip
    events = tree["traceEvents"]
    for event in events:
        assert set(needed[event["ph"]].split()) <= set(event)
        assert event.get("dur", 0.0) >= 0.0
    steps = [event for event in events if event["name"] == "step"]
    for earlier, later in pairwise(steps):
        assert earlier["ts"] + earlier["dur"] <= later["ts"] + 0.01
    opened = {}
    for event in events:
        if event["ph"] in "be":
            change = 1 if event["ph"] == "b" else -1
            opened.setdefault((event["id"], event["name"]), []).append((event["ts"], change))
    assert all(sum(change for _, change in held) == 0 for held in opened.values())
    assert all(held[0][0] <= held[1][0] for held in opened.values())
    assert len({key[0] for key in opened}) == 40
    assert {event["name"] for event in events if event["ph"] == "C"} == {
        "requests",
        "kv_used_fraction",
        "K by segment",
    }
    result = json.loads((ran / "result.json").read_bytes())
    assert sum(step["args"]["accepted"] for step in steps) == result["accepted_tokens"]


def test_a_bounded_trace_is_whole_and_says_what_it_left_out(scenario, tmp_path):
    """With room for 50 events the file is valid and the others are counted."""
    run_scenario(read_scenario(scenario), scenario.parent, out=tmp_path / "out", trace_events=50)
    tree = json.loads((tmp_path / "out" / "trace.json").read_bytes())
    assert 40 <= len(tree["traceEvents"]) <= 50
    assert int(tree["otherData"]["events_left_out"]) > 500


def test_the_page_opens_without_a_network(ran):
    """It has its four plots inside, names no other file, and runs no script."""
    page = (ran / "report.html").read_text()
    assert page.count("<svg") == 4
    for word in ("<script", "<link", "src=", "@import", "url(http"):
        assert word not in page
    assert "small" in page


def test_the_journal_is_a_recording(ran):
    """Another simulation can be fitted on it."""
    assert sum(1 for _ in read_recording(ran).requests()) == 40


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCENARIO.replace("rate_per_s", "rate_pers"), "'workload.rate_pers', did you mean 'rate_per_s'"),
        (SCENARIO.replace("kind: poisson", "kind: poison"), "kind: found 'poison', did you mean 'poisson'"),
        (SCENARIO.replace("kind: constant, ", ""), "truth.kind is missing; allowed: constant"),
        (SCENARIO.replace("requests: 40", "requests: -4"), "workload.requests"),
        (SCENARIO.replace("engine:", "engin:"), "unknown key 'engin', did you mean 'engine'"),
        (SCENARIO.replace("policy: {name: goodput}", ""), "policy is missing"),
        (SCENARIO.replace("goodput", "godput"), "did you mean 'goodput'"),
        (SCENARIO.replace("max_batch: 8", "max_batch: 0"), "max_batch"),
        (SCENARIO.replace("requests: 40", ""), "has no end"),
        (SCENARIO.replace("max_batch: 8", "max_batch: 1000000000"), "max_batch: 1000000000, must be from 1"),
        (SCENARIO + "cluster: {engines: 1000000}", "engines: 1000000, must be from 1"),
        (SCENARIO.replace("k_max: 4", "k_max: 4, launch_k: 5"), "launch_k: 5, at most k_max = 4"),
        (SCENARIO.replace("k_max: 4", "k_max: 4, k_floor: 5"), "k_floor: 5, at most k_max = 4"),
        (SCENARIO.replace("k_max: 4", "k_max: 4, reachable_k: [0, 9]"), "reachable_k: [0, 9], must ascend"),
        (SCENARIO.replace("k_max: 4", "k_max: 4, reachable_k: [2, 1]"), "reachable_k: [2, 1], must ascend"),
        (SCENARIO.replace("ttft_s: 0.5", "ttft_s: -0.5"), "slo.ttft_s"),
        (SCENARIO + "controller: {plan_interval_s: 0}", "controller.plan_interval_s: at least 0.01, found 0"),
        ("- 1\n", "must map keys to values"),
        ("a: [", "not YAML"),
    ],
)  # fmt: skip
def test_a_wrong_scenario_is_one_line(tmp_path, capsys, text, said):
    """File, key, what is allowed; exit code 2, and nothing is left in the folder."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert cli(["simulate", str(path), "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


def test_a_run_without_a_token_has_no_cost_per_token(scenario, tmp_path, capsys):
    """Every prompt is refused: not 0 seconds a token, which would beat whoever serves; all is still shown."""
    out = tmp_path / "out"
    assert cli(["simulate", str(scenario), "--set", "engine.kv_blocks=1", "--out", str(out)]) == 0
    assert "40 requests arrived, 0 finished" in capsys.readouterr().out
    result = json.loads((out / "result.json").read_bytes())
    assert (result["failed"], result["busy_s_per_token"]) == (40, None)


def test_a_sick_engine_is_sick_alone(tmp_path):
    """A phase for one engine takes the drafts of its requests, and of no other's; a wrong name is refused."""
    path = tmp_path / "sick.yaml"
    sick = "{at_s: 0, factor: 0, engine: simulated-1}"
    text = SCENARIO.replace("name: goodput", "name: fixed, params: {k: 2}")
    text = text.replace("acceptance: {kind: by", "acceptance: {kind: schedule, drafter: {kind: by", 1)
    text = text.replace("unknown: [0.5]}}", f"unknown: [0.5]}}}}, phases: [{sick}]}}")
    path.write_text(text + "cluster: {engines: 2}")
    run_scenario(read_scenario(path), tmp_path, out=tmp_path / "out")
    accepted = {"engine 0": 0, "engine 1": 0}
    for line in lines(tmp_path / "out"):
        accepted[line["engine"]] += line["accepted_tokens"]
    assert accepted["engine 0"] > 100
    assert accepted["engine 1"] == 0
    with pytest.raises(ValueError, match="no 'simulated-1', did you mean 'simulated'"):
        run_scenario(read_scenario(path, {"cluster.engines": 1}), tmp_path)


def test_options_change_keys(scenario, capsys):
    """--policy, --param, --load, --seed and --set say the same as the file would."""
    options = ["--policy", "fixed", "--param", "k=2", "--load", "2", "--seed", "3"]
    changed = ["--set", "workload.requests=5", "--set", "engine.max_batch=2"]
    assert cli(["simulate", str(scenario), *options, *changed, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    asked = {name: result[name] for name in ("policy", "params", "load", "seed", "arrived", "max_batch")}
    assert asked == {
        "policy": "fixed", "params": {"k": 2}, "load": 2.0, "seed": 3, "arrived": 5, "max_batch": 2
    }  # fmt: skip


def test_a_whole_part_can_be_set(scenario):
    """Another kind of truth or acceptance comes without the keys of the first, as in a sweep."""
    constant = {"kind": "constant", "acceptance": 0.7}
    found = read_scenario(scenario, {"acceptance": constant, "speculation.k_max": 3})
    assert found.acceptance == ConstantSpec(0.7)
    assert found.speculation.k_max == 3
    with pytest.raises(ValueError, match=r"seed\.x: seed is 1, which has no keys inside"):
        read_scenario(scenario, {"seed": 1, "seed.x": 2})


def test_another_policy_comes_without_the_parameters_of_the_first(scenario):
    """`k` belongs to `fixed`; --policy takes both away, --set only what it names."""
    changed = {"policy.name": "fixed", "policy.params.k": 3}
    assert read_scenario(scenario, changed).policy.params == {"k": 3}
    path = scenario.parent / "fixed.yaml"
    path.write_text(SCENARIO.replace("{name: goodput}", "{name: fixed, params: {k: 2}}"))
    assert read_scenario(path, {"policy.params.k": 3}).policy.params == {"k": 3}
    assert read_scenario(path, policy="off").policy.params == {}


def test_a_folder_that_holds_a_run_is_refused(scenario, ran, capsys):
    """No run is ever overwritten."""
    before = (ran / "result.json").read_bytes()
    assert cli(["simulate", str(scenario), "--out", str(ran)]) == 2
    assert "result.json exists already" in capsys.readouterr().err
    assert (ran / "result.json").read_bytes() == before


@pytest.mark.slow
def test_the_examples_and_the_documented_commands_work_as_written(tmp_path, monkeypatch, capsys):
    """Every command of docs/simulate.md, in order, in one folder; every example."""
    monkeypatch.chdir(tmp_path)
    rows = "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.99,396,109\n"
    Path("conv.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    names = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    Path("BurstGPT_1.csv").write_text(f"{names}\n5,ChatGPT,472,18,490,API log\n")
    commands = [line for line in DOCS.read_text().splitlines() if line.startswith("steersman ")]
    assert len(commands) > 8
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        target = words[words.index(">") + 1] if ">" in words else ""
        assert cli(words[: words.index(">")] if target else words) == 0, command
        shown = capsys.readouterr().out
        if target:
            Path(target).write_text(shown)
    for name in ("bursts", "cluster"):
        assert cli(["simulate", "--example", name]) == 0
        Path(f"{name}.yaml").write_text(capsys.readouterr().out)
        assert cli(["simulate", f"{name}.yaml", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["completed"] == result["arrived"] > 100
