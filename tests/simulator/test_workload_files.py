"""Traces of requests from files: every format, in order, streamed, and refused where damaged."""

import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steersman_controller.cli import run as cli
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.spec import WorkloadSpec, read_arrivals
from steersman_simulator.workload.trace_file import Lost, sorted_on_disk

TRACES = Path(os.environ.get("STEERSMAN_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/data")

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 23:59:59.9999999,10,3\n2024-03-01 00:00:01.5,4,1\n"
)
MOONCAKE = "".join(
    json.dumps({"timestamp": at, "input_length": 700, "output_length": 5, "hash_ids": [0, at + i]}) + "\n"
    for at in (0, 3000)
    for i in range(1, 4)
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n45,GPT-4,417,276,693,API log\n"
)
VLLM = {
    "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None, "mean_ttft_ms": 1.0,
    "input_lens": [9, 8, 7], "output_lens": [3, 0, 2], "start_times": [100.0, 100.5, 101.25],
    "ttfts": [0.1, 0.0, 0.1], "itls": [[0.1], [], [0.1]], "errors": ["", "x", ""],
}  # fmt: skip
TABLE = (
    "arrival_s,prompt_tokens,output_tokens,segment,request_id\n0.5,10,3,chat,a\n0.5,11,4,code,b\n2,12,5,,c\n"
)


def arrivals(folder: Path, lost: Lost | None = None, seed: int = 0, **spec: Any) -> list[Arrival]:
    found: WorkloadSpec = msgspec.convert(spec, WorkloadSpec)
    return list(read_arrivals(found, folder, seed, lost=lost))


def moments(found: list[Arrival]) -> list[float]:
    return [arrival.at_s for arrival in found]


def test_azure_counts_from_its_first_row_to_the_tick_of_100_ns(tmp_path):
    """Time is exact across midnight of a leap day; prompt and output are told apart."""
    (tmp_path / "a.csv").write_text(AZURE)
    first, second = arrivals(tmp_path, kind="azure", path="a.csv")
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 10, 3)
    assert second.at_s == 1.5000001


def test_mooncake_spreads_requests_inside_their_tick_by_the_seed(tmp_path):
    """Every request stays in its tick and keeps its prefix blocks; another seed spreads otherwise."""
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    found = arrivals(tmp_path, kind="mooncake", path="m.jsonl")
    ticks = [int(at_s // 3.0) for at_s in moments(found)]
    assert ticks == [0, 0, 0, 1, 1, 1]
    assert len(set(moments(found))) == 6
    assert moments(found) == sorted(moments(found))
    assert [a.hash_ids for a in found][:2] == [(0, 1), (0, 2)]
    assert {a.hash_block_tokens for a in found} == {512}
    assert moments(found) != moments(arrivals(tmp_path, kind="mooncake", path="m.jsonl", seed=1))
    still = arrivals(tmp_path, kind="mooncake", path="m.jsonl", tick_s=0)
    assert moments(still) == [0.0] * 3 + [3.0] * 3


def test_burstgpt_leaves_failed_requests_out_and_counts_them(tmp_path):
    """A request without response tokens is counted; a column names the segments."""
    (tmp_path / "b.csv").write_text(BURSTGPT)
    lost = Lost()
    found = arrivals(tmp_path, lost, kind="burstgpt", path="b.csv", segment_column="Log Type")
    assert [(a.at_s, a.segment, a.output_tokens) for a in found] == [
        (0.0, "Conversation_log", 18),
        (40.0, "API_log", 276),
    ]
    assert lost == {"no output tokens": 1}


def test_vllm_results_give_lengths_and_start_times(tmp_path):
    """Start times are shifted to 0; without them arrivals are drawn at the run's rate; runs are chosen."""
    path = tmp_path / "r.json"
    path.write_text(json.dumps(VLLM))
    lost = Lost()
    found = arrivals(tmp_path, lost, kind="vllm_bench", path="r.json")
    assert [(a.at_s, a.prompt_tokens, a.output_tokens) for a in found] == [(0.0, 9, 3), (1.25, 7, 2)]
    assert lost == {"no output tokens": 1}
    many = {"input_lens": [5] * 4000, "output_lens": [5] * 4000, "request_rate": 8.0, "burstiness": 4.0}
    path.write_text(json.dumps(VLLM) + "\n" + json.dumps(many) + "\n")
    with pytest.raises(ValueError, match="holds 2 runs; choose one with `run: 1` to `run: 2`"):
        arrivals(tmp_path, kind="vllm_bench", path="r.json")
    drawn = arrivals(tmp_path, kind="vllm_bench", path="r.json", run=2)
    assert drawn[-1].at_s == pytest.approx(4000 / 8.0, rel=0.05)


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "parquet"])
def test_our_own_format_is_the_same_in_every_file_form(tmp_path, form):
    """CSV, gzipped, JSON lines and Parquet hold the same requests; columns may have other names."""
    names, *lines = TABLE.split()
    rows = [dict(zip(names.split(","), line.split(","), strict=True)) for line in lines]
    typed = [
        row | {"arrival_s": float(row["arrival_s"]), "prompt_tokens": int(row["prompt_tokens"]),
               "output_tokens": int(row["output_tokens"]), "segment": row["segment"] or None}
        for row in rows
    ]  # fmt: skip
    path = tmp_path / f"t.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(typed).rename_columns({"prompt_tokens": "isl"}), path)
    else:
        text = "".join(json.dumps(row) + "\n" for row in typed) if form == "jsonl" else TABLE
        text = text.replace("prompt_tokens", "isl")
        path.write_bytes(gzip.compress(text.encode()) if form == "csv.gz" else text.encode())
    found = arrivals(tmp_path, kind="table", path=path.name, columns={"prompt_tokens": "isl"})
    expected = [(0.5, 10, 3, "chat", "a"), (0.5, 11, 4, "code", "b"), (2.0, 12, 5, "unknown", "c")]
    assert [(a.at_s, a.prompt_tokens, a.output_tokens, a.segment, a.request_id) for a in found] == expected


def test_a_recording_gives_its_requests_by_arrival(recorded, write_recording, tmp_path):
    """As many as finished, in the order of arrival, and only those of the chosen policies."""
    write_recording(tmp_path / "journal.bin", recorded.events)
    found = arrivals(tmp_path, kind="recording", path="journal.bin")
    assert len(found) == len(recorded.served)
    assert moments(found) == sorted(moments(found))
    assert len(arrivals(tmp_path, kind="recording", path=".", policies=["off"])) == len(recorded.served) // 3
    with pytest.raises(ValueError, match="no request of policy 'offf', did you mean 'off'"):
        arrivals(tmp_path, kind="recording", path=".", policies=["offf"])


BAD = [
    ("azure", AZURE + "2024-03-01 00:00:00,4,1\n", ":4: arrives 1.5 s before line 3; allowed is ascending"),
    ("azure", AZURE + "2024-03-01 00:00:02,-4,1\n", ":4: ContextTokens: found '-4', allowed: a whole number"),
    ("azure", AZURE + "2024-03-01 00:00:02,nan,1\n", ":4: ContextTokens: found 'nan', allowed"),
    ("azure", AZURE + "2024-03-01 00:00:02,4.5,1\n", ":4: ContextTokens: found '4.5', allowed"),
    ("azure", AZURE + "2024-13-01 00:00:02,4,1\n", ":4: TIMESTAMP: found '2024-13-01 00:00:02', allowed"),
    ("azure", AZURE + "2024-03-01 00:00:02,4\n", ":4: 2 values, the first line names 3 columns"),
    ("azure", AZURE.replace("ContextTokens", "ContextToken"), ":1: no column 'ContextTokens', did you mean"),
    ("azure", "", "is empty"),
    ("azure", AZURE[:40], "no request to serve"),
    ("azure", b"\x00\xff\xfe\x01" * 50, ":1: not UTF-8 text"),
    ("azure", gzip.compress(AZURE.encode() * 500, mtime=0)[:-200], "truncated or damaged gzip"),
    ("mooncake", MOONCAKE.replace("3000", "-3"), ":4: timestamp: found -3, allowed"),
    ("mooncake", MOONCAKE + '{"timestamp": NaN}\n', ":7: not JSON (N"),
    ("mooncake", MOONCAKE + '{"timestamp": 9000, "output_length": 1}\n', ":7: no column 'input_length'"),
    ("mooncake", MOONCAKE + "[1]\n", ":7: expected an object"),
    ("mooncake", MOONCAKE.replace("[0, 1]", '[0, "x"]'), ":1: hash_ids: found [0, 'x'], allowed: a list"),
    ("mooncake", MOONCAKE.replace("[0, 1]", "[0, 1, 2]"), "at most 2 ids for 700 tokens in blocks of 512"),
    ("mooncake", MOONCAKE.replace("700", "true"), ":1: input_length: found True"),
    ("burstgpt", BURSTGPT.replace("472", "4e99"), ":2: Request tokens: found '4e99', allowed"),
    ("vllm_bench", json.dumps({"max_concurrency": 3}), ":1: no 'input_lens'; allowed is what `vllm"),
    ("vllm_bench", json.dumps(VLLM | {"start_times": [1.0]}), "differ in length"),
    ("vllm_bench", "{", "no result of `vllm bench serve`"),
    ("table", TABLE.replace("\n2,", "\n-2,"), ":4: arrival_s: found '-2', allowed: a number from 0"),
    ("table", TABLE.replace("\n2,", "\ninf,"), ":4: arrival_s: found 'inf'"),
    ("table", TABLE.replace('12', '"12'), "unreadable CSV"),
    ("table", TABLE.replace("segment", "prompt_tokens"), ":1: column 'prompt_tokens' is there 2 times"),
    ("table", b"PAR1" + b"x" * 40, "unreadable Parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "said"), BAD)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, capsys, kind, content, said):
    """One line on standard error, exit code 2, and no half of a file is left behind."""
    path = tmp_path / "bad.trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli(["trace", "import", "--from", kind, str(path), "--out", str(tmp_path / "out.jsonl")]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert str(path) in shown.err
    assert [p.name for p in tmp_path.iterdir()] == ["bad.trace"]


@pytest.mark.parametrize("options", [[], ["--from", "table"], ["--from", "vllm_bench"]])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, capsys, options):
    """Nobody writes to it: without the check, reading never returns."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Held open for both, so that a reader that comes nevertheless waits for data and not for ever.
    holder = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(holder, TABLE.encode())
    try:
        assert cli(["trace", "import", *options, str(pipe), "--out", str(tmp_path / "out.jsonl")]) == 2
    finally:
        os.close(holder)
    assert "is a pipe or a device" in capsys.readouterr().err


def test_sorting_brings_an_unordered_file_into_order(tmp_path):
    """`sort` gives the same requests as the sorted file, also where they do not fit into one piece."""
    rows = [f"{random.Random(at).random() * 100:.6f},{1 + at},5" for at in range(300)]
    head = "arrival_s,prompt_tokens,output_tokens\n"
    (tmp_path / "shuffled.csv").write_text(head + "\n".join(rows) + "\n")
    (tmp_path / "sorted.csv").write_text(
        head + "\n".join(sorted(rows, key=lambda r: float(r.split(",")[0]))) + "\n"
    )
    right = arrivals(tmp_path, kind="table", path="sorted.csv")
    assert arrivals(tmp_path, kind="table", path="shuffled.csv", sort=True) == right
    shuffled = [right[(at * 7) % 300] for at in range(300)]
    assert list(sorted_on_disk(shuffled, at_once=64)) == right


def test_a_big_file_is_streamed(tmp_path):
    """300,000 rows (14 MB), or a line without end, are read in a few megabytes of memory."""
    path = tmp_path / "big.csv"
    with path.open("w") as file:
        file.write("arrival_s,prompt_tokens,output_tokens,filler\n")
        file.writelines(f"{at},10,5,{'x' * 36}\n" for at in range(300_000))
    peak = _peak(lambda: islice(_flow(path), 8_000))
    assert peak < 3 << 20 < path.stat().st_size
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "1" * (20 << 20))
    with pytest.raises(ValueError, match=r"big\.csv:2: longer than"):
        list(_flow(path))


def test_sorting_holds_no_more_than_it_says(tmp_path):
    """16,000 requests sorted 500 at a time take a fraction of the memory of all of them."""
    flow = (Arrival(float(-at), "chat", 10, 5) for at in range(16_000))
    assert _peak(lambda: sorted_on_disk(flow, at_once=500)) < 1 << 20


@needs_traces
@pytest.mark.parametrize(
    ("name", "kind", "count", "prompt", "output"),
    [
        ("azure_llm_2023_conv_0000_1800s.csv", "azure", 10_108, 1_242.7, 217.3),
        ("azure_llm_2023_code_0000_1800s.csv", "azure", 5_740, 2_028.0, 27.36),
        ("mooncake_fast25_conversation_0000_1800s.jsonl.gz", "mooncake", 5_719, 12_870.0, 345.7),
    ],
)
def test_public_traces_are_recognised_and_read(capsys, name, kind, count, prompt, output):
    """`trace inspect` knows the kind and finds the documented number of rows."""
    assert cli(["trace", "inspect", str(TRACES / name), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["requests"], found["left_out"]) == (kind, count, {})
    assert found["prompt_tokens"]["mean"] == pytest.approx(prompt, rel=1e-3)
    assert found["output_tokens"]["mean"] == pytest.approx(output, rel=2e-3)
    assert 1780.0 < found["last_s"] < 1800.0


@needs_traces
def test_real_vllm_requests_are_a_table_with_other_names(capsys, tmp_path):
    """`--columns` reads a foreign CSV, and what is written reads again."""
    source, out = TRACES / "vllm_run_rtxpro6000_qwen3-32b_requests.csv", tmp_path / "w.jsonl"
    options = ["--columns", "prompt_tokens=input_tokens", "--out", str(out), "--json"]
    assert cli(["trace", "import", str(source), *options]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 300
    assert len(arrivals(tmp_path, kind="table", path="w.jsonl")) == 300


def test_an_imported_trace_is_what_its_name_says(capsys, tmp_path):
    """Compressed where it is called .gz, the same bytes every time; other endings are refused."""
    source = tmp_path / "a.csv"
    source.write_text(AZURE)
    for name in ("plain.jsonl", "one.jsonl.gz", "two.jsonl.gz"):
        assert cli(["trace", "import", str(source), "--out", str(tmp_path / name)]) == 0
    packed = (tmp_path / "one.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "plain.jsonl").read_bytes()
    assert packed == (tmp_path / "two.jsonl.gz").read_bytes()
    capsys.readouterr()
    for name in ("t.csv", "t.parquet"):
        assert cli(["trace", "import", str(source), "--out", str(tmp_path / name)]) == 2
        assert "unknown format; allowed are .jsonl and .jsonl.gz" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def _flow(path: Path) -> Iterator[Arrival]:
    spec: WorkloadSpec = msgspec.convert({"kind": "table", "path": path.name}, WorkloadSpec)
    return read_arrivals(spec, path.parent, 0)


def _peak(make: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        for _ in make():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
