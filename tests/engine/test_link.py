"""The link obeys plans under a lease, survives every sidecar, and never hurts the engine."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from link_world import DIGEST, HELLO, PLAN, REPORT, Bench, load, rows

from steersman_engine import link as link_module
from steersman_engine.bench.stand_in import constant_plan
from steersman_engine.link import Link
from steersman_engine.publisher import HELD_ITEMS
from steersman_engine.rows import StepRows
from steersman_engine.steering import Steering
from steersman_policies import codec
from steersman_policies.executor import Decision, Executor
from steersman_policies.messages import Hello, Lease, PlanAck, RequestReport, StepReport
from steersman_policies.segmenter import Segmenter, SegmentRule


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_link_is_a_steering() -> None:
    """The engine can hold it where it holds the launch setting."""
    steering: Callable[[Link], Steering] = lambda link: link  # noqa: E731 - mypy checks it
    assert steering is not None


def test_the_first_frame_is_a_hello_and_it_comes_every_second(bench: Bench) -> None:
    """Rows that wait come after it; then a hello per second."""
    bench.link.record(rows(0))
    first = bench.turn()
    assert [type(record) for record in first] == [Hello, StepReport]
    assert bench.turn(0.5) == []
    assert [type(record) for record in bench.turn(0.5)] == [Hello]


def test_frames_carry_topic_sequence_epoch_and_sender(bench: Bench) -> None:
    """The sequence counts the frames sent, from zero."""
    bench.link.record(rows(0))
    bench.link.finished(REPORT)
    bench.link.publisher.turn()
    frames = bench.peer.taken()
    assert [(f.topic, f.sequence) for f in frames] == [(b"hello", 0), (b"step", 1), (b"request", 2)]
    assert {(f.envelope.epoch, f.envelope.sender, f.envelope.dropped) for f in frames} == {(5, "engine-1", 0)}


def test_a_plan_is_followed_under_a_lease_and_only_then(bench: Bench) -> None:
    """Launch K without a plan, plan K under the lease, the fallback from the moment it ends."""
    assert bench.k() == (2, "launch")
    bench.peer.deliver(PLAN)
    assert bench.turn()[0] == PlanAck(plan_id=1, applied=True)
    assert bench.k() == (1, "lease")
    bench.peer.deliver(Lease(plan_id=1, lease_s=1.0))
    bench.turn()
    assert bench.k() == (6, "table")
    bench.clock.now_s += 0.999
    assert bench.k() == (6, "table")
    bench.clock.now_s = 101.0
    assert bench.k() == (1, "lease")
    assert bench.counters()["decisions_after_expiry"] == 0


def test_a_decision_after_expiry_would_be_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lease check planted away, the counter sees it."""
    bench.peer.deliver(PLAN)
    bench.turn()
    monkeypatch.setattr(Executor, "_without_lease", Executor._steer)
    assert bench.k() == (6, "table")
    assert bench.counters()["decisions_after_expiry"] == 1


def test_a_lease_for_another_plan_does_not_count(bench: Bench) -> None:
    """It renews nothing."""
    bench.peer.deliver(PLAN)
    bench.peer.deliver(Lease(plan_id=2))
    bench.turn()
    assert bench.k() == (1, "lease")
    assert bench.counters()["leases_refused"] == 1


def test_a_plan_that_cannot_be_followed_is_refused_with_the_reason(bench: Bench) -> None:
    """The last good plan stays in force."""
    bench.peer.deliver(PLAN)
    bench.peer.deliver(Lease(plan_id=1))
    bench.peer.deliver(constant_plan(DIGEST, plan_k=5, fallback_k=1, plan_id=2))
    acks = [record for record in bench.turn() if isinstance(record, PlanAck)]
    assert [(ack.plan_id, ack.applied) for ack in acks] == [(1, True), (2, False)]
    assert "K=5" in acks[1].reason
    assert bench.k() == (6, "table")
    assert bench.counters()["plans_refused"] == 1


def test_a_new_sidecar_is_greeted_at_once_and_its_plans_count_from_the_start(bench: Bench) -> None:
    """Its lower plan id is no old plan, and the old sidecar's lease is worth nothing."""
    old = msgspec.structs.replace(PLAN, plan_id=900)
    bench.peer.deliver(old, epoch=1)
    bench.peer.deliver(Lease(plan_id=900), epoch=1)
    bench.turn()
    assert bench.k() == (6, "table")
    bench.peer.deliver(PLAN, epoch=2)
    records = bench.turn(0.01)
    assert [type(record) for record in records] == [PlanAck, Hello]
    assert records[0].applied
    assert bench.k() == (1, "lease")


def test_the_pause_file_puts_the_launch_setting_back(bench: Bench, tmp_path: Path) -> None:
    """Obeyed within a tenth of a second, without any sidecar; removed, the plan is followed again."""
    bench.peer.deliver(PLAN)
    bench.peer.deliver(Lease(plan_id=1, lease_s=60.0))
    bench.turn()
    (tmp_path / "engine-1.pause").touch()
    bench.turn(0.1)
    assert bench.k() == (2, "pause")
    (tmp_path / "engine-1.pause").unlink()
    bench.turn(0.1)
    assert bench.k() == (6, "table")


def test_a_pause_file_from_before_the_start_holds_for_the_first_decision(tmp_path: Path) -> None:
    """No step runs under another setting."""
    (tmp_path / "engine-1.pause").touch()
    assert Bench(tmp_path).k() == (2, "pause")


def test_rows_wait_for_a_sidecar_and_the_oldest_are_dropped_and_counted(bench: Bench) -> None:
    """What was dropped is in the envelope of the next frame; the rest arrives in order."""
    bench.peer.connected = False
    for step in range(HELD_ITEMS + 10):
        bench.link.record(rows(step))
    bench.turn()
    bench.peer.connected = True
    bench.clock.now_s += 0.1
    received: list[StepReport] = []
    for _ in range(10):
        bench.link.publisher.turn()
        for frame in bench.peer.taken():
            assert frame.envelope.dropped == 10
            if isinstance(frame.envelope.body, StepReport):
                received.append(frame.envelope.body)
    assert [report.step for report in received] == list(range(10, HELD_ITEMS + 10))


def test_a_frame_that_cannot_be_sent_is_dropped_and_the_next_listener_is_greeted(bench: Bench) -> None:
    """The loss is counted, and a hello comes before anything else."""
    bench.turn()
    bench.peer.connected = False
    bench.link.record(rows(0))
    assert bench.turn() == []
    bench.peer.connected = True
    bench.link.record(rows(1))
    hello, step = bench.turn(0.1)
    assert isinstance(hello, Hello)
    assert hello.counters["dropped"] == 1
    assert isinstance(step, StepReport)
    assert step.step == 1


def test_closing_greets_a_listener_that_came_at_the_last_moment(bench: Bench) -> None:
    """The hello comes first, then what was held, then the end."""
    bench.peer.connected = False
    bench.link.record(rows(0))
    bench.turn()
    bench.peer.connected = True
    bench.link.publisher.finish()
    assert [type(frame.envelope.body) for frame in bench.peer.taken()] == [Hello, StepReport]
    assert not bench.peer.connected


def test_the_outbox_is_bounded(bench: Bench) -> None:
    """When the publisher does not run, further steps are dropped and counted, and memory stays."""
    for step in range(link_module.OUTBOX_ITEMS + 7):
        bench.link.record(rows(step))
    assert bench.counters()["dropped"] == 7


def test_refused_rows_are_counted_in_the_hello(bench: Bench) -> None:
    """By reason."""
    bench.turn()
    bench.link.record(msgspec.structs.replace(rows(0), drafted=[7], accepted=[0], committed=[1]))
    bench.link.record(msgspec.structs.replace(rows(1), verify_s=float("nan")))
    bench.link.finished(msgspec.structs.replace(REPORT, ttft_s=float("nan")))
    reports = bench.turn(1.0)
    assert [r.decode_requests for r in reports if isinstance(r, StepReport)] == [0]
    assert not [r for r in reports if isinstance(r, RequestReport)]
    counters = bench.turn(1.0)[0].counters
    assert counters["refused.over_commanded"] == 1
    assert counters["refused.step_time"] == 1
    assert counters["refused.request"] == 1
    assert counters["dropped"] == 0


def test_malformed_frames_are_counted_and_nothing_else_happens(bench: Bench) -> None:
    """A valid plan afterwards is adopted."""
    good = codec.encode(b"x", 1, codec.Envelope(1, 1, "s", 0, Lease(plan_id=1)))
    wrong_way = codec.encode(b"x", 1, codec.Envelope(1, 1, "s", 0, HELLO))
    far = codec.encode(b"x", 1, codec.Envelope(9, 1, "s", 0, Lease(plan_id=1)))
    for frames in (good[:2], [good[0], b"1", good[2]], [*good[:2], b"\xc1"], wrong_way, far, []):
        bench.peer.inbox.append(frames)
    bench.peer.deliver(PLAN)
    assert bench.turn()[0] == PlanAck(plan_id=1, applied=True)
    counters = bench.counters()
    assert counters["wire.frame_count"] == 2
    for reason in ("sequence", "not_msgpack", "direction", "schema"):
        assert counters[f"wire.{reason}"] == 1
    assert counters["publisher_errors"] == 0


def test_first_after_switch_is_the_step_after_the_decision_that_switched(bench: Bench) -> None:
    """And no other; a gap in the steps leaves it unsaid."""
    switched = Decision({"chat": 6}, 1, "table", switched=True)
    for step, decision in ((0, None), (1, switched), (2, None), (3, switched), (5, None)):
        bench.link.record(rows(step, decision))
    reports = [r for r in bench.turn() if isinstance(r, StepReport)]
    assert [r.step for r in reports if r.first_after_switch] == [2]


def test_the_guard_hears_what_each_step_brought(bench: Bench) -> None:
    """After 32 barren steps K is the floor; a token lifts it."""
    for step in range(32):
        bench.link.record(rows(step, committed=0))
    assert bench.k() == (0, "guard")
    bench.link.record(rows(32))
    assert bench.k() == (2, "launch")


def test_segments_are_at_most_sixteen_names(bench: Bench) -> None:
    """Known names stay, further ones and unfit ones become unknown and are counted."""
    names = [f"s{i}" for i in range(15)]
    assert [bench.link.segment_of(name, {}) for name in names] == names
    assert bench.link.segment_of("late", {}) == "unknown"
    assert bench.link.segment_of("", {}) == "unknown"
    assert bench.link.segment_of("s3", {}) == "s3"
    assert bench.counters()["refused.segment"] == 1
    fresh = Bench(Path("/nonexistent"))
    assert fresh.link.segment_of("what is this?", {}) == "unknown"
    assert fresh.link.segment_of(None, {}) == "unknown"  # type: ignore[arg-type]
    assert fresh.counters()["refused.segment"] == 1


def test_the_plans_segmenter_is_used(bench: Bench) -> None:
    """Attributes choose a segment when there is no tag."""
    rules = Segmenter(1, (SegmentRule("tenant", "acme", "vip"),))
    bench.peer.deliver(msgspec.structs.replace(PLAN, segmenter=rules))
    bench.turn()
    assert bench.link.segment_of("", {"tenant": "acme"}) == "vip"


def test_a_failing_decision_is_the_launch_setting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised into the decode loop."""

    def boom(*_: object) -> Decision:
        raise RuntimeError("planted")

    monkeypatch.setattr(Executor, "decide", boom)
    monkeypatch.setattr(Executor, "committed", boom)
    assert bench.k() == (2, "error")
    bench.link.record(rows(0))
    assert bench.counters()["hook_errors"] == 2


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads change over as often as they can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("hurried")
def test_a_plan_reaches_two_threads_whole(bench: Bench) -> None:
    """While plans change under it, each decision's K is the K of the plan that it names."""
    enough = threading.Event()

    def publish() -> None:
        plan_id = 0
        while not enough.is_set():
            plan_id += 1
            bench.peer.deliver(constant_plan(DIGEST, HELLO.reachable_k[plan_id % 5], 1, plan_id))
            bench.peer.deliver(Lease(plan_id=plan_id, lease_s=1e6))
            bench.link.publisher.turn()

    thread = threading.Thread(target=publish)
    thread.start()
    seen: set[int] = set()
    while len(seen) < 20:
        decision = bench.link.decide(load())
        if decision.plan_id:
            seen.add(decision.plan_id)
            assert decision.proposal_length["chat"] == HELLO.reachable_k[decision.plan_id % 5]
    enough.set()
    thread.join()
    assert bench.counters()["decisions_after_expiry"] == 0


@pytest.mark.parametrize("engine_id", ["", "../x", "a/b", ".", ".hidden", "a b", "x" * 129, "a\x00"])
def test_an_engine_id_is_a_file_name(engine_id: str, tmp_path: Path) -> None:
    """Anything else is refused before a file is touched."""
    with pytest.raises(ValueError, match="engine_id"):
        Link(engine_id, HELLO, "ipc:///run/x", state_dir=tmp_path)


def test_what_is_handed_over_as_it_is_is_read_on_the_other_thread(tmp_path: Path) -> None:
    """Also while nobody listens: a reader must see every step."""
    seen: list[int] = []

    def read(step: int) -> list[StepRows]:
        seen.append(step)
        return [rows(step)] if step % 2 else []

    bench = Bench(tmp_path, read=read)
    bench.peer.connected = False
    for step in range(4):
        bench.link.hand_over(step)
    assert seen == []
    bench.turn()
    assert seen == [0, 1, 2, 3]
    bench.peer.connected = True
    reports = [body for _ in range(3) for body in bench.turn(0.1) if isinstance(body, StepReport)]
    assert [report.step for report in reports] == [1, 3]


def test_a_reader_that_fails_loses_its_item_and_is_counted(tmp_path: Path) -> None:
    """The link goes on."""

    def read(step: int) -> list[StepRows]:
        return [rows(1 // step)]

    bench = Bench(tmp_path, read=read)
    bench.turn()
    bench.link.hand_over(0)
    bench.link.hand_over(1)
    bodies = bench.turn(0.1)
    assert [body.step for body in bodies if isinstance(body, StepReport)] == [1]
    assert (bench.counters()["dropped"], bench.counters()["publisher_errors"]) == (1, 1)


def test_an_engine_that_stops_following_says_so_at_once(tmp_path: Path) -> None:
    """The sidecar learns why in the next Hello."""
    bench = Bench(tmp_path)
    bench.turn()
    bench.link.stop_following("a surprise")
    (hello,) = [body for body in bench.turn() if isinstance(body, Hello)]
    assert hello.observe_only == "a surprise"
