"""The live part: one engine, one sidecar, all arms through them, everything recorded."""

import tempfile
from pathlib import Path

from msgspec import Struct

from steersman_controller.events import ControllerConfig
from steersman_controller.trace.recording import Recording, read_recording
from steersman_policies.messages import Hello, RequestReport
from steersman_simulator.demo.arms import ARMS, Arm, ArmRun, running_order
from steersman_simulator.demo.live import View
from steersman_simulator.demo.pace import measure_pace
from steersman_simulator.demo.processes import Children
from steersman_simulator.demo.schedule import Pace, Schedule, make_schedule
from steersman_simulator.demo.serving import start_stack
from steersman_simulator.demo.spans import cut, fly_arm, set_policy
from steersman_simulator.demo.workload import WorkItem

DEFAULT_ROUNDS = 2
BUDGET_S = 390.0
"""For the arms, where the user names no number of rounds."""


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


def run_live(settings: Settings, view: View) -> Live:
    """Start both processes, run every arm, stop them, cut the recording into runs.

    Raises ChildError where a process dies or the engine does not follow, KeyboardInterrupt on a
    signal; no child is left in any case.
    """
    with tempfile.TemporaryDirectory(prefix="steersman-") as runtime, Children() as children:
        stack = start_stack(children, Path(runtime), settings.folder, settings.model, view)
        set_policy(stack, settings.arms[0])
        pace = measure_pace(stack, settings.items, children, view)
        schedule = make_schedule(settings.items, pace)
        rounds = settings.rounds or _affordable(schedule, pace, len(settings.arms))
        spans = []
        for number, arm in running_order(rounds, settings.arms):
            view.stage(f"round {number} of {rounds}, arm {arm.name}")
            set_policy(stack, arm)
            spans.append(fly_arm(stack, arm, number, rounds, schedule, children, view))
        view.stage("stopping engine and sidecar")
    recording = read_recording(settings.folder)
    hello = recording.hello(stack.engine_id)
    assert hello is not None  # nothing is accepted before a hello
    found = cut(recording, schedule, spans)
    return Live(
        runs=found.runs,
        pace=pace,
        model=stack.model,
        hello=hello,
        config=recording.started.config,
        engine_id=stack.engine_id,
        requests=found.requests,
        recording=recording,
    )


def _affordable(schedule: Schedule, pace: Pace, arms: int) -> int:
    last = schedule.requests[-1]
    arm_s = last.scheduled_s + pace.first_token_s + last.item.max_tokens * pace.lone_token_s
    return max(1, min(DEFAULT_ROUNDS, int(BUDGET_S / (arms * arm_s))))
