"""A recording cut where the policy changed, so that what is fitted and what is scored stay apart."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from steersman_controller.events import Event, PolicySet, Received, Started
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_policies.policy import did_you_mean


class Window(Struct, frozen=True):
    """What one engine did under one policy, between two changes of it."""

    policy: str
    params: dict[str, Any]
    from_s: float
    to_s: float
    steps: tuple[StepReport, ...]
    requests: tuple[RequestReport, ...]

    @property
    def label(self) -> str:
        """The policy and its parameters, as one word."""
        params = ",".join(f"{key}={value}" for key, value in sorted(self.params.items()))
        return f"{self.policy}({params})" if params else self.policy


class EngineTrace(Struct, frozen=True):
    """All of one engine in a recording."""

    engine_id: str
    hello: Hello
    windows: tuple[Window, ...]

    def under(self, policies: Sequence[str]) -> tuple[Window, ...]:
        """The windows of these policies; all of them for an empty list.

        Raises ValueError for a policy that the recording does not hold.
        """
        held = sorted({window.policy for window in self.windows})
        for policy in policies:
            if policy not in held:
                hint = did_you_mean(policy, held)
                raise ValueError(f"trace: no steps under policy {policy!r}{hint}; held: {', '.join(held)}")
        return tuple(w for w in self.windows if not policies or w.policy in policies)

    @property
    def steps(self) -> tuple[StepReport, ...]:
        """Steps of all windows, in order."""
        return tuple(step for window in self.windows for step in window.steps)

    @property
    def requests(self) -> tuple[RequestReport, ...]:
        """Requests of all windows, in order."""
        return tuple(request for window in self.windows for request in window.requests)


def engine_trace(events: Iterable[Event], engine_id: str = "") -> EngineTrace:
    """The trace of one engine: the one named, or the first that reported a step.

    A window without steps is left out. Raises ValueError where the engine reported none.
    """
    cutter: _Cutter | None = None
    started: list[Event] = []
    held: dict[str, None] = {}
    for event in events:
        if cutter is None:
            started.append(event)
            if isinstance(event, Received) and _is_wanted(event, ""):
                held[event.engine_id] = None
            if isinstance(event, Received) and _is_wanted(event, engine_id):
                cutter = _Cutter(event.engine_id)
                for earlier in started:
                    cutter.add(earlier)
        else:
            cutter.add(event)
    if cutter is None or cutter.hello is None:
        if not held:
            raise ValueError("trace: no step of any engine")
        hint = did_you_mean(engine_id, held)
        raise ValueError(f"trace: no step of engine {engine_id!r}{hint}; held: {', '.join(held)}")
    cutter.cut()
    return EngineTrace(cutter.engine_id, cutter.hello, tuple(cutter.windows))


def _is_wanted(event: Received, engine_id: str) -> bool:
    return isinstance(event.record, StepReport) and engine_id in {"", event.engine_id}


class _Cutter:
    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id
        self.hello: Hello | None = None
        self.windows: list[Window] = []
        self._policy, self._params = "", dict[str, Any]()
        self._from_s = self._now_s = 0.0
        self._steps: list[StepReport] = []
        self._requests: list[RequestReport] = []

    def add(self, event: Event) -> None:
        self._now_s = event.at_s
        match event:
            case Started(policy=policy, params=params):
                self._open(policy, params)
            case PolicySet(policy=policy, params=params, engine_id=to):
                if to in {"", self.engine_id}:
                    self._open(policy, params)
            case Received(engine_id=sender, record=record) if sender == self.engine_id:
                self._take(record)

    def cut(self) -> None:
        if self._steps:
            steps, requests = tuple(self._steps), tuple(self._requests)
            window = Window(self._policy, self._params, self._from_s, self._now_s, steps, requests)
            self.windows.append(window)
        self._steps, self._requests = [], []

    def _open(self, policy: str, params: dict[str, Any]) -> None:
        if (policy, params) != (self._policy, self._params):
            self.cut()
            self._policy, self._params, self._from_s = policy, params, self._now_s

    def _take(self, record: object) -> None:
        if isinstance(record, Hello):
            self.hello = record
        elif isinstance(record, StepReport):
            self._steps.append(record)
        elif isinstance(record, RequestReport):
            self._requests.append(record)
