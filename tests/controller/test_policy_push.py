"""Operators change a running sidecar."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from steersman_controller.sidecar.admin import (
    Accepted,
    ModeRequest,
    PolicyRequest,
    Rejected,
    Status,
    StatusRequest,
    ask,
)
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.desk import answer
from steersman_policies.codec import fingerprint_digest
from steersman_policies.executor import Executor, Load
from steersman_policies.messages import Hello, Lease
from steersman_policies.plan import Plan
from steersman_policies.policy import available

Make = Callable[..., Any]


@contextmanager
def following(engine: Any, hello: Hello) -> Iterator[list[Plan]]:
    """The engine says hello and answers plans in a thread, as long as the block lasts."""
    plans: list[Plan] = []
    stop = threading.Event()
    engine.send(hello)

    def follow() -> None:
        heard_s = time.monotonic()
        while not stop.is_set():
            record = engine.receive(0.05)
            if isinstance(record, Plan):
                plans.append(record)
            if time.monotonic() - heard_s > 0.5:
                heard_s = time.monotonic()
                engine.send(hello)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield plans
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def met(config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make) -> tuple[Any, Any]:
    """A sidecar and an engine that has acknowledged its first plan."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    one.ticks(0.5, engine)
    assert one.sidecar.fleet.controllers["gpu0"].leased_plan_id is not None
    return one, engine


@pytest.mark.parametrize("name", available())
def test_every_installed_policy_can_be_pushed(met: tuple[Any, Any], name: str) -> None:
    """The very next plan is of that policy, the engine acknowledges it, and metrics show it."""
    one, engine = met
    reply = answer(one.sidecar, PolicyRequest(policy=name))
    assert isinstance(reply, Accepted)
    one.ticks(0.3, engine)
    controller = one.sidecar.fleet.controllers["gpu0"]
    assert controller.leased_plan_id == reply.plan_ids["gpu0"]
    assert controller.plan_in_force.policy == name
    version = controller.plan_in_force.policy_version
    assert one.value("policy_info", engine="gpu0", policy=name, policy_version=version) == 1


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (PolicyRequest(policy="fixd"), ["no 'fixd'", "did you mean 'fixed'?", "installed: "]),
        (PolicyRequest(policy="fixed", params={"kk": 3}), ["no parameter 'kk'", "did you mean 'k'?"]),
        (PolicyRequest(policy="fixed", params={"k": 99}), ["policy fixed: k: ", "<= 64"]),
        (PolicyRequest(policy="fixed", params={"k": "x"}), ["policy fixed: k: "]),
        (PolicyRequest(policy="../../etc/passwd"), ["no '../../etc/passwd'"]),
        (PolicyRequest(policy="fixed", engine_id="gpu1"), ["no 'gpu1'", "did you mean 'gpu0'?"]),
        (ModeRequest(action="pause", engine_id="x"), ["no 'x'", "connected: gpu0"]),
    ],
)
def test_a_wrong_request_changes_nothing(met: tuple[Any, Any], request_: Any, parts: list[str]) -> None:
    """The reason is given; policy, plan, plan id and every learned number stay as they were."""
    one, engine = met
    controller = one.sidecar.fleet.controllers["gpu0"]
    before = (controller.plan_in_force, controller.leased_plan_id, controller.snapshot(), one.sidecar.policy)
    reply = answer(one.sidecar, request_)
    assert isinstance(reply, Rejected)
    for part in parts:
        assert part in reply.reason
    after = (controller.plan_in_force, controller.leased_plan_id, controller.snapshot(), one.sidecar.policy)
    assert after == before
    assert not [r for r in one.ticks(0.3, engine) if isinstance(r, Plan)]


def test_a_policy_that_cannot_plan_is_refused(met: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried before it is put in force, so an engine never loses its last good policy to it."""
    from steersman_policies.zoo import fixed

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    one, _ = met
    monkeypatch.setattr(fixed.Policy, "plan", broken)
    reply = answer(one.sidecar, PolicyRequest(policy="fixed"))
    assert isinstance(reply, Rejected)
    assert "policy fixed: fails for engine gpu0 (ZeroDivisionError)" in reply.reason
    assert one.sidecar.fleet.controllers["gpu0"].policy_name == "goodput"


def test_a_pushed_policy_reaches_later_engines(met: tuple[Any, Any], hello: Hello, engines: Make) -> None:
    """Pushed to all, it also plans for an engine that connects afterwards; pushed to one, it does not."""
    one, _ = met
    answer(one.sidecar, PolicyRequest(policy="off", engine_id="gpu0"))
    answer(one.sidecar, PolicyRequest(policy="fixed", params={"k": 1}))
    late = engines(one.sidecar.config.telemetry, "gpu9")
    late.send(hello)
    one.frames(1)
    plans = [r for r in one.ticks(0.3, late) if isinstance(r, Plan)]
    assert plans[0].policy == "fixed"


def test_pause_puts_the_launch_setting_back_at_once(met: tuple[Any, Any], hello: Hello) -> None:
    """The next plan after `pause` commands launch K, the one after `resume` the policy's K again."""
    one, engine = met
    answer(one.sidecar, PolicyRequest(policy="fixed", params={"k": 4}))
    executor = Executor(hello, fingerprint_digest(hello.fingerprint))
    load = Load(step=1, decode_requests={"chat": 1}, mean_context_tokens=9.0, prefill_tokens=0, waiting=0)

    def commanded() -> int:
        for record in one.delivered(engine):
            if isinstance(record, Plan):
                executor.adopt(record)
            else:
                executor.renew(record, 0.0)
        executor.renew(Lease(executor.plan.plan_id), 0.0)  # type: ignore[union-attr]
        return executor.decide(load, 0.0).proposal_length["chat"]

    assert commanded() == 4
    assert isinstance(answer(one.sidecar, ModeRequest(action="pause", engine_id="gpu0")), Accepted)
    assert commanded() == hello.launch_k
    reply = answer(one.sidecar, ModeRequest(action="resume", engine_id="gpu0"))
    assert isinstance(reply, Accepted)
    assert reply.mode == "steer"
    assert commanded() == 4


def test_resume_never_steers_what_was_started_in_shadow(
    config: SidecarConfig, hello: Hello, sidecars: Make, engines: Make
) -> None:
    """A sidecar that was not allowed to act stays an observer."""
    import msgspec

    controller = msgspec.structs.replace(config.controller, mode="shadow")
    one = sidecars(msgspec.structs.replace(config, controller=controller))
    engine = engines(config.telemetry)
    engine.send(hello)
    one.frames(1)
    one.ticks(0.3, engine)
    reply = answer(one.sidecar, ModeRequest(action="resume"))
    assert isinstance(reply, Accepted)
    assert reply.mode == "shadow"
    assert one.sidecar.fleet.controllers["gpu0"].plan_in_force.mode == "shadow"


def test_push_waits_for_the_engine(serve: Make, engines: Make, hello: Hello, run_verb: Make) -> None:
    """ACK: exit code 0 and the plan id; wrong parameter: NACK and exit code 1, with nothing changed."""
    process = serve("--steer")
    engine = engines(process.ready["telemetry"])
    with following(engine, hello) as plans:
        pushed = run_verb("policy", "push", "fixed", "--param", "k=1", "--json")
        assert pushed.returncode == 0, pushed.stderr
        found = json.loads(pushed.stdout)["engines"]["gpu0"]
        assert found["result"] == "ack"
        assert [p.policy for p in plans if p.plan_id == found["plan_id"]] == ["fixed"]
        wrong = run_verb("policy", "push", "fixed", "--param", "k=one")
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert wrong.stderr.startswith("steersman: NACK: policy fixed: k: ")
        engine.refuse = "because"
        refused = run_verb("policy", "push", "off")
        assert refused.returncode == 1
        assert "engine gpu0: NACK" in refused.stdout
        assert "because" in refused.stdout
        status = json.loads(run_verb("policy", "status", "--json").stdout)
    [shown] = status["engines"]
    assert shown["acked_plan_id"] == found["plan_id"]
    assert shown["refusal"] == "because"


def test_push_does_not_wait_for_ever(serve: Make, engines: Make, hello: Hello, run_verb: Make) -> None:
    """An engine that never answers is named, with exit code 1."""
    process = serve("--steer")
    engine = engines(process.ready["telemetry"])
    engine.send(hello)
    assert engine.socket.poll(20_000)
    pushed = run_verb("policy", "push", "fixed", "--engine", "gpu0", "--timeout", "0.5", "--json")
    assert pushed.returncode == 1
    assert json.loads(pushed.stdout)["engines"]["gpu0"]["result"] == "timeout"


def test_no_sidecar_is_one_clear_line(run_verb: Make, tmp_path: Any) -> None:
    """The endpoint is named; exit code 2."""
    result = run_verb("policy", "status", "--timeout", "0.3", "--admin", "tcp://127.0.0.1:9")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "no sidecar answers at tcp://127.0.0.1:9" in result.stderr
    default = run_verb("pause", "--all")
    assert (default.returncode, default.stderr.count("\n")) == (2, 1)
    assert f"no sidecar at ipc://{tmp_path}/steersman/admin.ipc" in default.stderr


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'{"type":"nonsense"}', b'{"type":"status","x":1}', b"\xff"]
)
def test_a_malformed_request_is_answered_and_forgotten(
    config: SidecarConfig, sidecars: Make, payload: bytes
) -> None:
    """The sidecar says what was wrong and serves the next operator."""
    one = sidecars(config)
    context = zmq.Context()
    socket = context.socket(zmq.REQ)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(config.admin)
    for request in (payload, b'{"type":"status"}'):
        socket.send(request)
        for _ in range(200):
            one.sidecar.poll(0.05)
            if socket.poll(0):
                break
        reply = json.loads(socket.recv(zmq.NOBLOCK))
        assert reply["type"] == ("rejected" if request is payload else "status")
    socket.close()
    context.term()


def test_status_is_typed(serve: Make) -> None:
    """What a client decodes is the `Status` of this version."""
    process = serve()
    found = ask(process.ready["admin"], StatusRequest(), 10.0)
    assert isinstance(found, Status)
    assert (found.pid, found.epoch, found.engines) == (process.process.pid, process.ready["epoch"], [])
