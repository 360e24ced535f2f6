"""The live part: a sidecar, vLLM launched in every way that is compared, a sweep, then all arms."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from steersman_controller.sidecar.admin import ModeRequest
from steersman_controller.trace.recording import Recording, read_recording
from steersman_policies.messages import Hello
from steersman_simulator.demo.arms import Arm, ArmRun, running_order
from steersman_simulator.demo.live import View
from steersman_simulator.demo.pace import WARM_UP_TOKENS, fly, measure_pace, together
from steersman_simulator.demo.processes import ChildError, Children
from steersman_simulator.demo.schedule import Pace, make_schedule
from steersman_simulator.demo.serving import Stack, start_sidecar
from steersman_simulator.demo.spans import change, cut, fly_arm, set_policy
from steersman_simulator.demo.vllm.launch import (
    OFF,
    STATIC,
    STEERED,
    Launch,
    Servers,
    Table,
    steerable,
    tuned,
)
from steersman_simulator.demo.vllm.program import Program
from steersman_simulator.demo.vllm.split import Split
from steersman_simulator.demo.vllm.sweep import Point, sweep, tuned_table

DEFAULT_ROUNDS = 5

PASSES = 2
"""Through the workload in each arm. A burst ends with a few slow requests alone, faster ones being through:
the shorter the burst, the more of it is that end, which a server under lasting load never sees."""

QUIET_SHARE = 0.11
"""Of the requests, in each quiet phase: a ratio of that phase alone needs some hundred tokens a round."""

SLACK = 1.5
"""K = 4 at every batch drains a burst slowly, and its backlog must not reach the last phase."""

K0 = Arm("k0", "off", engine_id=STEERED)
ARMS = (
    Arm(OFF.engine_id, engine_id=OFF.engine_id),
    K0,
    Arm(STATIC.engine_id, engine_id=STATIC.engine_id),
    Arm("table", engine_id="table"),
    Arm(STEERED, "goodput", engine_id=STEERED),
)


class Workload(Struct, frozen=True):
    """What is served."""

    split: Split
    source: str
    """The file's name, for the report."""


class Settings(Struct, frozen=True):
    """What `steersman demo --vllm` was asked for."""

    program: Program
    workload: Workload
    rounds: int
    folder: Path
    """Exists and is empty."""
    model: str
    """A folder or a hub id."""


class Live(Struct, frozen=True):
    """Everything that was measured."""

    runs: tuple[ArmRun, ...]
    """In time order."""
    pace: Pace
    hellos: dict[str, Hello]
    """By engine."""
    commands: dict[str, Sequence[str]]
    """What was run, by engine."""
    points: tuple[Point, ...]
    table: Table
    """vLLM's own, as the sweep tuned it."""
    recording: Recording


def run_live(settings: Settings, view: View) -> Live:
    """Start everything, sweep, run every arm, stop everything, cut the recording into runs.

    Raises ChildError where a process dies or vLLM does not follow, KeyboardInterrupt on a signal; no
    child is left in any case.
    """
    with tempfile.TemporaryDirectory(prefix="steersman-") as runtime, Children() as children:
        folder = settings.folder
        sidecar = start_sidecar(children, Path(runtime), folder, view)
        servers = Servers(
            settings.program,
            settings.model,
            sidecar=sidecar,
            children=children,
            folder=folder,
            state=Path(runtime),
        )
        stacks = {STEERED: servers.start(steerable(settings.model), view)}
        steered = stacks[STEERED]
        _check_steerable(folder, steered)
        set_policy(steered, K0)
        pace = measure_pace(steered, settings.workload.split.arms, children, view)
        measured = sweep(steered, settings.workload.split.sweep, folder, children, view)
        table = tuned_table(measured, steered.max_batch)
        for launch in (OFF, STATIC, tuned(table)):
            stacks[launch.engine_id] = _unsteered(servers, launch, settings, children, view)
        items = settings.workload.split.arms * PASSES
        schedule = make_schedule(items, pace, quiet_share=QUIET_SHARE, slack=SLACK)
        spans = []
        for number, arm in running_order(settings.rounds, ARMS):
            view.stage(f"round {number} of {settings.rounds}, arm {arm.name}")
            stack = stacks[arm.engine_id]
            set_policy(stack, arm)
            spans.append(fly_arm(stack, arm, number, settings.rounds, schedule, children, view))
        view.stage("stopping all vLLM servers and the sidecar")
    recording = read_recording(folder)
    hellos = {name: hello for name in stacks if (hello := recording.hello(name)) is not None}
    runs = cut(recording, schedule, spans).runs
    return Live(runs, pace, hellos, servers.commands, measured, table, recording)


def _check_steerable(folder: Path, steered: Stack) -> None:
    hello = read_recording(folder).hello(steered.engine_id)
    if hello is None or hello.observe_only:
        reason = hello.observe_only if hello is not None else "it said nothing to the sidecar"
        raise ChildError(f"vLLM does not let itself be steered: {reason}")


def _unsteered(servers: Servers, launch: Launch, settings: Settings, children: Children, view: View) -> Stack:
    """A server that vLLM's own settings rule; warm, since the first request of a server is a slow one."""
    stack = servers.start(launch, view)
    change(stack, ModeRequest(action="pause", engine_id=launch.engine_id), f"pause of {launch.engine_id}")
    items = settings.workload.split.sweep
    full = [items[i % len(items)] for i in range(stack.max_batch)]
    for requests in (together(items[:1], WARM_UP_TOKENS), together(full, WARM_UP_TOKENS)):
        fly(stack, requests, children)
    return stack
