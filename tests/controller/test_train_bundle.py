"""Bundles: tables that planners read, and files that are whole or refused."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import train_truth as truth

from steersman_controller.events import ControllerConfig, Event, Received, Started
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_controller.train.bundle import (
    MANIFEST,
    TABLES,
    Bundle,
    decode_bundle,
    encode_bundle,
    read_bundle,
)
from steersman_controller.train.cells import shapes
from steersman_controller.train.crossover import crossover_lines, drafter_loses
from steersman_policies.messages import Group, Hello, StepReport

Run = Callable[..., int]


@pytest.fixture
def made(trained: Path, tmp_path: Path) -> Path:
    """A bundle of few cells."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "bundle.zip"


def packed(bundle: Path) -> tuple[Any, bytes]:
    """What is inside."""
    with zipfile.ZipFile(bundle) as archive:
        return json.loads(archive.read(MANIFEST)), archive.read(TABLES)


def test_equal_evidence_gives_equal_bytes(made: Path, tmp_path: Path, train_verbs: Run) -> None:
    """Training has no chance in it; the time of making is an argument."""
    again = tmp_path / "again.zip"
    assert (
        train_verbs("train", "--step-times", tmp_path / "a.csv", "--out", again, "--created-at", "then") == 0
    )
    assert again.read_bytes() == made.read_bytes()


def test_the_planners_tables_say_what_the_dense_table_says(made: Path) -> None:
    """verify(tokens) + draft(depth, requests) of `StepCost` is the step of the model, cell by cell."""
    bundle = read_bundle(made)
    card, cost = bundle.manifest.groups[0], bundle.step_cost(0)
    for row, batch in enumerate(card.batches):
        for column, k in enumerate(card.ks):
            planned = cost.verify_at(batch * (k + 1), 0.0) + cost.draft_at(k, batch)
            assert planned == pytest.approx(bundle.table(0, "step_s")[0, row, column], rel=1e-6)
    assert card.planner_table_error < 1e-6
    assert cost.draft_at(0, 8) == 0.0
    assert card.relative_error == card.cv_mape


def test_every_changed_byte_is_refused(made: Path) -> None:
    """Wherever a byte flips, in the archive's own fields too, the file is no bundle any more."""
    content = made.read_bytes()
    for at in range(0, len(content), 17):
        damaged = content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :]
        with pytest.raises(ValueError, match="no bundle"):
            decode_bundle(damaged, "it")
    for cut in (0, 1, 100, len(content) // 2, len(content) - 1):
        with pytest.raises(ValueError, match="no bundle"):
            decode_bundle(content[:cut], "it")
    assert isinstance(decode_bundle(content, "it"), Bundle)


def rebuilt(bundle: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive that somebody else put together."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, compression)
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda m, t: {MANIFEST: m, TABLES: t, "model.pkl": b"x"}, "allowed are exactly"),
        (lambda m, t: {MANIFEST: m, "../tables.safetensors": t}, "allowed are exactly"),
        (lambda m, t: {TABLES: t, MANIFEST: m}, "allowed are exactly"),
        (
            lambda m, t: {MANIFEST: m.replace(b'"format":2', b'"format":3'), TABLES: t},
            "format 3, understood is 2",
        ),
        (
            lambda m, t: {MANIFEST: m.replace(b'"by":', b'"extra":1,"by":'), TABLES: t},
            "unknown field `extra`",
        ),
        (lambda m, t: {MANIFEST: b'{"a":' * 50_000, TABLES: t}, "recursion depth"),
        (lambda m, t: {MANIFEST: m, TABLES: t[:-8] + b"\0" * 8}, "do not match their SHA-256"),
        (lambda m, t: {MANIFEST: m, TABLES: t + b"\0"}, "bytes of tables, the manifest says"),
        (lambda m, t: {MANIFEST: b"not json", TABLES: t}, "no bundle"),
        (lambda m, t: {MANIFEST: m.replace(b'"batches":[1,', b'"batches":['), TABLES: t}, "its grids say"),
    ],
)
def test_what_somebody_else_packed_is_refused(made: Path, change: Any, line: str) -> None:
    """Another member, order, format, field or table: one line that says what was wrong."""
    with zipfile.ZipFile(made) as archive:
        members = change(archive.read(MANIFEST), archive.read(TABLES))
    with pytest.raises(ValueError, match=line):
        decode_bundle(rebuilt(made, members), "it")


def test_compressed_and_foreign_files_are_refused(made: Path, tmp_path: Path, train_verbs: Run) -> None:
    """A compressed copy, a pickle or a folder is no bundle; the verb says so in one line."""
    with zipfile.ZipFile(made) as archive:
        members = {name: archive.read(name) for name in (MANIFEST, TABLES)}
    with pytest.raises(ValueError, match="compressed"):
        decode_bundle(rebuilt(made, members, zipfile.ZIP_DEFLATED), "it")
    other = tmp_path / "model.pkl"
    other.write_bytes(b"\x80\x04K\x01.")
    assert train_verbs("inspect", other) == 2
    assert train_verbs("inspect", tmp_path) == 2


def test_tables_that_are_no_seconds_are_refused(made: Path) -> None:
    """NaN or negative seconds never get through, even with a matching hash."""
    from safetensors.numpy import load, save

    from steersman_controller.train.bundle import tables_hash

    bundle = read_bundle(made)
    _, tables = packed(made)
    for bad in (np.nan, -1.0, np.inf):
        arrays = {name: array.copy() for name, array in load(tables).items()}
        arrays["0/step_s"][0, 0, 0] = bad
        content = save(arrays)
        manifest = msgspec.structs.replace(
            bundle.manifest, tables_bytes=len(content), tables_sha256=tables_hash(content)
        )
        with pytest.raises(ValueError, match="holds what are no seconds"):
            decode_bundle(encode_bundle(manifest, content), "it")


def test_inspect_shows_the_card(made: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Evidence, errors on batch sizes left out, worst cells, interval and best K; a picture on demand."""
    capsys.readouterr()
    picture = made.with_suffix(".png")
    assert train_verbs("inspect", made, "--plot", picture) == 0
    text = capsys.readouterr().out
    for word in (
        "trained on a.csv: 36 rows",
        "error on batch sizes left out",
        "worst cells: batch",
        "90 % interval",
    ):
        assert word in text
    assert "best K by batch size" in text
    assert "assumed 0.6" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert train_verbs("inspect", made, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["acceptance_assumed"] is True
    assert found["signature"] == ""
    assert np.array(found["groups"][0]["steps_by_batch_and_k"]).sum() == 36
    assert train_verbs("inspect", made, "--plot", made.with_suffix(".docx")) == 2


def test_a_drafter_that_takes_too_much_memory_is_shown_to_lose(tmp_path: Path, train_verbs: Run) -> None:
    """Where more requests fit without the drafter, the crossover says so; at low load it does not."""
    batches = (1, 2, 4, 8, 64, 256)
    limited = [r for r in truth.rows(ceiling=64.0, batches=batches) if r["num_draft_tokens"]]
    free = [r for r in truth.rows(batches=batches) if not r["num_draft_tokens"]]
    steps = [{**r, "drafter": "a"} for r in limited] + [{**r, "drafter": ""} for r in free]
    out = tmp_path / "bundle.zip"
    path = truth.write(tmp_path / "a.csv", steps)
    assert train_verbs("train", "--step-times", path, "--by", "drafter", "--out", out, "--json") == 0
    bundle = read_bundle(out)
    loses = drafter_loses(bundle, 0, (0.7,) * 5)[0]
    assert loses[-1]
    assert not loses[:4].any()
    assert any(line.endswith("launched without the drafter") for line in crossover_lines(bundle, 0))


def test_a_recording_trains_too(
    tmp_path: Path, hello: Hello, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of a recorded engine give tables, its acceptance and its fingerprint."""
    events: list[Event] = [
        Started(1.0, 1, "0", 9, ControllerConfig(mode="shadow"), "fixed", {"k": 3}),
        Received(1.0, "gpu0", 7, 0, 0, hello),
    ]
    number = 0
    for batch in (1, 2, 3, 4, 6, 8):
        for k in (0, 2, 4):
            for repeat in range(3):
                number += 1
                seconds = truth.true_ms(batch, k) / 1e3
                outcomes = ((k, min(k, repeat), batch),) if k else ()
                report = StepReport(
                    number,
                    0.1 * number,
                    0.1 * seconds if k else 0.0,
                    0.8 * seconds if k else 0.9 * seconds,
                    0.1 * seconds,
                    batch,
                    0,
                    batch * (k + 1),
                    100 * batch,
                    k,
                    batch if k else 0,
                    0,
                    0.1,
                    batch,
                    0,
                    (Group("chat", 0, batch, k, batch if k else 0, outcomes),),
                    warm_up=repeat == 2 and batch == 8,
                )
                events.append(Received(1.0 + number, "gpu0", 7, number, 0, report))
    writer = JournalWriter(tmp_path / "journal.bin")
    for event in events:
        writer.append(encode_event(event))
    writer.close()
    out = tmp_path / "bundle.zip"
    assert train_verbs("train", "--recording", tmp_path, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == number - 3, "warm-up steps teach nothing"
    assert found["cv_mape_all"] < 0.1
    bundle = read_bundle(out)
    assert bundle.manifest.fingerprint == bundle.manifest.groups[0].fingerprint == hello.fingerprint
    assert bundle.manifest.coverage == {"chat": 1.0}
    # Each K = 2 or 4 step kept 0, 1 or 2 of its drafts.
    reached = sum(batch for batch in (1, 2, 3, 4, 6, 8) for _ in range(6)) - 2 * 8
    accepted = sum(batch for batch in (1, 2, 3, 4, 6, 8) for _ in range(4)) - 2 * 8
    assert bundle.manifest.acceptance["chat"][0] == pytest.approx(accepted / reached)
    cells = shapes(np.array([4.0]), np.array([2.0]), mean_context=100.0)
    cost = bundle.step_cost(0)
    planned = cost.verify_at(12, float(cells.context[0])) + cost.draft_at(2, 4) + cost.other_at(4)
    assert planned == pytest.approx(truth.true_ms(4, 2) / 1e3, rel=0.05)
    assert cost.draft_at(2, 4) == pytest.approx(0.1 * truth.true_ms(4, 2) / 1e3, rel=0.3)
