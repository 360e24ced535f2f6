"""`steersman sweep` as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_cells import GRID, SCENARIO

from steersman_controller.cli import run as cli
from steersman_simulator.sweep.results import PARTS, TABLE, read_rows


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def test_one_row_per_cell_with_inputs_and_figures(scenario, tmp_path, capsys):
    """Twelve cells, the best of each load, a picture; and nothing runs a second time."""
    out, plot = tmp_path / "out", tmp_path / "load.svg"
    arguments = ["sweep", str(scenario), *GRID, "--out", str(out), "--jobs", "1", "--json"]
    assert cli([*arguments, "--plot", str(plot)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["cells"], result["ran"], result["kept"], result["repeated"]) == (12, 12, 0, 4)
    assert [group["where"] for group in result["groups"]] == [{"workload.load": 0.5}, {"workload.load": 2}]
    best, second = result["groups"][0]["standings"][:2]
    assert best["choice"] == {"policy.name": "fixed", "policy.params.k": 3}
    assert second["low"] < second["speedup"] < second["high"]
    rows = read_rows(out / TABLE)
    assert {(r["scenario.policy.name"], r.get("scenario.policy.params.k")) for r in rows} == {
        ("off", None),
        ("fixed", 1),
        ("fixed", 3),
    }
    assert all(row["completed"] == 12 and row["status"] == "ok" and row["seed"] in {0, 1} for row in rows)
    assert "<svg" in plot.read_text()
    written = (out / TABLE).read_bytes()
    assert cli([*arguments[:-1], "--most", "output_throughput"]) == 0
    assert "12 cells: 0 run now, 12 kept from before" in " ".join(capsys.readouterr().out.split())
    assert (out / TABLE).read_bytes() == written


def test_a_cell_that_fails_makes_exit_code_1(scenario, tmp_path, capsys):
    """Its row holds the error in one line; the others have their figures; it is tried again."""
    out = tmp_path / "rows.parquet"
    values = '{"kind":"constant","step_s":0.02},{"kind":"bundle","bundle":"missing.npz"}'
    arguments = ["sweep", str(scenario), "--vary", f"truth={values}", "--out", str(out), "--jobs", "1"]
    assert cli([*arguments, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["failed"], result["ran"]) == (1, 2)
    fine, failed = read_rows(out)
    assert (fine["status"], failed["status"]) == ("ok", "failed")
    assert "missing.npz" in failed["error"]
    assert result["failures"][0]["error"] == failed["error"]
    assert cli([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ran"] == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--vary", "workload.lod=1"], "workload.lod=1: unknown key 'workload.lod', did you mean 'load'?"),
        (["--vary", "engine.max_batch=-1"], "engine.max_batch=-1"),
        (["--vary", "params.kk=1"], "no policy of this sweep has it, did you mean 'k'?"),
        (["--vary", "params.k=99"], "policy fixed: k"),
        (["--vary", "policy="], "no values, so there is nothing to run"),
        (["--backend", "rai"], "no 'rai', did you mean 'ray'?"),
        (["--seeds", "1000000000"], "seeds: 1000000000, at most 100000"),
        (["--seeds", "60000", "--vary", "params.k=1,2"], "120000 cells, at most 100000"),
        (["--jobs", "0"], "--jobs: 0, must be at least 1"),
        (["--least", "a", "--most", "b"], "only one of them"),
        (["--plot", "x.txt"], "allowed: .png, .svg, .pdf"),
        (["--out", "/proc/no/such"], "/proc/no"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(scenario, tmp_path, capsys, options, told):
    """Exit code 2, what it was and what is allowed."""
    assert cli(["sweep", str(scenario), "--out", str(tmp_path / "out"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(scenario, tmp_path):
    """SIGKILL for the whole process group; the second run keeps what was whole, and the file is the same."""
    scenario.write_text(SCENARIO.replace("requests: 12", "requests: 400"))
    grid = ["--vary", "workload.load=1,2,4", "--seeds", "6", "--jobs", "2", "--json"]
    command = [sys.executable, "-m", "steersman_controller", "sweep", str(scenario), *grid, "--out"]
    out = tmp_path / "killed"
    process = subprocess.Popen([*command, str(out)], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 120.0
        while len(list((out / PARTS).glob("*.json"))) < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = len(list((out / PARTS).glob("*.json")))
    assert 5 <= found < 18
    again = subprocess.run([*command, str(out)], capture_output=True, text=True, check=True)
    result = json.loads(again.stdout)
    assert (result["kept"], result["ran"]) == (found, 18 - found)
    whole = tmp_path / "whole"
    subprocess.run([*command, str(whole), "--jobs", "1"], capture_output=True, check=True)
    assert (whole / TABLE).read_bytes() == (out / TABLE).read_bytes()
