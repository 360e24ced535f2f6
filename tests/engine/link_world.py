"""A link whose time and peer are in the test's hands, shared by the tests of the link."""

from pathlib import Path
from typing import Any

from steersman_engine.bench.stand_in import constant_plan
from steersman_engine.bench.virtual import VirtualClock, VirtualTransport
from steersman_engine.link import Link
from steersman_engine.rows import StepRows
from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import Decision, Load
from steersman_policies.messages import Fingerprint, Hello, RequestReport

FINGERPRINT = Fingerprint("e", "1", "target", "lookup", "1", "ngram", "none", "float32", "cpu", "eager")
DIGEST = fingerprint_digest(FINGERPRINT)
HELLO = Hello(FINGERPRINT, 6, (0, 1, 2, 3, 6), 0, 2, 64, True, True, False, False)
PLAN = constant_plan(DIGEST, plan_k=6, fallback_k=1)
REPORT = RequestReport(0, "chat", 0.0, 5, 5, 0.0, 0.1, 0.01, 0.2, 3, 4, 2, "length")


def load(step: int = 0) -> Load:
    return Load(step=step, decode_requests={"chat": 2}, mean_context_tokens=9.0, prefill_tokens=0, waiting=0)


def rows(step: int, decision: Decision | None = None, committed: int = 3) -> StepRows:
    return StepRows(
        step=step,
        started_s=step * 0.01,
        draft_s=0.001,
        verify_s=0.005,
        other_s=0.001,
        segments=["chat"],
        context_tokens=[9],
        commanded_k=[6],
        drafted=[4],
        accepted=[2],
        committed=[committed],
        not_drafted=[""],
        prefill_tokens=0,
        first_tokens=0,
        requests_drafting=1,
        waiting=0,
        kv_used_fraction=0.1,
        decision=decision or Decision({"chat": 6}, 1, "table", False),
    )


class Bench:
    """A link whose time and peer are in the test's hands."""

    def __init__(self, state_dir: Path, **change: Any) -> None:
        self.clock = VirtualClock(100.0)
        self.peer = VirtualTransport(self.clock)
        self.link = Link(
            "engine-1",
            HELLO,
            "",
            state_dir=state_dir,
            clock=self.clock,
            transport=self.peer,
            epoch=5,
            **change,
        )

    def turn(self, after_s: float = 0.0) -> list[Any]:
        self.clock.now_s += after_s
        self.link.publisher.turn()
        return [frame.envelope.body for frame in self.peer.taken()]

    def k(self) -> tuple[int, str]:
        decision = self.link.decide(load())
        return decision.proposal_length["chat"], decision.reason

    def counters(self) -> dict[str, int]:
        return self.link.publisher.all_counters()
