"""The sidecar over real sockets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import zmq

from steersman_controller.events import Received, Restored, Started, Ticked
from steersman_controller.fleet import Fleet
from steersman_controller.sidecar import desk
from steersman_controller.sidecar.admin import ModeRequest, PolicyRequest
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.snapshots import Snapshots
from steersman_controller.sidecar.wire import MAX_ENGINES, REFUSALS
from steersman_controller.trace.recorder import Recorder
from steersman_controller.trace.recording import read_recording
from steersman_policies.codec import MAX_FRAME_BYTES, Envelope, WireReason, encode
from steersman_policies.messages import Hello, Lease, StepReport
from steersman_policies.plan import Plan

Make = Callable[..., Any]
Step = Callable[..., StepReport]
DEADLINE_S = 20.0


def test_an_engine_gets_a_plan_and_then_leases_for_it(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """Leases begin when the plan was acknowledged, come every 100 ms and name that plan."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    received = one.ticks(1.0, engine)
    plans = [r for r in received if isinstance(r, Plan)]
    leases = [r for r in received if isinstance(r, Lease)]
    assert received[0] == plans[0]
    assert plans[0].mode == "steer"
    assert {lease.plan_id for lease in leases} == {plans[0].plan_id}
    assert len(leases) == 10
    assert all(lease.lease_s == config.lease_s for lease in leases)


@pytest.mark.parametrize("change", [{"reachable_k": ()}, {"reachable_k": (0, 64)}, {"launch_k": 64}])
def test_a_hello_that_no_policy_could_plan_for_is_refused(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make, change: dict[str, Any]
) -> None:
    """It is counted, nothing is planned for it, and operators are not hindered by it."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(msgspec.structs.replace(hello, **change))
    one.frames(1)
    assert one.value("wire_errors_total", reason="contract") == 1.0
    assert not one.sidecar.fleet.controllers


def test_a_refused_plan_is_never_leased(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """Without an applied plan there is no lease; after a refusal the last applied plan keeps its lease."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.refuse = "no"
    engine.send(hello)
    one.frames(1)
    assert not [r for r in one.ticks(0.6, engine) if isinstance(r, Lease)]
    engine.refuse = ""
    applied = [r for r in one.ticks(0.6, engine) if isinstance(r, Plan)][-1]
    engine.refuse = "no"
    one.sidecar.fleet.controllers["gpu0"].set_mode("shadow")  # asks for another plan
    received = one.ticks(1.0, engine)
    assert [r for r in received if isinstance(r, Plan)]
    assert {r.plan_id for r in received if isinstance(r, Lease)} == {applied.plan_id}


def test_an_unanswered_plan_is_sent_again(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """After a second without an answer the same plan comes again; an answered one does not."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    one.ticks(1.5)
    first, second = engine.receive(1.0), engine.receive(1.0)
    assert isinstance(first, Plan)
    assert second == first
    one.frames(2)
    engine.send(hello)
    one.frames(1)
    assert not [r for r in one.ticks(2.0, engine) if isinstance(r, Plan)]


def test_a_restarted_engine_gets_its_plan_on_its_first_hello(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """The plan in force goes out before any tick, and frames of the old boot are ignored."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    plan = next(r for r in one.ticks(0.5, engine) if isinstance(r, Plan))
    engine.close()
    again = engines(config.telemetry, epoch=8)
    again.send(hello)
    one.frames(1)
    assert again.receive(DEADLINE_S) == plan


def test_a_silent_engine_is_sent_nothing(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """A stopped engine must not wake up to a queue of old leases."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    one.ticks(2.0, engine)
    one.ticks(3.0)
    one.delivered(engine)
    assert one.ticks(2.0, engine) == []
    engine.send(hello)
    one.frames(1)
    assert one.ticks(0.5, engine)


def test_duplicates_and_gaps_are_counted(
    config: SidecarConfig, hello: Hello, step: Step, sidecars: Make, engines: Make
) -> None:
    """A frame that comes twice counts once; missing sequence numbers are counted exactly."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    for sequence in (1, 1, 2, 6, 4):
        engine.send(step(sequence), sequence=sequence, dropped=5)
    one.frames(6)
    one.ticks(1.0)
    assert one.value("frames_total", engine="gpu0", kind="step") == 3
    assert one.value("frames_duplicate_total", engine="gpu0") == 2
    assert one.value("frames_lost_total", engine="gpu0") == 3
    assert one.value("engine_dropped_total", engine="gpu0") == 5
    assert one.sidecar.fleet.controllers["gpu0"].counters["reports"] == 3


def malformed(hello: Hello) -> dict[str, list[bytes]]:
    """One bad message for every reason, `engines` excepted."""
    good = encode(b"t", 0, Envelope(1, 7, "gpu0", 0, hello))
    return {
        "frame_count": good[:2],
        "frame_size": [b"t", good[1], b"\0" * MAX_FRAME_BYTES],
        "sequence": [b"t", b"123", good[2]],
        "schema": encode(b"t", 0, Envelope(9, 7, "gpu0", 0, hello)),
        "not_msgpack": [b"t", good[1], b"\xc1\xff"],
        "contract": [b"t", good[1], msgspec.msgpack.encode([1, 7, "gpu0", 0, ["hello", 5]])],
        "sender": encode(b"t", 0, Envelope(1, 7, "gpu1", 0, hello)),
        "direction": encode(b"t", 0, Envelope(1, 7, "gpu0", 0, Lease(1))),
    }


def test_malformed_frames_are_counted_by_reason_and_the_next_valid_one_counts(
    config: SidecarConfig, hello: Hello, step: Step, sidecars: Make, engines: Make, tmp_path: Path
) -> None:
    """Every reason is met; the controller is as if the bad frames had never been sent."""
    recorder = Recorder(tmp_path / "rec")
    one, engine = sidecars(config, recorder=recorder), engines(config.telemetry)
    bad = malformed(hello)
    assert {*bad, "engines"} == {*REFUSALS} >= {*get_args(WireReason)}
    # The transport itself drops what exceeds its limit and closes the connection, so the size is
    # checked once more with a frame that just passes.
    bad["frame_size"][2] = b"\0" * MAX_FRAME_BYTES
    engine.send(hello)
    one.frames(1)
    before = one.sidecar.fleet.controllers["gpu0"].snapshot()
    sendable = {reason: frames for reason, frames in bad.items() if reason != "frame_size"}
    for frames in sendable.values():
        engine.send_raw(frames)
    one.frames(len(sendable))
    for reason in sendable:
        assert one.value("wire_errors_total", reason=reason) == 1, reason
    assert one.sidecar.fleet.controllers["gpu0"].snapshot() == before
    engine.send(step(1))
    one.frames(1)
    assert one.sidecar.fleet.controllers["gpu0"].snapshot() != before
    one.ticks(1.1)
    assert one.value("frames_total", engine="gpu0", kind="step") == 1
    one.sidecar.close()
    kept = [e for e in read_recording(tmp_path / "rec").events if isinstance(e, Received)]
    assert [type(e.record) for e in kept] == [Hello, StepReport]


def test_an_oversized_frame_costs_its_sender_the_connection_only(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """The transport drops it; another engine goes on, and the sender may come back."""
    one, engine, other = sidecars(config), engines(config.telemetry), engines(config.telemetry, "gpu1")
    other.send(hello)
    one.frames(1)
    engine.send_raw([b"t", b"\0" * 8, b"\0" * (MAX_FRAME_BYTES + 1)])
    other.send(hello)
    one.frames(1)
    engine.send(hello)
    one.frames(1)
    assert set(one.sidecar.fleet.controllers) == {"gpu0", "gpu1"}


def test_the_number_of_engines_is_bounded(config: SidecarConfig, hello: Hello, sidecars: Make) -> None:
    """The engine above the limit is refused and counted; the others stay."""
    one = sidecars(config)
    context = zmq.Context()
    sockets = []
    for number in range(MAX_ENGINES + 1):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, f"e{number}".encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(config.telemetry)
        socket.send_multipart(encode(b"t", 0, Envelope(1, 7, f"e{number}", 0, hello)))
        sockets.append(socket)
    one.frames(MAX_ENGINES + 1)
    assert len(one.sidecar.fleet.controllers) == MAX_ENGINES
    assert one.value("wire_errors_total", reason="engines") == 1
    for socket in sockets:
        socket.close()
    context.term()


def test_what_was_learned_survives_a_restart(
    config: SidecarConfig, hello: Hello, step: Step, sidecars: Make, engines: Make, tmp_path: Path
) -> None:
    """The next sidecar goes on from the snapshot, and its recording says so."""
    one, engine = sidecars(config, snapshots=Snapshots(tmp_path / "state")), engines(config.telemetry)
    engine.send(hello)
    for number in range(1, 30):
        engine.send(step(number))
    one.frames(30)
    learned = one.sidecar.fleet.controllers["gpu0"].segments()
    assert any(belief.segment == "chat" and belief.weight > 0 for belief in learned)
    one.sidecar.close()
    engine.close()
    recorder = Recorder(tmp_path / "rec")
    two = sidecars(config, snapshots=Snapshots(tmp_path / "state"), recorder=recorder)
    again = engines(config.telemetry, epoch=8)
    again.send(hello)
    two.frames(1)
    assert two.sidecar.fleet.controllers["gpu0"].segments() == learned
    two.sidecar.close()
    kinds = [type(event) for event in read_recording(tmp_path / "rec").events]
    assert kinds[1:3] == [Received, Restored]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_corrupt_snapshot_is_refused(
    config: SidecarConfig,
    hello: Hello,
    step: Step,
    sidecars: Make,
    engines: Make,
    tmp_path: Path,
    damage: str,
) -> None:
    """It is counted, learning starts afresh, and the sidecar serves."""
    snapshots = Snapshots(tmp_path / "state")
    one, engine = sidecars(config, snapshots=snapshots), engines(config.telemetry)
    engine.send(hello)
    engine.send(step(1))
    one.frames(2)
    one.sidecar.close()
    engine.close()
    path = snapshots.path("gpu0")
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "flip": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "cut": whole[:middle],
            "empty": b"",
        }[damage]
    )
    two = sidecars(config, snapshots=Snapshots(tmp_path / "state"))
    again = engines(config.telemetry, epoch=8)
    again.send(hello)
    two.frames(1)
    assert two.value("snapshots_refused_total") == 1
    assert two.sidecar.fleet.controllers["gpu0"].counters["reports"] == 0
    assert [r for r in two.ticks(0.5, again) if isinstance(r, Plan)]


def test_a_recording_replays_through_real_sockets(
    config: SidecarConfig, hello: Hello, step: Step, sidecars: Make, engines: Make, tmp_path: Path
) -> None:
    """Fed to another sidecar over sockets, or to a bare fleet, it gives the same plans and snapshots."""
    one = sidecars(config, recorder=Recorder(tmp_path / "rec"))
    engine = engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    for number in range(24):
        for _ in range(10):
            engine.send(step(engine.sequence, accepted=number % 4))
        engine.send(step(0), sequence=engine.sequence - 1)  # a duplicate is part of the record too
        one.frames(11)
        if number % 4 == 3:
            desk.answer(one.sidecar, PolicyRequest(policy="goodput", params={"band": 0.01 * number}))
        if number == 12:
            desk.answer(one.sidecar, ModeRequest(action="pause", engine_id="gpu0"))
        desk.answer(one.sidecar, PolicyRequest(policy="fixed", params={"k": number % 4}))
        one.ticks(0.25, engine)
    one.sidecar.close()
    engine.close()
    recording = read_recording(tmp_path / "rec")
    assert len({plan.plan_id for plan in recording.plans}) >= 20
    expected = one.sidecar.fleet.controllers["gpu0"].snapshot()

    fleet = Fleet(recording.started)
    plans = [fleet.apply(e) for e in recording.events if not isinstance(e, Started)]
    assert [p for p in plans if p is not None] == recording.plans
    assert fleet.controllers["gpu0"].snapshot() == expected

    two = sidecars(config, recorder=Recorder(tmp_path / "again"))
    other = engines(config.telemetry)
    for event in recording.events:
        two.now_s = event.at_s
        if isinstance(event, Received):
            other.send(event.record, sequence=event.sequence, dropped=event.dropped)
            two.frames(1)
        elif isinstance(event, Ticked):
            two.sidecar.plan(event.engine_id)
        elif not isinstance(event, Started):
            two.sidecar.apply(event)
    two.sidecar.close()
    assert two.sidecar.fleet.controllers["gpu0"].snapshot() == expected
    assert list(read_recording(tmp_path / "again").events)[1:] == list(recording.events)[1:]
