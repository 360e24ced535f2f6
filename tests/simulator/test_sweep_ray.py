"""Sweeps on a real Ray cluster on this machine: two workers, loopback only."""

import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from made_cells import GRID, SCENARIO, made_figures

from steersman_controller.cli import run as cli
from steersman_simulator.sweep.cells import Cell
from steersman_simulator.sweep.results import CELL, TABLE
from steersman_simulator.sweep.run import run_cells

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers for all tests of this file: Ray takes ten seconds to start. Of a cluster that is gone
    Ray's note is still there."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'steersman[ray]'")
    from steersman_simulator.sweep.on_ray import workers

    # Paths of sockets must be short.
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
    ):
        note = Path(folder) / "ray" / "ray_current_cluster"
        note.parent.mkdir()
        note.write_text("127.0.0.1:1")
        patch.setenv("RAY_TMPDIR", folder)
        # So that the workers find the module of made-up cells beside this file.
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        with workers(2):
            import ray

            yield ray


def test_both_workers_run_cells_and_rows_come_one_by_one(cluster, tmp_path):
    """Neither is this process; the first row is here before the last cell has run."""
    base = {"policy": {"name": "off", "params": {}}, "load": 1.0, "seconds": 0.3}
    cells = [Cell(f"{seed}", base | {"seed": seed}, {}, seed) for seed in range(8)]
    rows = run_cells(cells, made_figures, folder=tmp_path, version="1", jobs=2, backend="ray")
    first = next(rows)
    assert len(list((tmp_path / "ran").iterdir())) < 8
    found = {row[CELL]: row for row in (first, *rows)}
    assert len(found) == 8
    assert cluster.util.get_node_ip_address() == "127.0.0.1"
    pids = {row["pid"] for row in found.values()}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_ray_finds_what_processes_find(cluster, tmp_path, capsys):
    """The same bytes from --backend ray and --backend loky, and the same standings."""
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    said = []
    for backend in ("ray", "loky"):
        out = tmp_path / backend
        options = [*GRID, "--backend", backend, "--jobs", "2", "--out", str(out), "--json"]
        assert cli(["sweep", str(tmp_path / "tiny.yaml"), *options]) == 0
        said.append(json.loads(capsys.readouterr().out) | {"out": ""})
    assert said[0] == said[1]
    assert (tmp_path / "ray" / TABLE).read_bytes() == (tmp_path / "loky" / TABLE).read_bytes()


def test_a_cell_that_kills_its_worker_is_a_row(cluster, tmp_path):
    """The cluster loses a worker; the sweep loses nothing."""
    base = {"policy": {"name": "off", "params": {}}, "load": 1.0}
    cells = [Cell(f"{seed}", base | {"seed": seed}, {}, seed) for seed in range(4)]
    cells[1] = Cell("1", base | {"seed": 1, "fault": "die"}, {}, 1)
    rows = list(run_cells(cells, made_figures, folder=tmp_path, version="1", jobs=2, backend="ray"))
    assert {row[CELL]: row["status"] for row in rows} == {"0": "ok", "1": "failed", "2": "ok", "3": "ok"}
