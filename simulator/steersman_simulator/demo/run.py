"""The live part: one engine, one sidecar, all arms through them, everything recorded."""

import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from steersman_controller.events import ControllerConfig, Received
from steersman_controller.sidecar.admin import PolicyRequest, Status
from steersman_controller.sidecar.push import request as push
from steersman_controller.sidecar.push import status
from steersman_controller.trace.recording import Recording, read_recording
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_simulator.demo.arms import ARMS, Arm, ArmRun, TimedStep, running_order
from steersman_simulator.demo.client import Flight, Outcome
from steersman_simulator.demo.live import Progress, View
from steersman_simulator.demo.processes import ChildError, Children
from steersman_simulator.demo.schedule import Pace, Request, Schedule, make_schedule
from steersman_simulator.demo.serving import Stack, start_stack
from steersman_simulator.demo.workload import WorkItem

SETTLE_S = 0.5
"""After each stretch: the last reports arrive, so that every step lies in the window of its arm."""

POLICY_TIMEOUT_S = 15.0
SHOW_INTERVAL_S = 0.25
RATE_WINDOW_S = 3.0
WARM_UP_TOKENS = 8

DEFAULT_ROUNDS = 2
BUDGET_S = 390.0
"""For the arms, where the user names no number of rounds."""

LEAST_GAIN = 4.0
"""A full batch is believed to give at least this many times the tokens per second of one request."""


class Settings(Struct, frozen=True):
    """What `steersman demo` was asked for."""

    items: tuple[WorkItem, ...]
    workload: str
    """The file's name, for the report."""
    rounds: int | None
    """None: as many as fit into `BUDGET_S`, at most `DEFAULT_ROUNDS`."""
    folder: Path
    """Exists and is empty."""
    model: str = ""
    """Empty: the bundled one."""
    arms: tuple[Arm, ...] = ARMS


class Live(Struct, frozen=True):
    """Everything that was measured."""

    runs: tuple[ArmRun, ...]
    """In time order."""
    pace: Pace
    model: str
    hello: Hello
    config: ControllerConfig
    engine_id: str
    requests: dict[str, tuple[RequestReport, ...]]
    """The engine's reports of finished requests, by arm."""
    recording: Recording


class _Span(Struct, frozen=True):
    """One run before its steps are known. Moments on the monotonic clock, shared by all processes."""

    arm: Arm
    round: int
    from_s: float
    to_s: float
    outcomes: tuple[Outcome, ...]


def run_live(settings: Settings, view: View) -> Live:
    """Start both processes, run every arm, stop them, cut the recording into runs.

    Raises ChildError where a process dies or the engine does not follow, KeyboardInterrupt on a
    signal; no child is left in any case.
    """
    with tempfile.TemporaryDirectory(prefix="steersman-") as runtime, Children() as children:
        stack = start_stack(children, Path(runtime), settings.folder, settings.model, view)
        _set_policy(stack, settings.arms[0])
        pace = _measure_pace(stack, settings.items, children, view)
        schedule = make_schedule(settings.items, pace)
        rounds = settings.rounds or _affordable(schedule, pace, len(settings.arms))
        spans = []
        for number, arm in running_order(rounds, settings.arms):
            view.stage(f"round {number} of {rounds}, arm {arm.name}")
            spans.append(_run_arm(stack, arm, number, rounds, schedule, children, view))
        view.stage("stopping engine and sidecar")
    return _cut(settings.folder, stack, schedule, pace, spans)


def _set_policy(stack: Stack, arm: Arm) -> None:
    found = push(stack.admin, PolicyRequest(policy=arm.policy, params=arm.params), POLICY_TIMEOUT_S)
    answers = {engine: answer.reason or answer.result for engine, answer in found.engines.items()}
    if not found.is_done or not answers:
        reason = found.reason or (f"{answers}" if answers else "no engine is connected")
        raise ChildError(f"policy {arm.policy} did not come into force: {reason}")


def _measure_pace(stack: Stack, items: Sequence[WorkItem], children: Children, view: View) -> Pace:
    """Small flights with drafting off: one to warm up, one request alone, two full batches."""
    view.stage("measuring the machine's pace with drafting off")
    batch = stack.max_batch
    _fly(stack, _together(items[:2], WARM_UP_TOKENS), children)
    lone = _fly(stack, _together(items[:1], 2 * WARM_UP_TOKENS), children)[0]
    short, long = (_fly(stack, _together(items[-batch:], tokens), children) for tokens in (1, WARM_UP_TOKENS))
    stack.sleep(SETTLE_S)
    first_s, lone_s = lone.ttft_s or 0.0, lone.tpot_s or 0.0
    short_s, long_s = (max(outcome.last_token_s or 0.0 for outcome in crowd) for crowd in (short, long))
    tokens = max(1, sum(outcome.tokens - 1 for outcome in long))
    # Something else on the machine may have disturbed so short a look; the bounds keep the arms short.
    crowded_first_s = min(short_s / len(short), first_s)
    crowded_s = min(max((long_s - short_s) / tokens, lone_s / batch), lone_s / LEAST_GAIN)
    return Pace(first_s, lone_s, crowded_first_s, crowded_s)


def _affordable(schedule: Schedule, pace: Pace, arms: int) -> int:
    last = schedule.requests[-1]
    arm_s = last.scheduled_s + pace.first_token_s + last.item.max_tokens * pace.lone_token_s
    return max(1, min(DEFAULT_ROUNDS, int(BUDGET_S / (arms * arm_s))))


def _together(items: Sequence[WorkItem], max_tokens: int) -> list[Request]:
    return [
        Request(number, "", 0.0, WorkItem(item.prompt, item.messages, item.segment, None, max_tokens))
        for number, item in enumerate(items)
    ]


def _fly(stack: Stack, requests: Sequence[Request], children: Children) -> list[Outcome]:
    flight = Flight(stack.base_url, stack.model, requests)
    flight.start()
    while not flight.wait(SHOW_INTERVAL_S):
        children.check()
    outcomes = flight.outcomes()
    failed = next((outcome for outcome in outcomes if outcome.error), None)
    if failed is not None:
        raise ChildError(f"the engine refused a warm-up request: {failed.error}")
    return outcomes


def _run_arm(
    stack: Stack,
    arm: Arm,
    number: int,
    rounds: int,
    schedule: Schedule,
    children: Children,
    view: View,
) -> _Span:
    _set_policy(stack, arm)
    flight = Flight(stack.base_url, stack.model, schedule.requests)
    flight.start()
    rate: deque[tuple[float, int]] = deque()
    lengths: dict[str, int] = {}
    while not flight.wait(SHOW_INTERVAL_S):
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
                tokens_per_s=(rate[-1][1] - rate[0][1]) / max(rate[-1][0] - rate[0][0], SHOW_INTERVAL_S),
                proposal_length=lengths,
            )
        )
    to_s = flight.started_at_s + flight.now_s
    stack.sleep(SETTLE_S)
    children.check()  # when the engine dies, its requests end before its exit is seen
    return _Span(arm, number, flight.started_at_s, to_s + SETTLE_S, tuple(flight.outcomes()))


def _lengths(stack: Stack) -> dict[str, int]:
    try:
        found: Status = status(stack.admin, SHOW_INTERVAL_S)
    except ValueError:
        return {}  # a busy machine: the next look will tell
    return dict(found.engines[0].proposal_length) if found.engines else {}


def _cut(folder: Path, stack: Stack, schedule: Schedule, pace: Pace, spans: Sequence[_Span]) -> Live:
    recording = read_recording(folder)
    engine_id = recording.engines[0]
    hello = recording.hello(engine_id)
    assert hello is not None  # nothing is accepted before a hello
    runs = []
    requests: dict[str, tuple[RequestReport, ...]] = {}
    received = list(recording.records(engine_id))
    for span in spans:
        mine = [event for event in received if span.from_s <= event.at_s < span.to_s]
        steps = tuple(_timed(event, span.from_s) for event in mine if isinstance(event.record, StepReport))
        runs.append(ArmRun(span.arm.name, span.round, schedule, span.outcomes, steps))
        finished = tuple(event.record for event in mine if isinstance(event.record, RequestReport))
        requests[span.arm.name] = requests.get(span.arm.name, ()) + finished
    return Live(
        runs=tuple(runs),
        pace=pace,
        model=stack.model,
        hello=hello,
        config=recording.started.config,
        engine_id=engine_id,
        requests=requests,
        recording=recording,
    )


def _timed(event: Received, from_s: float) -> TimedStep:
    assert isinstance(event.record, StepReport)
    return TimedStep(event.at_s - from_s, event.record)
