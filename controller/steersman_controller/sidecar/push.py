"""An operator's side of a change: ask for it, then wait until every engine has answered."""

import time
from typing import Literal

from msgspec import Struct

from steersman_controller.sidecar.admin import (
    Accepted,
    EngineStatus,
    NoSidecar,
    Rejected,
    Request,
    Status,
    StatusRequest,
    ask,
)

POLL_INTERVAL_S = 0.1


class Answer(Struct, frozen=True):
    """What one engine did with the plan that carries the change."""

    result: Literal["ack", "nack", "timeout"]
    plan_id: int
    reason: str = ""


class Outcome(Struct, frozen=True):
    """What became of a request. With `reason` set nothing was changed anywhere."""

    accepted: bool
    mode: str
    engines: dict[str, Answer]
    reason: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the sidecar and every engine agreed."""
        return self.accepted and all(answer.result == "ack" for answer in self.engines.values())


def status(endpoint: str, timeout_s: float) -> Status:
    """The sidecar's status. Raises `NoSidecar` where none answers."""
    reply = ask(endpoint, StatusRequest(), timeout_s)
    if not isinstance(reply, Status):
        raise NoSidecar(f"--admin: {endpoint} answers like no sidecar of this version")
    return reply


def request(endpoint: str, wanted: Request, timeout_s: float) -> Outcome:
    """Send a change and wait for the engines. Raises ValueError where no sidecar answers."""
    deadline_s = time.monotonic() + timeout_s
    reply = ask(endpoint, wanted, timeout_s)
    if isinstance(reply, Rejected):
        return Outcome(False, "", {}, reply.reason)
    if not isinstance(reply, Accepted):
        raise ValueError(f"--admin: {endpoint} answers like no sidecar of this version")
    answers: dict[str, Answer] = {}
    while True:
        for engine in status(endpoint, timeout_s).engines:
            wanted_id = reply.plan_ids.get(engine.engine_id)
            if wanted_id is not None:
                answers[engine.engine_id] = _answer(engine, wanted_id)
        waiting = [a for a in answers.values() if a.result == "timeout"]
        if not waiting or time.monotonic() >= deadline_s:
            return Outcome(True, reply.mode, answers)
        time.sleep(POLL_INTERVAL_S)


def _answer(engine: EngineStatus, plan_id: int) -> Answer:
    if engine.acked_plan_id is not None and engine.acked_plan_id >= plan_id:
        return Answer("ack", engine.acked_plan_id, _unmoved(engine))
    if engine.refused_plan_id is not None and engine.refused_plan_id >= plan_id:
        return Answer("nack", engine.refused_plan_id, engine.refusal)
    return Answer("timeout", plan_id, f"no answer; last heard {engine.silent_s:.1f} s ago")


def _unmoved(engine: EngineStatus) -> str:
    """What an operator must know of an engine that takes plans and does not act on them."""
    reason = engine.about.observe_only
    return f"observe-only, so K stays as it is ({reason})" if reason else ""
