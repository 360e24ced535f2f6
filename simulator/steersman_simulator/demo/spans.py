"""Arms in flight, and how their steps are found afterwards: by engine and by time, in the recording."""

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from steersman_controller.events import Received
from steersman_controller.sidecar.admin import PolicyRequest, Request, Status
from steersman_controller.sidecar.push import request as push
from steersman_controller.sidecar.push import status
from steersman_controller.trace.recording import Recording
from steersman_policies.messages import RequestReport, StepReport
from steersman_simulator.demo.arms import Arm, ArmRun, TimedStep
from steersman_simulator.demo.client import Flight, Outcome
from steersman_simulator.demo.live import Progress, View
from steersman_simulator.demo.processes import ChildError, Children
from steersman_simulator.demo.schedule import Schedule
from steersman_simulator.demo.serving import Stack

SETTLE_S = 0.5
"""After each stretch: the last reports arrive, so that every step lies in the window of its arm."""

CHANGE_TIMEOUT_S = 15.0
LOOK_INTERVAL_S = 0.25
RATE_WINDOW_S = 3.0


class Span(Struct, frozen=True):
    """One run before its steps are known. Moments on the monotonic clock, shared by all processes."""

    arm: str
    round: int
    engine_id: str
    from_s: float
    to_s: float
    outcomes: tuple[Outcome, ...]


class Cut(Struct, frozen=True):
    """What a recording holds of some spans."""

    runs: tuple[ArmRun, ...]
    requests: dict[str, tuple[RequestReport, ...]]
    """The engine's reports of finished requests, by arm."""


def set_policy(stack: Stack, arm: Arm) -> None:
    """Put the arm's policy in force on its engine. Raises ChildError where the engine does not follow."""
    if not arm.policy:
        return
    wanted = PolicyRequest(policy=arm.policy, params=arm.params, engine_id=stack.engine_id)
    change(stack, wanted, f"policy {arm.policy}")


def change(stack: Stack, wanted: Request, what: str) -> None:
    """Ask the sidecar for a change on this engine. Raises ChildError where it does not come into force."""
    found = push(stack.admin, wanted, CHANGE_TIMEOUT_S)
    answers = {engine: answer.reason or answer.result for engine, answer in found.engines.items()}
    if not found.is_done or not answers:
        reason = found.reason or (f"{answers}" if answers else "no engine is connected")
        raise ChildError(f"{what} did not come into force: {reason}")


def fly_arm(
    stack: Stack, arm: Arm, number: int, rounds: int, schedule: Schedule, children: Children, view: View
) -> Span:
    """Serve the schedule once. Raises ChildError where a process dies."""
    flight = Flight(stack.base_url, stack.model, schedule.requests, carrier=stack.carrier)
    flight.start()
    rate: deque[tuple[float, int]] = deque()
    lengths: dict[str, int] = {}
    while not flight.wait(LOOK_INTERVAL_S):
        children.check()
        lengths = _lengths(stack) or lengths
        rate.append((flight.now_s, flight.tokens))
        while rate[0][0] < flight.now_s - RATE_WINDOW_S:
            rate.popleft()
        view.show(
            Progress(
                arm=arm.name,
                round=number,
                rounds=rounds,
                phase=schedule.phase_at(flight.now_s),
                at_s=flight.now_s,
                live_requests=flight.live,
                done=flight.done,
                total=len(schedule.requests),
                tokens_per_s=(rate[-1][1] - rate[0][1]) / max(rate[-1][0] - rate[0][0], LOOK_INTERVAL_S),
                proposal_length=lengths,
            )
        )
    to_s = flight.started_at_s + flight.now_s
    stack.sleep(SETTLE_S)
    children.check()  # when the engine dies, its requests end before its exit is seen
    outcomes = tuple(flight.outcomes())
    return Span(arm.name, number, stack.engine_id, flight.started_at_s, to_s + SETTLE_S, outcomes)


def cut(recording: Recording, schedule: Schedule, spans: Sequence[Span]) -> Cut:
    """The steps and finished requests of each span: those of its engine that arrived within it."""
    received: dict[str, list[Received]] = {span.engine_id: [] for span in spans}
    for event in recording.records():
        if event.engine_id in received:
            received[event.engine_id].append(event)
    runs = []
    requests: dict[str, tuple[RequestReport, ...]] = {}
    for span in spans:
        mine = [event for event in received[span.engine_id] if span.from_s <= event.at_s < span.to_s]
        steps = tuple(
            TimedStep(event.at_s - span.from_s, event.record)
            for event in mine
            if isinstance(event.record, StepReport)
        )
        runs.append(ArmRun(span.arm, span.round, schedule, span.outcomes, steps))
        finished = tuple(event.record for event in mine if isinstance(event.record, RequestReport))
        requests[span.arm] = requests.get(span.arm, ()) + finished
    return Cut(tuple(runs), requests)


def _lengths(stack: Stack) -> dict[str, int]:
    try:
        found: Status = status(stack.admin, LOOK_INTERVAL_S)
    except ValueError:
        return {}  # a busy machine: the next look will tell
    mine = (engine for engine in found.engines if engine.engine_id == stack.engine_id)
    return next((dict(engine.proposal_length) for engine in mine), {})
