"""Recordings: the journal, Parquet, and what is left of a damaged one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from steersman_controller.cli import run
from steersman_controller.events import (
    ControllerConfig,
    Event,
    ModeSet,
    PolicySet,
    Received,
    Restored,
    Started,
    Ticked,
)
from steersman_controller.trace.journal import MAGIC, JournalWriter, encode_event
from steersman_controller.trace.parquet import convert
from steersman_controller.trace.recorder import Recorder
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import Hello, PlanAck, RequestReport, StepReport

Step = Callable[..., StepReport]
Verb = Callable[..., Any]


@pytest.fixture
def events(hello: Hello, step: Step, request_report: RequestReport) -> list[Event]:
    """One of every kind, a duplicate and a frame of an older boot among them."""

    def received(at_s: float, sequence: int, record: Any, epoch: int = 7) -> Received:
        return Received(at_s, "gpu0", epoch, sequence, 0, record)

    return [
        Started(1.0, 1, "0.1.0", 9, ControllerConfig(mode="steer"), "fixed", {"k": 3}),
        received(1.1, 0, hello, epoch=6),
        received(1.2, 0, hello),
        Restored(1.2, "gpu0", b"\0\xff"),
        Ticked(1.3, "gpu0", None),
        received(1.4, 1, step(1)),
        received(1.5, 1, step(1)),
        received(1.6, 9, step(99), epoch=6),
        received(1.7, 2, step(2)),
        received(1.8, 3, request_report),
        PolicySet(1.9, "", "off", {}),
        ModeSet(2.0, "gpu0", "shadow"),
        received(2.1, 4, PlanAck(1, False, "no")),
    ]


@pytest.fixture
def journal(tmp_path: Path, events: list[Event]) -> Path:
    """A recording that was never ended."""
    writer = JournalWriter(tmp_path / "journal.bin")
    for event in events:
        writer.append(encode_event(event))
    writer.close()
    return writer.path


def test_a_journal_and_its_parquet_hold_the_same_events(journal: Path, events: list[Event]) -> None:
    """Conversion loses nothing; every form is read, by its own path and by its folder."""
    assert list(read_recording(journal).events) == events
    assert read_recording(journal.parent).path == journal
    parquet = convert(journal)
    assert read_recording(journal.parent).path == parquet
    recording = read_recording(parquet)
    assert list(recording.events) == events
    assert list(recording.events) == events, "a second pass reads the file again"
    assert recording.started == events[0]
    assert recording.warning is None


def test_frames_count_once(journal: Path) -> None:
    """A duplicate and a late frame of an older boot are no steps; they stay among the events."""
    recording = read_recording(journal)
    assert [report.step for report in recording.steps("gpu0")] == [1, 2]
    assert [report.step for report in recording.steps("gpu1")] == []
    assert [report.segment for report in recording.requests()] == ["chat"]
    assert recording.engines == ["gpu0"]
    assert recording.hello("gpu0") is not None
    assert recording.plans == []


def test_parquet_has_columns_for_people(journal: Path) -> None:
    """A step's numbers are plain columns; what does not apply is null; nothing but counts is in there."""
    rows = pq.read_table(convert(journal)).to_pylist()
    step = next(row for row in rows if row["kind"] == "step")
    assert (step["engine_id"], step["step"], step["verify_s"], step["committed_tokens"]) == (
        "gpu0",
        1,
        0.012,
        6,
    )
    assert (step["drafted"], step["accepted"], step["commanded"]) == (6, 4, [("chat", 3)])
    request = next(row for row in rows if row["kind"] == "request")
    assert (request["segment"], request["ttft_s"], request["verify_s"]) == ("chat", 0.05, None)
    assert next(row for row in rows if row["kind"] == "policy_set")["policy"] == "off"
    assert [row["kind"] for row in rows][:4] == ["started", "hello", "hello", "restored"]


def test_every_truncation_keeps_the_whole_events_before_it(journal: Path, events: list[Event]) -> None:
    """Wherever the journal is cut, all whole events are read and the rest is said to be lost."""
    whole = journal.read_bytes()
    ends = [len(MAGIC)]
    for event in events:
        ends.append(ends[-1] + 8 + len(encode_event(event)))
    assert ends[-1] == len(whole)
    for cut in range(ends[1], len(whole), 7):
        journal.write_bytes(whole[:cut])
        recording = read_recording(journal)
        kept = sum(1 for end in ends[1:] if end <= cut)
        assert list(recording.events) == events[:kept]
        assert recording.truncated_bytes == cut - ends[kept]
        assert (recording.warning is None) == (cut in ends)


def test_a_flipped_bit_ends_the_recording_there(journal: Path, events: list[Event]) -> None:
    """What follows a damaged event is lost and counted, never guessed at."""
    whole = journal.read_bytes()
    start = len(MAGIC) + 8 + len(encode_event(events[0]))
    damaged = start + 20
    journal.write_bytes(whole[:damaged] + bytes([whole[damaged] ^ 4]) + whole[damaged + 1 :])
    recording = read_recording(journal)
    assert list(recording.events) == events[:1]
    assert recording.truncated_bytes == len(whole) - start


def test_a_converted_journal_remembers_what_it_had_lost(journal: Path) -> None:
    """The Parquet file of a torn journal says how much is missing."""
    journal.write_bytes(journal.read_bytes()[:-3])
    lost = read_recording(journal).truncated_bytes
    assert lost > 0
    assert read_recording(convert(journal)).truncated_bytes == lost


def test_a_truncated_parquet_is_one_clear_line(journal: Path, run_verb: Verb) -> None:
    """The line names the file, the fault and the journal beside it; nothing is asked; exit code 2."""
    parquet = convert(journal)
    whole = parquet.read_bytes()
    parquet.write_bytes(whole[:-1])
    result = run_verb("trace", "inspect", str(journal.parent), "--json")
    assert result.returncode == 2
    assert set(json.loads(result.stdout)) == {"error", "version"}
    assert result.stderr.count("\n") == 1
    for part in (str(parquet), "truncated or corrupt Parquet", f"{journal} beside it can be read"):
        assert part in result.stderr


def test_a_flipped_byte_in_parquet_is_noticed_or_harmless(journal: Path, events: list[Event]) -> None:
    """Wherever it is, either the file is refused in one line or the events are the same."""
    parquet = convert(journal)
    whole = parquet.read_bytes()
    refused = harmless = 0
    for position in range(0, len(whole), 61):
        parquet.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        try:
            found = list(read_recording(parquet).events)
        except ValueError as error:
            refused += str(error).count("\n") == 0
        else:
            assert found == events
            harmless += 1
    assert refused + harmless == len(range(0, len(whole), 61))
    assert refused > 10


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.bin", b""), ("a.bin", b"hello"), ("a.csv", b"batch_size,step_ms\n1,2\n"), ("journal.bin", MAGIC)],
)
def test_what_is_no_recording_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    """The line names the file and what would be one; exit code 2."""
    (tmp_path / name).write_bytes(content)
    assert run(["trace", "inspect", str(tmp_path / name)]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert f"{tmp_path / name}: no steersman recording" in shown


def test_a_foreign_parquet_is_no_recording(tmp_path: Path, journal: Path) -> None:
    """A table without events is named as such."""
    foreign = tmp_path / "x.parquet"
    pq.write_table(pq.read_table(convert(journal), columns=["step"]), foreign)
    with pytest.raises(ValueError, match="no steersman recording"):
        read_recording(foreign)


def test_an_absent_recording_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing path and an empty folder are told apart."""
    assert run(["trace", "inspect", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such recording" in capsys.readouterr().err
    assert run(["trace", "inspect", str(tmp_path)]) == 2
    assert "holds no recording" in capsys.readouterr().err


def test_inspect_says_what_is_in_it_and_what_was_lost(journal: Path, run_verb: Verb) -> None:
    """One JSON object on standard output, one line about the torn tail on standard error, exit code 0."""
    import json

    journal.write_bytes(journal.read_bytes()[:-1])
    result = run_verb("trace", "inspect", str(journal), "--json")
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert found["events_by_kind"]["step"] == 4
    assert found["frames_by_engine"] == {"gpu0": 7}
    assert found["requests_by_segment"] == {"chat": 1}
    assert found["truncated_bytes"] > 0
    assert f"the last {found['truncated_bytes']} bytes are torn" in result.stderr


def test_a_full_disk_ends_the_recording_and_nothing_else(events: list[Event]) -> None:
    """Writing goes wrong for real on /dev/full: the recorder says why, and raises nothing."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    recorder = Recorder.__new__(Recorder)
    recorder.folder, recorder.failed, recorder._dirty = Path("/dev"), "", False
    recorder._journal = JournalWriter.__new__(JournalWriter)
    recorder._journal.path = Path("/dev/full")
    recorder._journal._file = Path("/dev/full").open("wb")  # noqa: SIM115
    recorder.write(events[0])
    recorder.flush()
    assert "No space left" in recorder.failed
    recorder.write(events[1])
    recorder.flush()


def test_an_older_recording_is_set_aside(tmp_path: Path, events: list[Event]) -> None:
    """Recording into a used folder renames what was there; the folder reads as the newest."""
    for number in range(3):
        recorder = Recorder(tmp_path)
        recorder.write(events[0])
        for event in events[1 : number + 2]:
            recorder.write(event)
        recorder.close()
    assert [len(list(read_recording(tmp_path / f"journal-{n}.bin").events)) for n in (1, 2)] == [2, 3]
    assert len(list(read_recording(tmp_path / "trace-2.parquet").events)) == 3
    assert len(list(read_recording(tmp_path).events)) == 4


def test_two_recorders_never_share_a_folder(tmp_path: Path) -> None:
    """The second is refused in one line, and the first goes on."""
    first = Recorder(tmp_path)
    with pytest.raises(ValueError, match="another sidecar is recording into"):
        Recorder(tmp_path)
    first.close()
    Recorder(tmp_path).close()
