"""The fleet: events in any order, from engines that come, go, repeat themselves and come back."""

from pathlib import Path

import msgspec
import pytest

from steersman_controller.events import (
    ControllerConfig,
    ModeSet,
    PolicySet,
    Received,
    Restored,
    Started,
    Ticked,
)
from steersman_controller.fleet import Fleet
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_controller.trace.recording import read_recording
from steersman_policies.messages import Fingerprint, Group, Hello, PlanAck, StepReport

FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "ngram", "none", "float32", "cpu", "eager")
HELLO = Hello(FINGERPRINT, 8, tuple(range(9)), 0, 4, 16, True, True, False, True)


def started(policy: str = "goodput", **params: object) -> Started:
    """A sidecar that steers."""
    return Started(0.0, 1, "0", 1, ControllerConfig(mode="steer", seed=3), policy, params)


def report(step: int) -> StepReport:
    """A step that accepts all it drafted in even steps, and nothing in odd ones."""
    outcomes = ((4, 4 * (step % 2 == 0), 4),)
    return StepReport(
        step=step,
        started_s=step * 0.1,
        draft_s=0.001,
        verify_s=0.05,
        other_s=0.001,
        decode_requests=4,
        prefill_tokens=0,
        target_tokens=20,
        context_tokens=1500,
        drafting_depth=4,
        requests_drafting=4,
        waiting=0,
        kv_used_fraction=0.2,
        committed_tokens=8,
        plan_id=0,
        groups=(Group("code", 0, 4, 4, 4, outcomes),),
    )


class Sender:
    """One engine's side of the stream."""

    def __init__(self, fleet: Fleet, engine_id: str = "e", epoch: int = 5) -> None:
        self.fleet, self.engine_id, self.epoch, self.sequence, self.now_s = fleet, engine_id, epoch, 0, 1.0

    def frame(self, record: Hello | StepReport | PlanAck, *, dropped: int = 0) -> Received:
        """The next frame, not sent yet."""
        self.sequence += 1
        self.now_s += 0.1
        return Received(self.now_s, self.engine_id, self.epoch, self.sequence, dropped, record)

    def send(self, record: Hello | StepReport | PlanAck, *, dropped: int = 0) -> object:
        """Send it."""
        return self.fleet.apply(self.frame(record, dropped=dropped))


def reports(fleet: Fleet, engine_id: str = "e") -> int:
    """Steps that reached the controller."""
    return fleet.controllers[engine_id].counters["reports"]


def test_records_before_hello_are_ignored_and_counted() -> None:
    """Nothing is learned of an engine that has not said what it is."""
    fleet = Fleet(started())
    sender = Sender(fleet)
    assert sender.send(report(1)) is None
    assert fleet.controllers == {}
    assert fleet.before_hello == 1
    assert fleet.tick("e", 1.0) == Ticked(1.0, "e", None)
    sender.send(HELLO)
    sender.send(report(2))
    assert reports(fleet) == 1


def test_loss_and_repetition_are_counted_exactly() -> None:
    """Gaps are lost frames; repeated and late ones are not applied."""
    fleet = Fleet(started())
    sender = Sender(fleet)
    sender.send(HELLO)
    frames = [sender.frame(report(step), dropped=step) for step in range(10)]
    for index in (0, 1, 1, 4, 3, 5, 9):
        fleet.apply(frames[index])
    stream = fleet.streams["e"]
    assert (stream.frames, stream.lost, stream.duplicate) == (6, 5, 2)
    assert stream.dropped_by_engine == 9
    assert reports(fleet) == 5


@pytest.mark.parametrize("damaged", [1 << 52, 5_000], ids=["far", "not so far"])
def test_a_damaged_sequence_number_shuts_nobody_out(damaged: int) -> None:
    """The frame is counted and not applied; those after it are."""
    fleet = Fleet(started())
    sender = Sender(fleet)
    sender.send(HELLO)
    for step in range(60):
        sender.send(report(step))
    frame = sender.frame(report(60))
    fleet.apply(msgspec.structs.replace(frame, sequence=frame.sequence + damaged))
    for step in range(61, 160):
        sender.send(report(step))
    stream = fleet.streams["e"]
    assert reports(fleet) == 159
    assert (stream.far, stream.lost, stream.duplicate) == (1, 1, 0)


def test_a_stream_that_begins_with_a_damaged_number_is_found_again() -> None:
    """Two hellos from behind it say where the engine really is; its other frames until then are left out."""
    fleet = Fleet(started())
    sender = Sender(fleet)
    fleet.apply(msgspec.structs.replace(sender.frame(HELLO), sequence=1 << 52))
    for step in range(10):
        sender.send(report(step))
    assert reports(fleet) == 0
    for _ in range(2):
        sender.send(HELLO)
    for step in range(10, 20):
        sender.send(report(step))
    assert reports(fleet) == 10


def test_a_long_outage_costs_one_frame() -> None:
    """Behind a gap of any length the stream goes on when a second frame follows; loss is counted exactly."""
    fleet = Fleet(started())
    sender = Sender(fleet)
    sender.send(HELLO)
    sender.sequence += 50_000
    for step in range(10):
        sender.send(report(step))
    stream = fleet.streams["e"]
    assert reports(fleet) == 9
    assert (stream.far, stream.lost) == (1, 50_000)


def test_a_new_boot_keeps_belief_and_drops_the_lease() -> None:
    """The same engine booted again goes on with what was learned; late frames of the old boot do nothing."""
    fleet = Fleet(started())
    old = Sender(fleet)
    old.send(HELLO)
    for step in range(100):
        old.send(report(step))
    plan = fleet.tick("e", 50.0).plan
    assert plan is not None
    old.send(PlanAck(plan.plan_id, True))
    controller = fleet.controllers["e"]
    believed = controller.segments()
    assert controller.leased_plan_id == plan.plan_id
    assert old.send(HELLO) is None, "it has the plan"

    new = Sender(fleet, epoch=6)
    assert new.send(report(0)) is None
    assert fleet.before_hello == 1
    assert new.send(HELLO) is plan, "the new boot needs the plan"
    assert fleet.controllers["e"] is controller
    assert controller.segments() == believed
    assert controller.leased_plan_id is None
    before = reports(fleet)
    old.send(report(101))
    assert reports(fleet) == before
    assert fleet.streams["e"].old_epoch == 1


def test_one_false_hello_does_not_shut_an_engine_out() -> None:
    """A boot that says hello after its last frame is alive, whoever spoke in between."""
    fleet = Fleet(started())
    true = Sender(fleet)
    true.send(HELLO)
    true.send(report(0))
    Sender(fleet, epoch=99).send(HELLO)
    true.send(report(1))
    assert reports(fleet) == 1
    true.send(HELLO)
    true.send(report(2))
    assert reports(fleet) == 2
    assert fleet.streams["e"].lost == 1, "the report sent in between"


def test_another_fingerprint_starts_afresh() -> None:
    """A new drafter is a new controller, whose plans are newer than those of the old one."""
    fleet = Fleet(started())
    sender = Sender(fleet)
    sender.send(HELLO)
    for step in range(50):
        sender.send(report(step))
    first = fleet.tick("e", 50.0).plan
    fleet.apply(PolicySet(51.0, "e", "fixed", {"k": 2}))
    changed = msgspec.structs.replace(FINGERPRINT, drafter_version="2")
    old = fleet.controllers["e"]
    sender.send(msgspec.structs.replace(HELLO, fingerprint=changed))
    assert fleet.controllers["e"] is not old
    assert reports(fleet) == 0
    plan = fleet.tick("e", 52.0).plan
    assert first is not None
    assert plan is not None
    assert plan.plan_id > first.plan_id
    assert plan.policy == "fixed", "the operator's choice for this engine stays"


def test_a_wrong_policy_changes_nothing() -> None:
    """A wrong name, parameter, value or engine is refused in one line before anything changes."""
    fleet = Fleet(started())
    Sender(fleet).send(HELLO)
    before = fleet.controllers["e"].snapshot()
    for event, words in (
        (PolicySet(1.0, "e", "godput", {}), "did you mean 'goodput'"),
        (PolicySet(1.0, "e", "fixed", {"kk": 1}), "no parameter 'kk', did you mean 'k'"),
        (PolicySet(1.0, "", "fixed", {"k": 99}), "fixed: k: "),
        (PolicySet(1.0, "ee", "fixed", {}), "engine: no 'ee', did you mean 'e'"),
        (ModeSet(1.0, "x", "shadow"), "engine: no 'x'"),
        (Restored(1.0, "e", b"junk"), "snapshot: damaged"),
        (started(), "found a second start"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            fleet.apply(event)
        assert "\n" not in str(error.value)
        assert fleet.controllers["e"].snapshot() == before
    with pytest.raises(ValueError, match="did you mean 'goodput'"):
        Fleet(started("godput"))


def test_a_choice_for_all_engines_also_holds_for_later_ones() -> None:
    """An event without an engine id reaches those that are there and those that come."""
    fleet = Fleet(started())
    Sender(fleet, "a").send(HELLO)
    fleet.apply(PolicySet(1.0, "", "fixed", {"k": 2}))
    fleet.apply(ModeSet(1.0, "", "shadow"))
    Sender(fleet, "b").send(HELLO)
    for engine_id in ("a", "b"):
        plan = fleet.tick(engine_id, 9.0).plan
        assert plan is not None
        assert (plan.policy, plan.mode, plan.fallback[0]) == ("fixed", "shadow", 2)


def test_a_ticked_event_is_applied_once() -> None:
    """Applying the event that `tick` returned gives its plan and asks nobody again."""
    fleet = Fleet(started())
    Sender(fleet).send(HELLO)
    ticked = fleet.tick("e", 5.0)
    before = fleet.controllers["e"].snapshot()
    assert fleet.apply(ticked) is ticked.plan
    assert fleet.controllers["e"].snapshot() == before


def test_a_journal_replays_to_the_same_plans_and_snapshots() -> None:
    """Events that went through the codec give another fleet the same plans and the same snapshots."""
    fleet = Fleet(started())
    journal: list[Received | Ticked | PolicySet | ModeSet | Restored] = []
    sender = Sender(fleet)
    for step in range(300):
        record = HELLO if step % 50 == 0 else report(step)
        event = sender.frame(record)
        journal.append(event)
        fleet.apply(event)
        journal.append(fleet.tick("e", sender.now_s))
        if step == 120:
            journal.append(PolicySet(sender.now_s, "e", "fixed", {"k": 3}))
            fleet.apply(journal[-1])
        if step == 160:
            journal.append(PolicySet(sender.now_s, "", "goodput", {"explore": 0.1}))
            fleet.apply(journal[-1])
        if step == 200:
            journal.append(Restored(sender.now_s, "e", fleet.controllers["e"].snapshot()))
            fleet.apply(journal[-1])
    assert sum(isinstance(e, Ticked) and e.plan is not None for e in journal) >= 5

    decoder = msgspec.msgpack.Decoder(Received | Ticked | PolicySet | ModeSet | Restored)
    replayed = Fleet(started())
    for event in [decoder.decode(msgspec.msgpack.encode(e)) for e in journal]:
        plan = replayed.apply(event)
        if isinstance(event, Ticked):
            assert plan == event.plan
    assert replayed.controllers["e"].snapshot() == fleet.controllers["e"].snapshot()


def test_shadow_never_sends_a_steering_plan_of_an_earlier_sidecar() -> None:
    """A second hello right after a restore brings no plan: the restored one was made to steer."""
    earlier = Fleet(started())
    earlier.apply(Received(0.0, "e", 9, 0, 0, HELLO))
    earlier.tick("e", 0.1)
    shadow = Fleet(msgspec.structs.replace(started(), config=ControllerConfig(mode="shadow")))
    shadow.apply(Received(1.0, "e", 9, 1, 0, HELLO))
    shadow.apply(Restored(1.0, "e", earlier.controllers["e"].snapshot()))
    assert shadow.apply(Received(1.01, "e", 9, 2, 0, HELLO)) is None


def test_a_recording_reads_the_very_frames_that_were_applied(tmp_path: Path) -> None:
    """Also where a boot was taken for a past one and proved to be alive: one rule serves both."""
    first = started()
    fleet = Fleet(first)
    frames = [
        (9, 0, HELLO),
        (9, 1, report(0)),
        (5, 0, HELLO),
        (9, 2, report(1)),
        (9, 3, HELLO),
        (9, 4, report(2)),
    ]
    events = [Received(float(n), "e", epoch, seq, 0, body) for n, (epoch, seq, body) in enumerate(frames)]
    writer = JournalWriter(tmp_path / "journal.bin")
    for event in (first, *events):
        writer.append(encode_event(event))
    writer.close()
    for event in events:
        fleet.apply(event)
    read = list(read_recording(tmp_path).records("e"))
    assert len(read) == fleet.streams["e"].frames == 5
    assert [event.sequence for event in read] == [0, 1, 0, 3, 4]
