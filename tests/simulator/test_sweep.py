"""Sweeps: the grid, one row per cell, resuming, failing cells, who wins."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_cells import made_figures

from steersman_simulator.sweep.best import Goal, groups_of, speedup
from steersman_simulator.sweep.cells import Cell, Cells, Grid, cells_of, key_of
from steersman_simulator.sweep.grid import read_sweep
from steersman_simulator.sweep.results import CELL, Results, read_rows, table_of
from steersman_simulator.sweep.run import run_cells

BASE = {"policy": {"name": "off", "params": {}}, "load": 1.0, "workload": {"kind": "made"}}


def grid(folder: Path, tree: dict | None = None, version: str = "1", **parts) -> Cells:
    parts = {
        "vary": {"policy.name": ["off", "fixed"], "policy.params.k": [1, 3], "load": [1.0, 2.0]},
        **parts,
    }
    return cells_of(
        tree or BASE, Grid(**parts), folder=folder, version=version, check=lambda tree, where: None
    )


def rows_of(cells, folder, jobs=1, **options):
    found = run_cells(cells, made_figures, folder=folder, version="1", jobs=jobs, backend="loky", **options)
    return {row[CELL]: row for row in found}


def test_a_grid_is_every_combination_with_the_parameters_that_its_policy_has(tmp_path):
    """`off` has no K, so its cells with K = 1 and K = 3 are one; the others differ."""
    found = grid(tmp_path, seeds=[4, 5])
    assert [(cell.varied, cell.seed) for cell in found.cells[:3]] == [
        ({"policy.name": "off", "load": 1.0}, 4),
        ({"policy.name": "off", "load": 1.0}, 5),
        ({"policy.name": "off", "load": 2.0}, 4),
    ]
    assert (len(found.cells), found.repeated) == (12, 4)
    assert found.cells[-1].scenario == {
        **BASE,
        "policy": {"name": "fixed", "params": {"k": 3}},
        "load": 2.0,
        "seed": 5,
    }
    assert BASE["policy"] == {"name": "off", "params": {}}


def test_a_key_that_is_set_moves_nothing_else_that_yaml_shares(tmp_path):
    """An alias says "the same as there": varying one of the two leaves the other as it was."""
    part = {"load": 1.0}
    found = cells_of(
        {"a": part, "b": part}, Grid({"a.load": [2.0]}), folder=tmp_path, version="1", check=lambda *_: None
    )
    assert found.cells[0].scenario == {"a": {"load": 2.0}, "b": {"load": 1.0}, "seed": 0}


def test_a_cell_is_known_by_its_operator_tables_too(tmp_path):
    """They are named by what their names begin with; another measurement is another cell."""
    tree = {"truth": {"kind": "scaled", "truth": {"kind": "operators", "tables": "ops_tp1", "layers": 2}}}
    keys = set()
    for content in ("1", "2"):
        (tmp_path / "ops_tp1_dense.csv").write_text(content)
        (tmp_path / "unrelated_dense.csv").write_text(content)
        keys.add(key_of(tree, tmp_path, "1", {}))
    assert len(keys) == 2
    (tmp_path / "unrelated_dense.csv").write_text("3")
    assert key_of(tree, tmp_path, "1", {}) in keys


def test_explicit_cells_meet_every_combination(tmp_path):
    """Settings that belong together are crossed with the grid, not with each other."""
    cells = [{"policy.name": "off"}, {"policy.name": "fixed", "policy.params.k": 5}]
    found = grid(tmp_path, vary={"load": [1, 2, 3]}, cells=cells)
    assert [cell.varied for cell in found.cells][3] == {
        "policy.name": "fixed",
        "policy.params.k": 5,
        "load": 1,
    }
    assert len(found.cells) == 6


def test_a_cell_is_known_by_scenario_version_and_content_of_its_files(tmp_path):
    """Each of the three makes another cell; nothing else does."""
    (tmp_path / "trace.csv").write_text("1")
    tree = BASE | {"workload": {"path": "trace.csv"}}
    keys = [cell.key for cell in grid(tmp_path, tree).cells]
    assert keys == [cell.key for cell in grid(tmp_path, dict(reversed(tree.items()))).cells]
    assert not {*keys} & {cell.key for cell in grid(tmp_path, tree, version="2").cells}
    assert not {*keys} & {cell.key for cell in grid(tmp_path, tree | {"horizon_s": 1.0}).cells}
    (tmp_path / "trace.csv").write_text("2")
    assert not {*keys} & {cell.key for cell in grid(tmp_path, tree).cells}


@pytest.mark.parametrize(
    ("vary", "told"),
    [
        (
            {"policy.params.kk": [1]},
            "policy.params.kk: no policy of this sweep has it, did you mean 'k'?",
        ),
        ({"load.x": [1]}, "load.x: load is 1.0, which has no keys inside"),
        ({"policy.name": ["fixd"]}, "policy: no 'fixd', did you mean 'fixed'?"),
    ],
)
def test_a_key_that_no_scenario_has_is_refused(tmp_path, vary, told):
    """Before anything runs, in one line that says what was meant."""
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        grid(tmp_path, BASE | {"policy": {"name": "fixed", "params": {}}}, vary=vary)
    assert told in str(error.value)


def test_a_sweep_file_and_the_command_line_say_the_same(tmp_path):
    """--vary and --seeds take the place of what the file says of the same key."""
    (tmp_path / "base.yaml").write_text("policy: fixed\nseed: 7\nload: 1\n")
    (tmp_path / "sweep.yaml").write_text(
        "scenario: base.yaml\nvary: {load: [1, 2], params.k: [1]}\ncells: [{policy: off}]\nseeds: 2\n"
    )
    tree, folder, found = read_sweep(tmp_path / "sweep.yaml", ["params.k=3,5"], None)
    assert (tree["load"], folder) == (1, tmp_path)
    assert found == Grid({"load": [1, 2], "policy.params.k": [3, 5]}, [{"policy.name": "off"}], (7, 8))
    assert read_sweep(tmp_path / "base.yaml", ["load=2"], 3)[2] == Grid({"load": [2]}, [], (7, 8, 9))


@pytest.mark.parametrize(
    ("text", "vary", "told"),
    [
        ("scenario: {}\nvary: {load: []}", [], "vary.load: no values"),
        ("scenario: {}\nvarry: {}", [], "unknown key 'varry', did you mean 'vary'?"),
        ("scenario: {}\nseeds: []", [], "seeds: at least one"),
        ("policy: fixed", ["load="], "--vary load: no values"),
        ("policy: fixed", ["load"], "'load' is not of the form key=value"),
        ("policy: fixed", ["seed=1,2"], "seed is not varied like other keys"),
        ("- 1", [], "must map keys to values"),
        ("a: [", [], "not YAML"),
    ],
)
def test_a_bad_sweep_is_refused(tmp_path, text, vary, told):
    """File or option and key are named."""
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)):
        read_sweep(tmp_path / "sweep.yaml", vary, None)


def test_rows_do_not_depend_on_the_number_of_jobs(tmp_path):
    """Two processes find what one finds, and both were at work."""
    cells = grid(tmp_path, BASE | {"seconds": 0.05}).cells
    one, two = (rows_of(cells, tmp_path, jobs) for jobs in (1, 2))
    assert len({row["pid"] for row in two.values()}) == 2
    for row in (*one.values(), *two.values()):
        del row["pid"]
    assert one == two
    assert len(one) == len(cells) == 6
    assert one[cells[2].key]["scenario.policy.params.k"] == 1


def test_a_cell_that_fails_is_a_row_and_the_others_go_on(tmp_path):
    """An error of the input is told as it is, a bug with its kind, a process that dies as what it is."""
    cells = grid(tmp_path, vary={"load": [1.0, 2.0, 3.0], "fault": ["", "raise", "bug", "die"]}).cells
    rows = rows_of(cells, tmp_path, jobs=2)
    told = {cell.varied["fault"]: rows[cell.key]["error"] for cell in cells}
    assert told == {
        "": "",
        "raise": "no such thing",
        "bug": "KeyError: 'k'",
        "die": "its process died, also when it ran alone (out of memory?)",
    }
    assert [rows[cell.key]["status"] for cell in cells] == ["ok", "failed", "failed", "failed"] * 3


def test_a_torn_part_is_run_again(tmp_path):
    """A part that is cut, or of which a digit changed, is no row; a whole one is."""
    results = Results.at(tmp_path / "out")
    cells = grid(tmp_path).cells[:3]
    rows = rows_of(cells, tmp_path)
    with results.locked():
        for row in rows.values():
            results.keep(row)
        changed, cut = (results.parts / f"{cell.key}.json" for cell in cells[1:])
        changed.write_bytes(changed.read_bytes().replace(b'"load":', b'"laod":'))
        changed.write_bytes(changed.read_bytes().replace(b"0.9", b"0.8").replace(b"2.0", b"2.1"))
        cut.write_bytes(cut.read_bytes()[:-9])
        kept = results.kept()
    assert list(kept.rows) == [cells[0].key]
    assert {*kept.torn} == {changed.name, cut.name}


def test_merged_rows_come_back_as_they_were_and_others_stay(tmp_path):
    """Order of the grid first, then rows of other sweeps; nothing is left of the parts."""
    results = Results.at(tmp_path / "all.parquet")
    cells = grid(tmp_path).cells
    rows = rows_of(cells, tmp_path)
    for part in (cells[:2], cells[2:]):
        with results.locked():
            for cell in part:
                results.keep(rows[cell.key])
            results.merge([cell.key for cell in reversed(part)])
    found = read_rows(results.table)
    assert [row[CELL] for row in found] == [c.key for c in (*reversed(cells[2:]), *reversed(cells[:2]))]
    assert {row[CELL]: row for row in found} == rows
    assert not results.parts.exists()


def test_a_column_of_many_kinds_is_text_and_stays_the_same_when_written_again(tmp_path):
    """So that a resumed sweep writes the bytes that an uninterrupted one writes."""
    rows = [{"cell": "a", "x": 1, "y": 1, "z": [1]}, {"cell": "b", "x": "auto", "y": 0.5, "z": [None, 2.5]}]
    table = table_of(rows)
    assert table.column("x").to_pylist() == ["1", "auto"]
    assert table.column("y").to_pylist() == [1.0, 0.5]
    assert table_of(table.to_pylist()).equals(table)


def test_results_that_are_none_are_refused(tmp_path):
    """Another Parquet file and a torn one: one line, and the file stays."""
    path = tmp_path / "x.parquet"
    pq.write_table(table_of([{"a": 1}]), path)
    with pytest.raises(ValueError, match="not the results of a sweep"):
        Results.at(path).kept()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="truncated or corrupt Parquet"):
        Results.at(path).kept()


def test_two_sweeps_into_one_place_are_refused(tmp_path):
    """The second one says so instead of losing rows of the first."""
    results = Results.at(tmp_path / "out")
    with (
        results.locked(),
        pytest.raises(ValueError, match="another sweep is writing there"),
        results.locked(),
    ):
        pass


def test_the_best_is_found_within_a_condition_on_paired_seeds():
    """Seeds differ by more than the choices do, so only pairs of seeds can tell them apart."""
    rows, cells = {}, []
    for load in (1, 2):
        for k, factor in ((1, 1.0), (3, 0.9 if load == 1 else 1.1)):
            for seed in range(5):
                cell = Cell(f"{load}-{k}-{seed}", {}, {"load": load, "policy.params.k": k}, seed)
                cells.append(cell)
                cost = load * factor * 2.0**seed * (1.0 + 0.001 * ((seed * k) % 3))
                rows[cell.key] = {"cell": cell.key, "status": "ok", "busy_s_per_token": cost}
    quiet, busy = groups_of(cells, rows, Goal())
    assert (quiet.where, quiet.standings[0].choice) == ({"load": 1}, {"policy.params.k": 3})
    assert (busy.where, busy.standings[0].choice) == ({"load": 2}, {"policy.params.k": 1})
    second = quiet.standings[1]
    assert 1.10 < second.low < second.speedup < second.high < 1.13
    more = groups_of(cells, rows, Goal("busy_s_per_token", "more"))
    assert more[0].standings[0].choice == {"policy.params.k": 1}
    with pytest.raises(ValueError, match="did you mean 'busy_s_per_token'"):
        groups_of(cells, rows, Goal("busy_s_per_tokn"))


def test_an_interval_is_students_on_logarithms():
    """Three ratios 1, e, e^2: mean e, half width t(2) / sqrt(3) = 4.303 / 1.732 on the logarithm."""
    mine, other = {1: 1.0, 2: 1.0, 3: 1.0}, {1: 1.0, 2: 2.718281828, 3: 7.389056099, 9: 100.0}
    middle, low, high = speedup(mine, other, Goal())
    assert middle == pytest.approx(2.718281828)
    assert high / middle == pytest.approx(middle / low) == pytest.approx(11.98, rel=1e-3)
    assert speedup({1: 0.0}, {1: 1.0}, Goal()) == ()
