"""One recorded stream, two ways to the same controller: the ZeroMQ server and the virtual clock."""

from pathlib import Path

import msgspec
import pytest
import simpy
import zmq

from steersman_controller.belief.prior import CostPrior, Prior
from steersman_controller.events import ControllerConfig, Event, PolicySet, Received, Started, Ticked
from steersman_controller.sidecar.config import PolicyChoice, SidecarConfig
from steersman_controller.sidecar.metrics import Metrics
from steersman_controller.sidecar.server import Sidecar
from steersman_controller.trace.recording import read_recording
from steersman_policies.codec import SCHEMA, Envelope, decode, encode
from steersman_policies.messages import StepReport
from steersman_policies.plan import Plan
from steersman_policies.segmenter import Segmenter, SegmentRule
from steersman_simulator.replay.events import replay

POLLS = 50
RULES = Segmenter(version=1, rules=(SegmentRule("tenant", "acme", "code"),))


class Engines:
    """The engines of a recording, as real sockets."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.context = zmq.Context()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.plans: list[Plan] = []
        """Every plan that arrived, in order of its first arrival."""

    def send(self, event: Received) -> None:
        envelope = Envelope(SCHEMA, event.epoch, event.engine_id, event.dropped, event.record)
        self._socket(event.engine_id).send_multipart(encode(b"telemetry", event.sequence, envelope))

    def receive(self, timeout_ms: int = 0) -> None:
        for socket in self.sockets.values():
            while socket.poll(timeout_ms):
                body = decode(socket.recv_multipart()).envelope.body
                if isinstance(body, Plan) and body not in self.plans:
                    self.plans.append(body)
                timeout_ms = 0

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close(0)
        self.context.term()

    def _socket(self, engine_id: str) -> "zmq.Socket[bytes]":
        if engine_id not in self.sockets:
            socket = self.context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, engine_id.encode())
            socket.connect(self.endpoint)
            self.sockets[engine_id] = socket
        return self.sockets[engine_id]


def through_server(events: list[Event], folder: Path) -> tuple[list[Plan], dict[str, bytes]]:
    """Plans that arrived at the engines' sockets, and the snapshots of the server's controllers."""
    first = events[0]
    assert isinstance(first, Started)
    now_s = first.at_s
    config = SidecarConfig(
        telemetry=f"ipc://{folder}/telemetry",
        admin=f"ipc://{folder}/admin",
        metrics_port=0,
        policy=PolicyChoice(first.policy, first.params),
        controller=first.config,
    )
    sidecar = Sidecar(
        config,
        clock=lambda: now_s,
        epoch=first.epoch,
        version=first.version,
        metrics=Metrics(first.version, lambda: 0.0),
        priors=first.priors,
    )
    engines = Engines(config.telemetry)
    try:
        for event in events[1:]:
            now_s = event.at_s
            match event:
                case Received():
                    engines.send(event)
                    assert any(sidecar.poll(1.0) for _ in range(POLLS)), "the frame did not arrive"
                case Ticked():
                    if event.engine_id in sidecar.peers:
                        sidecar.plan(event.engine_id)
                        engines.receive()
                case _:
                    sidecar.apply(event)
        engines.receive(timeout_ms=500)
        snapshots = {name: c.snapshot() for name, c in sorted(sidecar.fleet.controllers.items())}
        return engines.plans, snapshots
    finally:
        engines.close()
        sidecar.close()


def through_simulator(events: list[Event]) -> tuple[list[Plan], dict[str, bytes]]:
    return replay(events, simpy.Environment(initial_time=events[0].at_s))


def assert_parity(events: list[Event], folder: Path) -> list[Plan]:
    """The plans, which are equal to the byte both ways, as are the snapshots."""
    served, served_snapshots = through_server(events, folder)
    replayed, replayed_snapshots = through_simulator(events)
    assert [msgspec.msgpack.encode(plan) for plan in served] == [
        msgspec.msgpack.encode(plan) for plan in replayed
    ]
    assert served_snapshots == replayed_snapshots
    return replayed


@pytest.fixture(scope="module")
def stream(experiment) -> list[Event]:
    """A simulated sidecar's events under three policies, on a clock that does not start at 0."""
    config = ControllerConfig(seed=3, segmenter=RULES)
    events = list(experiment(60, config=config).events)
    return [msgspec.structs.replace(event, at_s=event.at_s + 1234.5) for event in events]


@pytest.fixture(scope="module")
def replayed(stream) -> tuple[list[Plan], dict[str, bytes]]:
    return through_simulator(stream)


def test_server_and_simulator_plan_alike(stream, replayed, tmp_path):
    """At least 20 distinct plans and the snapshots are equal, byte for byte."""
    plans = assert_parity(stream, tmp_path)
    assert any(replayed[1].values())
    tables = {msgspec.msgpack.encode(msgspec.structs.replace(plan, plan_id=0)) for plan in plans}
    assert len(tables) >= 20
    assert all(plan.segmenter == RULES for plan in plans)
    assert any(isinstance(event, PolicySet) for event in stream)


def test_a_replay_makes_the_plans_of_the_run_itself(stream, replayed):
    """What the world's own controller planned is planned again."""
    recorded = [event.plan for event in stream if isinstance(event, Ticked) and event.plan is not None]
    assert replayed[0] == recorded


PRIOR = Prior(
    "a bundle",
    cost=CostPrior((1, 8, 9, 200), (0.03, 0.05, 0.07, 0.5), 2e-6, 0.0, (0.0, 2e-4, 0.0, 1e-4)),
    acceptance={"edit": (0.9, 0.95), "chat": (0.3, 0.2)},
    coverage={"edit": 0.9},
)


def test_a_prior_reaches_both_alike(stream, replayed, tmp_path):
    """A sidecar and a simulator that began with the same prior plan alike, and not as without it."""
    first = msgspec.structs.replace(stream[0], priors=(PRIOR,))
    assert assert_parity([first, *stream[1:]], tmp_path) != replayed[0]


def test_one_missing_report_is_noticed(stream, replayed):
    """Parity is no accident: without one step report, plans or snapshots differ."""
    steps = [e for e in stream if isinstance(e, Received) and isinstance(e.record, StepReport)]
    missing = steps[len(steps) // 2]
    without = [event for event in stream if event is not missing]
    assert through_simulator(without) != replayed


def test_a_given_recording_has_parity(request, tmp_path):
    """The same holds for the recording named by `--recording PATH`."""
    path = request.config.getoption("--recording")
    if path is None:
        pytest.skip("no --recording PATH given")
    assert_parity(list(read_recording(Path(path)).events), tmp_path)


def test_a_stream_without_a_start_is_refused(stream):
    """A replay needs to know how the sidecar was configured."""
    with pytest.raises(ValueError, match="begins with"):
        through_simulator(stream[1:])
