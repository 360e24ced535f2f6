"""The table for the time without a lease survives the engine, and nothing wrong is read back."""

import logging
from pathlib import Path

import msgspec
import pytest
from link_world import DIGEST, PLAN, Bench, rows

from steersman_policies.executor import Fallback
from steersman_policies.messages import Hello, StepReport


def test_the_fallback_table_survives_the_engine(tmp_path: Path) -> None:
    """The next engine of this fingerprint starts with it, without any sidecar."""
    bench = Bench(tmp_path)
    bench.peer.deliver(PLAN)
    bench.turn()
    bench.link.publisher.finish()
    assert Bench(tmp_path).k() == (1, "lease")


def test_a_shadow_plan_leaves_no_fallback(tmp_path: Path) -> None:
    """What a sidecar in shadow would do is done by nobody."""
    bench = Bench(tmp_path)
    bench.peer.deliver(msgspec.structs.replace(PLAN, mode="shadow"))
    bench.turn()
    bench.link.publisher.finish()
    assert not (tmp_path / "engine-1.fallback.json").exists()
    assert Bench(tmp_path).k() == (2, "launch")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"fingerprint": "x"',
        b"\xff\xfe",
        b"[]",
        msgspec.json.encode(Fallback(DIGEST, (1, 2), (1,))),
        msgspec.json.encode(Fallback(DIGEST, (2, 1), (1, 1, 1))),
        msgspec.json.encode(Fallback(DIGEST, (), (5,))),
        msgspec.json.encode({"fingerprint": DIGEST, "batch_edges": [], "proposal_length": [-1]}),
    ],
)
def test_a_corrupt_fallback_table_is_refused_with_one_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted, and the launch setting holds."""
    (tmp_path / "engine-1.fallback.json").write_bytes(content)
    bench = Bench(tmp_path)
    assert bench.k() == (2, "launch")
    assert bench.counters()["fallback_refused"] == 1
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_a_fallback_table_of_another_engine_is_not_used(tmp_path: Path) -> None:
    """It is not corrupt either."""
    path = tmp_path / "engine-1.fallback.json"
    path.write_bytes(msgspec.json.encode(Fallback("other", (), (6,))))
    bench = Bench(tmp_path)
    assert bench.k() == (2, "launch")
    assert bench.counters()["fallback_refused"] == 0


def test_a_disk_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """Counted once per table, and reports go on."""
    (tmp_path / "state").write_text("a file where the folder should be")
    bench = Bench(tmp_path / "state")
    bench.peer.deliver(PLAN)
    bench.turn()
    bench.link.record(rows(0))
    assert [type(r) for r in bench.turn(1.0)] == [Hello, StepReport]
    bench.turn(1.0)
    assert bench.counters()["publisher_errors"] == 1
