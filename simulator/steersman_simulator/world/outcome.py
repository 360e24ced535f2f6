"""What happens in a world, and who watches: an observer is told of every finished request and every step."""

from typing import Protocol

from msgspec import Struct

from steersman_controller.events import Event
from steersman_policies.messages import RequestReport, StepReport
from steersman_policies.units import Count
from steersman_simulator.world.requests import Finished


class Served(Struct, frozen=True):
    """A finished request, and every delivery to its client as (moment, tokens)."""

    arm: Count
    report: RequestReport
    deliveries: tuple[tuple[float, int], ...]
    preemptions: Count = 0
    engine: Count = 0


class Step(Struct, frozen=True):
    """A step of a simulated engine."""

    arm: Count
    report: StepReport
    engine: Count = 0


class Rejected(Struct, frozen=True):
    """A request that no engine took, and why."""

    arm: Count
    request: Count
    reason: str


class Outcome(Struct, frozen=True):
    """Everything that happened in a world; `served`, `steps` and `events` only where they were kept."""

    served: tuple[Served, ...]
    running: tuple[int, ...]
    """Ordinals of the requests still in an engine at the end, waiting ones included."""
    steps: tuple[Step, ...]
    spans: tuple[tuple[float, float], ...]
    """Start and end of each arm."""
    events: tuple[Event, ...]
    """What a recorder beside the sidecar would have written."""
    rejected: tuple[Rejected, ...] = ()
    arrived: Count = 0


class Observer(Protocol):
    """Sees a world go by, and decides what is worth its cost."""

    wants_steps: bool
    """Whether step reports are made for it, where no controller needs them."""
    wants_deliveries: bool

    def on_arm(self, arm: int) -> None:
        """The next arm begins."""
        ...

    def on_step(self, engine: int, report: StepReport) -> None:
        """A step is over. Only where `wants_steps`."""
        ...

    def on_request(self, engine: int, done: Finished) -> None:
        """A request has its last token."""
        ...

    def on_reject(self, request: int, reason: str) -> None:
        """No engine took this request."""
        ...


class Collector:
    """Keeps everything, in memory."""

    wants_steps = True
    wants_deliveries = True

    def __init__(self) -> None:
        self.served: list[Served] = []
        self.steps: list[Step] = []
        self._arm = 0

    def on_arm(self, arm: int) -> None:
        """Steps belong to it from now on."""
        self._arm = arm

    def on_step(self, engine: int, report: StepReport) -> None:
        """Keep it."""
        self.steps.append(Step(self._arm, report, engine))

    def on_request(self, engine: int, done: Finished) -> None:
        """Keep it."""
        self.served.append(Served(done.arm, done.report, done.deliveries, done.preemptions, engine))

    def on_reject(self, request: int, reason: str) -> None:
        """The world keeps it itself."""
