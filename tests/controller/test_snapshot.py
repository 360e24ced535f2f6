"""Snapshots: complete, deterministic, and checked before they are believed."""

import msgspec
import pytest

from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig
from steersman_controller.snapshot import Sealed
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import Fingerprint, Group, Hello, StepReport
from steersman_policies.policy import load

FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "ngram", "none", "float32", "cpu", "eager")
HELLO = Hello(FINGERPRINT, 8, tuple(range(9)), 0, 4, 16, True, True, False, True)
DIGEST = fingerprint_digest(FINGERPRINT)


def controller(mode: str = "steer", digest: str = DIGEST, hello: Hello = HELLO) -> Controller:
    """One that knows nothing."""
    config = ControllerConfig(mode=mode, seed=3)  # type: ignore[arg-type]
    return Controller(hello, digest, load("goodput"), config)


def feed(target: Controller, first: int, last: int) -> list[int]:
    """Steps `first` to `last` of one fixed run, planning now and then; the ids of new plans."""
    plans = []
    for step in range(first, last):
        accepted = step % 5
        code = Group("code", step % 3, 2, 4, 2, ((4, accepted, 1), (3, min(accepted, 3), 1)))
        chat = Group("chat", 0, 3, 4 * (step % 2), step % 2, ((4, 0, 1),) if step % 2 else ())
        report = StepReport(
            step=step,
            started_s=step * 0.1,
            draft_s=0.001,
            verify_s=0.05 + 0.001 * (step % 7),
            other_s=0.001,
            decode_requests=5,
            prefill_tokens=40 if step % 9 == 0 else 0,
            target_tokens=20,
            context_tokens=1500,
            drafting_depth=4,
            requests_drafting=5,
            waiting=0,
            kv_used_fraction=0.2,
            committed_tokens=8,
            plan_id=0,
            groups=(code, chat),
        )
        target.observe(report, step * 0.1)
        plan = target.plan(step * 0.1)
        if plan is not None:
            plans.append(plan.plan_id)
    return plans


def test_equal_controllers_give_equal_bytes() -> None:
    """The same records at the same times give the same snapshot."""
    one, other = controller(), controller()
    assert feed(one, 0, 200) == feed(other, 0, 200)
    assert one.snapshot() == other.snapshot()
    feed(one, 200, 201)
    assert one.snapshot() != other.snapshot()


def test_nothing_is_lost() -> None:
    """A restored controller goes on like the one that the snapshot was taken of, bit for bit."""
    one, other = controller(), controller()
    feed(one, 0, 200)
    other.restore(one.snapshot())
    assert other.snapshot() == one.snapshot()
    for target in (one, other):
        target._planned_at_s = 20.0  # a restored one plans at once; let both wait for the same tick
        target._reissue = False
        target._afresh = True  # and decides all cells there
    assert feed(one, 200, 400) == feed(other, 200, 400)
    assert other.snapshot() == one.snapshot()


def test_every_damaged_byte_is_noticed() -> None:
    """A flipped or missing byte gives one clear line, and the controller stays as it was."""
    one, other = controller(), controller()
    feed(one, 0, 50)
    feed(other, 0, 10)
    snapshot, before = one.snapshot(), other.snapshot()
    damaged = [snapshot[:cut] for cut in (0, 1, 20, len(snapshot) - 1)]
    for at in range(0, len(snapshot), 37):
        damaged.append(snapshot[:at] + bytes([snapshot[at] ^ 0x55]) + snapshot[at + 1 :])
    for bad in damaged:
        with pytest.raises(ValueError, match="snapshot: ") as error:
            other.restore(bad)
        assert "\n" not in str(error.value)
        assert other.snapshot() == before


def test_another_engine_is_refused() -> None:
    """A snapshot of another fingerprint, or of another size, is not believed."""
    one = controller()
    feed(one, 0, 50)
    with pytest.raises(ValueError, match="snapshot: of engine"):
        controller(digest="other").restore(one.snapshot())
    smaller = msgspec.structs.replace(HELLO, k_max=4, reachable_k=(0, 4))
    with pytest.raises(ValueError, match="k_max 8, this engine has 4"):
        controller(hello=smaller).restore(one.snapshot())


def test_another_version_is_refused() -> None:
    """A snapshot of a later version names both versions."""
    sealed = msgspec.msgpack.decode(controller().snapshot(), type=Sealed)
    later = msgspec.msgpack.encode(msgspec.structs.replace(sealed, version=99))
    with pytest.raises(ValueError, match="version 99, understood is 4"):
        controller().restore(later)


def test_the_policy_and_a_pause_survive() -> None:
    """A pushed policy comes back; so does a pause; but shadow never turns into steering."""
    one = controller()
    one.set_policy(load("fixed", {"k": 3}), "fixed")
    one.set_mode("shadow")
    other = controller()
    other.restore(one.snapshot())
    assert (other.policy, other.policy_name, other.mode) == (load("fixed", {"k": 3}), "fixed", "shadow")
    watching = controller(mode="shadow")
    watching.restore(controller(mode="steer").snapshot())
    assert watching.mode == "shadow"


def test_the_first_plan_after_a_restart_is_sent() -> None:
    """The new sidecar's engine has no plan: the next one is due at once and newer than any before."""
    one = controller()
    plans = feed(one, 0, 100)
    other = controller()
    other.restore(one.snapshot())
    plan = other.plan(0.0)
    assert plan is not None
    assert plan.plan_id == plans[-1] + 1
