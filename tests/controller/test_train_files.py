"""`steersman train`: what it reads, and what it refuses in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import train_truth as truth

from steersman_controller.train import reduction
from steersman_controller.train.bundle import read_bundle
from steersman_controller.train.step_times import Source, read_step_times
from steersman_controller.train.table_file import TableFile, database

Run = Callable[..., int]


def cells_of(path: Path, **options: Any) -> Any:
    """The only group of a file."""
    (cells,) = read_step_times(Source(path, **options)).groups.values()
    return cells


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_format_says_the_same(tmp_path: Path, name: str) -> None:
    """CSV, JSONL and Parquet, packed or not, give the same cells."""
    table = truth.rows(repeats=3)
    cells = cells_of(truth.write(tmp_path / name, table))
    assert len(cells) == len(truth.BATCHES) * len(truth.KS)
    assert set(cells.steps) == {3.0}
    for batch, k, seconds in zip(cells.batch, cells.k, cells.seconds, strict=True):
        mine = [r["step_ms"] for r in table if (r["batch_size"], r["num_draft_tokens"]) == (batch, k)]
        assert seconds == pytest.approx(np.median(mine) / 1e3)


def test_column_names_can_be_the_files_own(tmp_path: Path) -> None:
    """`--columns ours=theirs` and `--where` read a file that knows nothing of our names."""
    table = [
        {"conc urrency": r["batch_size"], "k": r["num_draft_tokens"], 'itl "ms"': r["step_ms"], "gpu": gpu}
        for r in truth.rows()
        for gpu in ("it's", "b")
    ]
    cells = cells_of(
        truth.write(tmp_path / "theirs.csv", table),
        columns={"batch_size": "conc urrency", "num_draft_tokens": "k", "step_ms": 'itl "ms"'},
        where={"gpu": "it's"},
    )
    assert cells.steps.sum() == len(table) / 2


def test_a_weight_counts_like_so_many_rows(tmp_path: Path) -> None:
    """A row of weight 3 gives the cell that three equal rows give."""
    times = [(1.0, 3), (2.0, 1), (5.0, 4)]
    heavy = [{"batch_size": 1, "num_draft_tokens": 0, "step_ms": ms, "weight": n} for ms, n in times]
    single = [{"batch_size": 1, "num_draft_tokens": 0, "step_ms": ms} for ms, n in times for _ in range(n)]
    weighted = cells_of(truth.write(tmp_path / "w.csv", heavy))
    assert weighted.steps.tolist() == [8.0]
    assert weighted.seconds[0] == pytest.approx(0.002)
    assert cells_of(truth.write(tmp_path / "s.csv", single)).steps.tolist() == [8.0]


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        ("step_ms", "nan", "row 5, column step_ms is 'nan', allowed is a number above 0"),
        ("step_ms", "-1", "row 5, column step_ms is '-1'"),
        ("step_ms", "0", "row 5, column step_ms is '0'"),
        ("step_ms", "fast", "row 5, column step_ms is 'fast'"),
        ("step_ms", "", "row 5, column step_ms is empty"),
        ("step_ms", "inf", "row 5, column step_ms is 'inf'"),
        ("batch_size", "0", "allowed is a whole number from 1"),
        ("batch_size", "1.5", "allowed is a whole number from 1"),
        ("num_draft_tokens", "65", "allowed is a whole number from 0 to 64"),
        ("batch_size", "1e300", "row 5, column batch_size is '1e300'"),
        ("step_ms", "1e300", "row 5, column step_ms is '1e300'"),
        ("weight", "1e308", "row 5, column weight is '1e308'"),
        ("weight", "x", "row 5, column weight is 'x'"),
        ("draft_ms", "-2", "row 5, column draft_ms is '-2'"),
        ("drafter_loaded", "maybe", "allowed is true, false or empty"),
    ],
)
def test_a_bad_value_is_one_line_with_its_row(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str], column: str, value: str, line: str
) -> None:
    """File, row, column, the value and what is allowed; exit code 2 and nothing on standard output."""
    table: list[dict[str, Any]] = [{**r, column: r.get(column, "")} for r in truth.rows()]
    table[4][column] = value
    path = truth.write(tmp_path / "bad.csv", table)
    assert train_verbs("train", "--step-times", path) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(path) in captured.err
    assert line in captured.err


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        ("weight", "0", "column weight is 0 in every row"),
        ("target_tokens", "0", "row 1, column target_tokens is below the batch size"),
        ("drafter_loaded", "false", "column drafter_loaded is false in spite of its draft tokens"),
    ],
)
def test_rows_that_mean_nothing_are_refused(tmp_path: Path, column: str, value: str, line: str) -> None:
    """No row that counts, or draft tokens without a drafter: that is an error, never an empty model."""
    path = truth.write(tmp_path / "a.csv", [row | {column: value} for row in truth.rows()])
    with pytest.raises(ValueError, match=line):
        read_step_times(Source(path))


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--columns", "batch_size=batch_sise"], "did you mean 'batch_size'?"),
        (["--columns", "batchsize=batch_size"], "--columns: no 'batchsize'; did you mean 'batch_size'?"),
        (["--columns", "batch_size"], "--columns: 'batch_size' is not of the form name=value"),
        (["--by", "gpus"], "no column 'gpus' (--by)"),
        (["--where", "step_ms=none"], "no row passes --where"),
        (["--evaluate-choice", "day"], "must be one of the --by columns"),
        (["--device", "h100"], "a prior needs both --target-config and --device"),
        (["--out", "/no/such/folder/b"], "--out: no folder /no/such/folder"),
        (["--fingerprint", "enigne=vllm"], "did you mean 'engine'?"),
    ],
)
def test_a_wrong_option_is_one_line(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str], args: list[str], line: str
) -> None:
    """What was wrong and what it may have meant."""
    path = truth.write(tmp_path / "a.csv", truth.rows())
    assert train_verbs("train", "--step-times", path, *args) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert line in captured.err


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.csv", "batch_size,num_draft_tokens,step_ms\n1,0,2\n1,0\n", "a.csv"),
        ("a.csv", "batch_size,num_draft_tokens,step_ms\n1,0,2,9\n", "a.csv"),
        ("a.csv", "", "is empty"),
        ("a.csv", "batch_size,num_draft_tokens,step_ms\n", "no row"),
        ("a.csv", "batch_size,step_ms,step_ms\n", "two columns are called 'step_ms'"),
        ("a.csv.gz", "no gzip", "unreadable csv"),
        ("a.jsonl", '{"batch_size": 1\n', "unreadable jsonl"),
        ("a.parquet", "PAR1 and no more", "unreadable parquet"),
        ("a.xlsx", "x", "unknown format"),
        ("a.pkl", "x", "unknown format"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str], name: str, content: str, line: str
) -> None:
    """A ragged or torn file is refused, never read in part."""
    path = tmp_path / name
    path.write_text(content)
    assert train_verbs("train", "--step-times", path) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert line in captured.err


def test_rows_without_a_drafter_go_to_every_drafters_group(tmp_path: Path) -> None:
    """K = 0 with an empty `--by` value joins the groups that agree otherwise, as without a drafter."""
    table = [
        {**r, "drafter": name if r["num_draft_tokens"] else "", "day": day}
        for r in truth.rows()
        for name in ("a", "b")
        for day in ("mon", "tue")
        if r["num_draft_tokens"] or name == "a"
    ]
    table += [{**r, "drafter": "", "day": "wed"} for r in truth.rows() if not r["num_draft_tokens"]]
    groups = read_step_times(Source(truth.write(tmp_path / "a.csv", table), by=("drafter", "day"))).groups
    assert set(groups) == {(name, day) for name in "ab" for day in ("mon", "tue")} | {("", "wed")}
    for group, cells in groups.items():
        if group[0]:
            assert ((cells.k > 0) == cells.loaded).all()
            assert (cells.k == 0).sum() == len(truth.BATCHES)


def test_a_name_on_a_row_with_k_0_means_that_the_drafter_was_loaded(tmp_path: Path) -> None:
    """K = 0 beside a drafter and no drafter are two things; `drafter_loaded` overrides the rule."""
    table: list[dict[str, Any]] = [{**r, "drafter": "a"} for r in truth.rows()]
    assert cells_of(truth.write(tmp_path / "a.csv", table), by=("drafter",)).loaded.all()
    told = [{**r, "drafter_loaded": "false" if not r["num_draft_tokens"] else ""} for r in table]
    cells = cells_of(truth.write(tmp_path / "b.csv", told), by=("drafter",))
    assert (cells.loaded == (cells.k > 0)).all()


def test_many_rows_are_reduced_with_progress(tmp_path: Path) -> None:
    """A file of 300,000 steps with contexts becomes cells of exactly its rows; progress only goes up."""
    rng = np.random.default_rng(1)
    count = 300_000
    columns = {
        "batch_size": rng.integers(1, 65, count),
        "num_draft_tokens": rng.integers(0, 5, count),
        "context_tokens": rng.integers(100, 90_000, count),
        "step_ms": rng.uniform(10.0, 20.0, count).round(4),
    }
    path = tmp_path / "many.csv"
    header = ",".join(columns)
    np.savetxt(
        path, np.column_stack(list(columns.values())), delimiter=",", fmt="%.10g", header=header, comments=""
    )
    heard: list[float] = []
    found = read_step_times(Source(path), heard.append)
    (cells,) = found.groups.values()
    assert (found.rows, cells.steps.sum()) == (count, count)
    assert cells.steps @ cells.context == pytest.approx(columns["context_tokens"].sum())
    assert heard == sorted(heard)
    planted = path.read_text().splitlines()
    planted[234_567] = "1,2,3,nan"
    path.write_text("\n".join(planted) + "\n")
    with pytest.raises(ValueError, match="row 234567, column step_ms is 'nan'"):
        read_step_times(Source(path))
    one = (columns["batch_size"] == 7) & (columns["num_draft_tokens"] == 2)
    assert cells.steps[(cells.batch == 7) & (cells.k == 2)].sum() == one.sum()


@pytest.mark.parametrize("loud", [False, True])
def test_reading_is_silent_on_standard_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], loud: bool
) -> None:
    """The database has a progress bar of its own, which would spoil `--json`; it is kept quiet."""
    file = TableFile(truth.write(tmp_path / "a.csv", truth.rows()))
    heard: list[float] = []
    with database() as connection:
        connection.execute("set progress_bar_time = 0")
        if loud:
            connection.execute("set enable_progress_bar_print = true")
        slow = "select count(*) from range(5000000) a(i) where md5(i::varchar) < '5'"
        file.run(connection, f"create temp table counted as {slow}", heard.append)
    assert heard
    assert heard == sorted(heard)
    assert bool(capfd.readouterr().out) == loud


@pytest.mark.parametrize("most", [2_000, 400, 100, 1])
def test_too_many_cells_are_told_apart_less_finely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Every row still counts once, means stay, and small batch sizes are never merged."""
    rng = np.random.default_rng(2)
    table = [
        {
            "batch_size": int(batch),
            "num_draft_tokens": int(k),
            "context_tokens": int(context),
            "prefill_tokens": int(prefill),
            "step_ms": 10.0,
        }
        for batch, k, context, prefill in zip(
            rng.integers(1, 257, 4000),
            rng.integers(0, 4, 4000),
            rng.integers(1, 99_999, 4000),
            rng.integers(0, 2, 4000) * 512,
            strict=True,
        )
    ]
    monkeypatch.setattr(reduction, "MOST_CELLS", most)
    cells = cells_of(truth.write(tmp_path / "a.csv", table))
    assert cells.steps.sum() == 4000
    assert cells.steps @ cells.context == pytest.approx(sum(row["context_tokens"] for row in table))
    tokens = [row["batch_size"] * (row["num_draft_tokens"] + 1) + row["prefill_tokens"] for row in table]
    assert cells.steps @ cells.tokens == pytest.approx(sum(tokens))
    small = sum(row["batch_size"] == 7 for row in table)
    assert cells.steps[cells.batch == 7].sum() == small
    assert len(cells) <= most or most < 1000


def test_acceptance_and_json_reach_the_bundle(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Position acceptance from a file decides the crossover that is shown."""
    batches = (1, 4, 16, 64)
    rows = truth.rows(batches=batches)
    steps = truth.write(tmp_path / "a.csv", rows)
    table = [
        {"segment": s, "position": p, "acceptance": a}
        for s, a in (("code", 0.9), ("qa", 0.0))
        for p in (1, 2)
    ]
    accepted = truth.write(tmp_path / "acceptance.csv", table)
    out = tmp_path / "bundle.zip"
    args = ["train", "--step-times", steps, "--acceptance", accepted, "--out", out, "--json"]
    assert train_verbs(*args) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == len(rows)
    assert train_verbs("inspect", out, "--json") == 0
    best = json.loads(capsys.readouterr().out)["groups"][0]["best_k"]
    assert best["qa"] == [[0] * len(batches)]
    assert best["code"][0][0] == max(truth.KS)


@pytest.mark.parametrize("drafted", [True, False])
def test_evidence_without_drafts_is_called_so(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str], *, drafted: bool
) -> None:
    """Where K was never above 0, a best K of 0 is no finding, and the user is told."""
    rows = [row for row in truth.rows(batches=(1, 4, 16)) if drafted or not row["num_draft_tokens"]]
    steps = truth.write(tmp_path / "a.csv", rows)
    assert train_verbs("train", "--step-times", steps, "--out", tmp_path / "b.zip", "--json") == 0
    warning = json.loads(capsys.readouterr().out)["warning"]
    assert warning is None if drafted else "no step with K > 0 in the evidence" in warning


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([("a", 1, 0.5), ("a", 3, 0.5)], "has gaps"),
        ([("a", 1, 1.5)], "acceptance from 0 to 1"),
        ([("a", 1, 0.5), ("a", 1, 0.6)], "has position 1 twice"),
        ([("a", "x", 0.5)], "are no numbers"),
    ],
)
def test_a_bad_acceptance_file_is_one_line(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str], rows: list[Any], line: str
) -> None:
    """A gap, a share above 1 or a contradiction is refused with its row."""
    table = [dict(zip(("segment", "position", "acceptance"), row, strict=True)) for row in rows]
    steps = truth.write(tmp_path / "a.csv", truth.rows())
    accepted = truth.write(tmp_path / "acceptance.csv", table)
    assert train_verbs("train", "--step-times", steps, "--acceptance", accepted) == 2
    assert line in capsys.readouterr().err


def bench_result(batch: int, k: int, **more: Any) -> dict[str, Any]:
    """A run as `vllm bench serve --save-result` writes it, shortened."""
    seconds = truth.true_ms(batch, k) / 1e3
    found = {
        "date": "20260101-000000",
        "model_id": "m",
        "num_prompts": 100,
        "max_concurrency": batch,
        "output_throughput": batch * truth.tokens_per_step(k) / seconds,
        "mean_itl_ms": 1e3 * seconds,
        "median_itl_ms": 1e3 * seconds,
        "input_lens": [100, 200],
    }
    if k:
        found |= {
            "spec_decode_acceptance_rate": 50.0,
            "spec_decode_num_drafts": 1000,
            "spec_decode_draft_tokens": 1000 * k,
            "spec_decode_per_position_acceptance_rates": [0.7 ** (j + 1) for j in range(k)],
        }
    return found | more


@pytest.mark.parametrize("form", ["lines", "folder"])
def test_results_of_vllm_bench_serve_are_step_times(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """A run each of several concurrencies and K: step time, K, acceptance, and the runs without a drafter."""
    runs = [bench_result(batch, k) for batch in (1, 2, 4, 8, 16, 32) for k in (0, 1, 3)]
    given, out = tmp_path / ("runs.json" if form == "lines" else "runs"), tmp_path / "bundle.zip"
    if form == "lines":
        given.write_text("".join(json.dumps(run) + "\n" for run in runs))
    else:
        given.mkdir()
        for number, run in enumerate(runs):
            (given / f"{number:02}.json").write_text(json.dumps(run))
    assert train_verbs("train", "--step-times", given, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == len(runs)
    bundle = read_bundle(out)
    assert bundle.manifest.acceptance[""] == pytest.approx((0.7, 0.7, 0.7))
    cost = bundle.step_cost(0)
    for batch, k in ((2, 1), (8, 3), (32, 3)):
        planned = cost.verify_at(batch * (k + 1), 0.0) + cost.draft_at(k, batch)
        assert planned == pytest.approx(truth.true_ms(batch, k) / 1e3, rel=0.08)
    assert bundle.table(0, "no_drafter_s")[0] == pytest.approx(
        [truth.true_ms(batch, 0) / 1e3 for batch in bundle.manifest.groups[0].batches], rel=0.15
    )


def test_a_run_that_says_no_concurrency_is_refused(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run at a request rate has no batch size: one line names the row and the column."""
    path = tmp_path / "runs.jsonl"
    runs = [bench_result(4, 1), bench_result(4, 2, max_concurrency=None)]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert train_verbs("train", "--step-times", path, "--out", tmp_path / "b.zip") == 2
    assert "row 2, column batch_size is empty, allowed is a whole number from 1" in capsys.readouterr().err


def test_a_run_whose_k_is_no_number_is_refused(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not taken for a run without a drafter."""
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(bench_result(4, 1, num_speculative_tokens="four")) + "\n")
    assert train_verbs("train", "--step-times", path) == 2
    assert "row 1, column num_draft_tokens is 'four'" in capsys.readouterr().err


def test_a_folder_is_no_place_for_a_bundle(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and nothing half written beside it."""
    (tmp_path / "out").mkdir()
    table = truth.write(tmp_path / "a.csv", truth.rows())
    assert train_verbs("train", "--step-times", table, "--out", tmp_path / "out") == 2
    assert f"{tmp_path / 'out'}: is a folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "out"]
