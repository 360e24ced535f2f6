"""`steersman doctor vllm`: whether an engine is steered, and why not."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman_controller.console import examination_lines
from steersman_controller.doctor import Examination
from steersman_controller.findings import Finding, engine_findings
from steersman_controller.look import Look
from steersman_controller.sidecar.admin import Status, StatusRequest
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.desk import answer
from steersman_controller.state_dir import default_state_dir, state_files
from steersman_policies.codec import decode, fingerprint_digest
from steersman_policies.executor import Executor, Load
from steersman_policies.messages import Fingerprint, Hello, Lease, PlanAck, StepReport
from steersman_policies.plan import Plan

Make = Callable[..., Any]
Step = Callable[..., StepReport]
DEADLINE_S = 20.0

VLLM = Hello(
    fingerprint=Fingerprint("vllm", "0.32.0", "smol", "", "", "ngram", "none", "float32", "cpu", "none"),
    k_max=8,
    reachable_k=tuple(range(9)),
    k_floor=0,
    launch_k=2,
    max_batch=16,
    per_request_k=True,
    draft_timing=False,
    confidence=False,
    drafter_state_survives_off=True,
    runner="v1, synchronous, tested",
)
OBSERVED = "method medusa: its proposer is built for one K and crashes when K changes"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that outlast the hiccups of a busy machine."""
    monkeypatch.setenv("STEERSMAN__LEASE_S", "10")


class VllmEngine:
    """Says what vLLM's adapter would say, on a real executor, in a thread."""

    def __init__(self, toy: Any, hello: Hello, step: Step) -> None:
        self.toy, self.hello, self.step = toy, hello, step
        self.executor = Executor(hello, fingerprint_digest(hello.fingerprint))
        self.counters: dict[str, int] = {"dropped": 0, "hook_errors": 0}
        self.segments = {"chat": 2, "code": 1}
        self.refusal = ""
        self.is_busy = self.answers = True
        self.steps = 0
        self.stop = threading.Event()

    def run(self) -> None:
        greeted_s = -1e9
        while not self.stop.is_set():
            if time.monotonic() - greeted_s >= 0.3:
                greeted_s = time.monotonic()
                self.toy.send(msgspec.structs.replace(self.hello, counters=dict(self.counters)))
            while self.toy.socket.poll(10):
                self.obey(decode(self.toy.socket.recv_multipart()).envelope.body)
            if self.is_busy:
                self.take_step()

    def obey(self, record: Any) -> None:
        if isinstance(record, Lease):
            self.executor.renew(record, time.monotonic())
        elif self.refusal:
            self.toy.send(PlanAck(record.plan_id, False, self.refusal))
        elif self.answers:
            self.toy.send(self.executor.adopt(record))

    def take_step(self) -> None:
        self.steps += 1
        load = Load(self.steps, self.segments, 100.0, 0, 0)
        decision = self.executor.decide(load, time.monotonic())
        report = msgspec.structs.replace(
            self.step(self.steps),
            plan_id=decision.plan_id,
            reason=decision.reason,
            commanded=dict(decision.proposal_length),
            would_be=dict(decision.would_be),
        )
        self.toy.send(report)


@pytest.fixture
def vllm(engines: Make, step: Step) -> Make:
    """Runs an engine that calls itself vLLM as long as the block lasts, from when it holds a plan."""

    @contextmanager
    def run(
        process: Any, hello: Hello = VLLM, engine_id: str = "vllm-0", **changes: Any
    ) -> Iterator[VllmEngine]:
        engine = VllmEngine(engines(process.ready["telemetry"], engine_id), hello, step)
        for name, value in changes.items():
            setattr(engine, name, value)
        thread = threading.Thread(target=engine.run)
        thread.start()
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            while not engine.refusal and engine.answers and engine.executor.lease_until_s == 0.0:
                assert time.monotonic() < deadline_s, "no lease ever came"
                time.sleep(0.02)
            yield engine
        finally:
            engine.stop.set()
            thread.join()

    return run


@pytest.fixture
def doctor(run_verb: Make, tmp_path: Path) -> Make:
    """Exit code and findings by check of the real verb; those of the sidecar among them."""

    def run(*args: str, code: int) -> dict[str, dict[str, str]]:
        state_dir = [] if "--state-dir" in args else ["--state-dir", str(tmp_path)]
        result = run_verb("doctor", "vllm", "--json", *state_dir, *args)
        assert result.returncode == code, result.stdout + result.stderr
        assert result.stderr == ""
        found = json.loads(result.stdout)
        assert found["is_well"] == (code == 0)
        return {finding["check"]: finding for finding in found["findings"]}

    return run


def problems(found: dict[str, dict[str, str]]) -> set[str]:
    """The checks that failed; each says what to do."""
    bad = {check for check, finding in found.items() if finding["status"] == "problem"}
    assert all(found[check]["advice"] for check in bad)
    return bad


def test_a_steered_engine_is_well(serve: Make, vllm: Make, run_verb: Make, tmp_path: Path) -> None:
    """Every line is ok, the figures are those of the engine, and the exit code is 0."""
    process = serve("--steer", "--policy", "fixed", "--param", "k=5")
    with vllm(process) as engine:
        table = tmp_path / "vllm-0.fallback.json"
        table.write_bytes(msgspec.json.encode(engine.executor.fallback))
        args = ("doctor", "vllm", "--state-dir", str(tmp_path))
        text = run_verb(*args)
        found = json.loads(run_verb(*args, "--json").stdout)
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.splitlines()[-1] == "no problem"
    checks = {finding["check"]: finding for finding in found["findings"]}
    assert {finding["status"] for finding in found["findings"]} == {"ok"}
    assert checks["version"]["text"] == "vLLM 0.32.0 x v1 synchronous x ngram: tested"
    assert checks["K"]["text"] == "in force: chat 5, code 5"
    assert checks["decision"]["text"].startswith("table: ")
    assert checks["plan"]["text"] == f"in force {engine.executor.plan.plan_id}, newest 1"
    assert str(table) in checks["fallback"]["text"]
    assert checks["policy"]["text"] == "fixed, version 2"
    assert "chat 100%" in checks["segments"]["text"]
    for finding in found["findings"]:
        assert finding["check"] in text.stdout
    assert found["reports_per_s"]["vllm-0"] > 0.0
    [shown] = found["engines"]
    assert 0.0 <= shown["lease_age_s"] < shown["lease_s"] == 10.0
    assert 0 < shown["reports"] <= engine.steps
    assert shown["about"]["reachable_k"] == list(range(9))


def test_shadow_is_a_note_and_shows_what_would_have_been(serve: Make, vllm: Make, doctor: Make) -> None:
    """K in force is the launch setting, K of the plan stands beside it; untested is a note, too."""
    process = serve("--policy", "fixed", "--param", "k=7")
    untested = msgspec.structs.replace(VLLM, runner="v2, async, untested")
    with vllm(process, untested):
        found = doctor(code=0)
    assert found["K"]["text"] == "in force: chat 2, code 2; the plan would have: chat 7, code 7"
    assert found["mode"]["status"] == "note"
    assert "--steer" in found["mode"]["advice"]
    assert found["decision"]["text"].startswith("shadow: ")
    assert found["version"]["status"] == "note"
    assert found["version"]["text"] == "vLLM 0.32.0 x v2 async x ngram: untested"


def test_an_engine_that_only_observes_is_a_problem(
    serve: Make, vllm: Make, doctor: Make, run_verb: Make
) -> None:
    """Its reason is shown, here and in `policy status`; it takes plans all the same."""
    process = serve("--steer", "--policy", "fixed", "--param", "k=7")
    observing = msgspec.structs.replace(VLLM, observe_only=OBSERVED, runner="v1, synchronous, untested")
    with vllm(process, observing):
        found = doctor(code=1)
        status = run_verb("policy", "status").stdout
        pushed = run_verb("policy", "push", "fixed", "--param", "k=6")
    assert problems(found) == {"version"}
    assert f"observe-only ({OBSERVED})" in found["version"]["text"]
    assert found["plan"]["status"] == found["lease"]["status"] == "ok"
    assert found["K"]["text"] == "in force: chat 2, code 2; the plan would have: chat 7, code 7"
    assert f"observe-only, follows no plan: {OBSERVED}" in status
    assert pushed.returncode == 0
    assert "ACK" in pushed.stdout
    assert OBSERVED in pushed.stdout


def test_an_engine_without_speculation_is_no_problem(serve: Make, vllm: Make, doctor: Make) -> None:
    """There is nothing to steer, and that was the operator's choice."""
    fingerprint = msgspec.structs.replace(VLLM.fingerprint, method="none")
    plain = msgspec.structs.replace(
        VLLM,
        fingerprint=fingerprint,
        k_max=0,
        reachable_k=(0,),
        launch_k=0,
        observe_only="launched without speculation",
    )
    with vllm(serve("--steer"), plain):
        found = doctor(code=0)
    assert found["version"]["status"] == "note"
    assert "--speculative-config" in found["version"]["advice"]
    assert found["K"]["text"].startswith("in force: chat 0, code 0")


@pytest.mark.slow
def test_a_paused_engine_is_a_note(
    serve: Make, vllm: Make, doctor: Make, run_verb: Make, tmp_path: Path
) -> None:
    """By the operator's verb and by a file, here or in a folder that the doctor does not know."""
    process = serve("--steer")
    with vllm(process) as engine:
        assert run_verb("pause", "vllm-0").returncode == 0
        found = doctor(code=0)
        assert found["mode"]["text"].startswith("paused by the operator")
        assert "steersman resume vllm-0" in found["mode"]["advice"]
        assert run_verb("resume", "vllm-0").returncode == 0
        engine.executor.paused = True
        assert "not in" in doctor(code=0)["pause file"]["text"]
        (tmp_path / "vllm-0.pause").touch()
        found = doctor(code=0)
    assert found["pause file"]["status"] == "note"
    assert str(tmp_path / "vllm-0.pause") in found["pause file"]["text"]
    assert found["decision"]["text"].startswith("pause: ")


@pytest.mark.slow
def test_an_engine_that_refuses_or_ignores_plans_is_a_problem(serve: Make, vllm: Make, doctor: Make) -> None:
    """Its reason is shown; without an acknowledged plan there is no lease."""
    process = serve("--steer")
    with vllm(process, engine_id="a", refusal="because"), vllm(process, engine_id="b", answers=False):
        time.sleep(3.0)  # until then it may be on its way
        refusing = doctor("--engine", "a", code=1)
        ignoring = doctor("--engine", "b", code=1)
    assert problems(refusing) >= {"plan", "lease"}
    assert refusing["plan"]["text"].endswith(": because")
    assert "not answered" in ignoring["plan"]["text"]
    assert problems(ignoring) >= {"plan", "lease", "decision"}


@pytest.mark.slow
def test_what_grows_during_the_look_is_a_problem(serve: Make, vllm: Make, doctor: Make) -> None:
    """Frames lost, records dropped, rows refused; what happened long ago is a note."""
    process = serve("--steer")
    with vllm(process) as engine:
        engine.counters |= {"dropped": 3, "refused.over_commanded": 2, "refused.segment": 1}
        time.sleep(0.5)
        found = doctor(code=0)
        assert found["telemetry"]["status"] == found["rows"]["status"] == "note"
        assert "over_commanded 2, segment 1" in found["rows"]["text"]
        step = engine.step

        def losing(number: int) -> StepReport:
            engine.toy.sequence += 1
            engine.counters["refused.over_commanded"] += 1
            return step(number)

        engine.step = losing
        assert problems(doctor(code=1)) == {"telemetry", "rows"}


def test_an_idle_engine_is_well(serve: Make, vllm: Make, doctor: Make) -> None:
    """It takes no steps; that is a note that says how to see more."""
    with vllm(serve("--steer"), is_busy=False):
        found = doctor(code=0)
    assert "send it a request" in found["telemetry"]["advice"]
    assert found["K"]["text"] == "no step yet; launch K 2, K_max 8"


@pytest.mark.slow
def test_a_silent_engine_is_a_problem(serve: Make, vllm: Make, doctor: Make) -> None:
    """What depends on hearing it is left out, and it gets no leases."""
    process = serve("--steer")
    with vllm(process):
        pass
    time.sleep(3.2)
    found = doctor(code=1)
    assert problems(found) == {"attached"}
    assert found["attached"]["text"].startswith("silent: ")
    assert "silent engine" in found["lease"]["text"]
    assert not {"telemetry", "decision", "plan"} & set(found)


@pytest.mark.slow
def test_nobody_there_is_a_finding(
    serve: Make, engines: Make, hello: Hello, run_verb: Make, doctor: Make, tmp_path: Path
) -> None:
    """No sidecar, no engine, only others, or not the one asked for: exit code 1 and what to do."""
    assert problems(doctor(code=1)) == {"sidecar"}
    process = serve()
    found = doctor(code=1)
    assert problems(found) == {"engine"}
    assert f"STEERSMAN_SIDECAR={process.ready['telemetry']}" in found["engine"]["advice"]
    toy = engines(process.ready["telemetry"], "gpu0")
    toy.send(hello)
    assert toy.receive(DEADLINE_S) is not None
    result = run_verb("doctor", "vllm")
    assert result.returncode == 1
    assert "problem  engine     no vLLM engine has attached" in result.stdout
    assert "note     engine     not vLLM, not looked at: gpu0 (toy)" in result.stdout
    assert "no vLLM engine: it calls itself 'toy'" in doctor("--engine", "gpu0", code=1)["engine"]["text"]
    assert process.stop() == 0
    assert problems(doctor("--timeout", "0.3", code=1)) == {"sidecar"}


@pytest.mark.slow
def test_other_engines_are_named_and_the_missing_one_is_guessed(
    serve: Make, engines: Make, hello: Hello, vllm: Make, doctor: Make, run_verb: Make
) -> None:
    """An engine of ours beside vLLM is a note; a wrong id is told the nearest one."""
    process = serve("--steer")
    engines(process.ready["telemetry"], "gpu0").send(hello)
    with vllm(process):
        everyone = json.loads(run_verb("doctor", "vllm", "--json").stdout)
        assert [engine["engine_id"] for engine in everyone["engines"]] == ["vllm-0"]
        assert {finding["engine_id"] for finding in everyone["findings"]} == {"", "vllm-0"}
        assert "gpu0 (toy)" in doctor(code=0)["engine"]["text"]
        found = doctor("--engine", "vllm0", code=1)
        assert problems(found) == {"engine"}
        assert "did you mean 'vllm-0'?" in found["engine"]["text"]
        assert "attached" not in found
        assert "engine" not in doctor("--engine", "vllm-0", code=0)


def test_frames_that_the_sidecar_refuses_explain_a_missing_engine(
    serve: Make, engines: Make, doctor: Make
) -> None:
    """An engine of another version never attaches; its frames are counted, and that is shown."""
    process = serve()
    toy = engines(process.ready["telemetry"], "vllm-0")
    toy.send_raw([b"t", b"\0" * 8, msgspec.msgpack.encode([9, 7, "vllm-0", 0, None])])
    deadline_s = time.monotonic() + DEADLINE_S
    while "frames" not in (found := doctor(code=1)):
        assert time.monotonic() < deadline_s
    assert found["frames"]["text"] == "refused: schema 1"
    assert problems(found) == {"engine", "frames"}


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--admin", "nonsense"), "--admin: cannot reach nonsense"),
        (("--state-dir", "/no/such/folder"), "--state-dir: no folder /no/such/folder"),
        (("--timeout", "x"), "'--timeout'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run_verb: Make, args: tuple[str, ...], line: str) -> None:
    """It is no finding about an engine."""
    result = run_verb("doctor", "vllm", *args)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert line in result.stderr


@pytest.fixture
def look(
    config: SidecarConfig, sidecars: Make, engines: Make, step: Step, tmp_path: Path
) -> Callable[..., dict[str, Finding]]:
    """Findings by check of two looks at one engine on a clock of the test, with changes to either look,
    or to what the engine says of itself."""
    one, toy = sidecars(config), engines(config.telemetry, "vllm-0")

    def status() -> Status:
        found = answer(one.sidecar, StatusRequest())
        assert isinstance(found, Status)
        return found

    def take(
        now: dict[str, Any] | None = None, before: dict[str, Any] | None = None, **about: Any
    ) -> dict[str, Finding]:
        toy.send(VLLM)
        one.frames(1)
        digest = fingerprint_digest(VLLM.fingerprint)
        executor = Executor(VLLM, digest)
        for _ in range(90):
            one.now_s += 0.05
            one.sidecar.tick()
            while toy.socket.poll(0):
                record = decode(toy.socket.recv_multipart()).envelope.body
                if isinstance(record, Plan):
                    toy.send(executor.adopt(record))
                    one.frames(1)
            toy.send(VLLM)
            one.frames(1)
        first = status()
        toy.send(step(1))
        one.frames(1)
        second = status()
        says = msgspec.structs.replace(second.engines[0].about, **about)
        engine = msgspec.structs.replace(second.engines[0], about=says, **(now or {}))
        earlier = msgspec.structs.replace(first.engines[0], about=says, **(before or {}))
        files = state_files(tmp_path, "vllm-0", digest)
        found = engine_findings(Look(engine, earlier, 1.0, second, files))
        return {finding.check: finding for finding in found}

    return take


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("table", "ok"),
        ("dwell", "ok"),
        ("explore", "ok"),
        ("deficit", "ok"),
        ("pause", "note"),
        ("lease", "problem"),
        ("launch", "problem"),
        ("guard", "problem"),
        ("error", "problem"),
        ("whim", "note"),
    ],
)
def test_every_reason_of_a_decision_is_explained(look: Make, reason: str, status: str) -> None:
    """What keeps a plan from acting on a steered engine is a problem, but only while steps are taken."""
    found = look({"reason": reason})
    assert found["decision"].status == status
    assert found["decision"].text.startswith(f"{reason}: ")
    assert bool(found["decision"].advice) == (status == "problem")
    idle = look({"reason": reason, "reports": 5}, {"reports": 5})
    assert idle["decision"].status == ("ok" if status == "ok" else "note")


@pytest.mark.parametrize(
    ("counters", "status"),
    [
        ({}, "ok"),
        ({"hook_errors": 0, "leases_refused": 4}, "ok"),
        ({"publisher_errors": 1}, "note"),
        ({"wire.contract": 1}, "note"),
        ({"hook_errors": 1}, "problem"),
        ({"decisions_after_expiry": 1}, "problem"),
    ],
)
def test_errors_inside_the_engine_are_told(look: Make, counters: dict[str, int], status: str) -> None:
    """An error of the hook and a decision without a lease are problems, whenever they happened."""
    assert look(counters=counters)["errors"].status == status


@pytest.mark.parametrize(
    ("newest", "acked", "before", "status"),
    [
        (3, 3, (2, 2), "ok"),
        (3, 2, (2, 2), "note"),
        (4, 2, (3, 2), "problem"),
        (4, 3, (3, 2), "note"),
        (1, None, (1, None), "problem"),
        (None, None, (None, None), "problem"),
    ],
)
def test_a_plan_that_stays_unanswered_is_a_problem(
    look: Make, newest: int | None, acked: int | None, before: Any, status: str
) -> None:
    """One that was made a moment ago is on its way; one that waited through the look is not."""
    earlier = {"plan_id": before[0], "acked_plan_id": before[1]}
    assert look({"plan_id": newest, "acked_plan_id": acked}, earlier)["plan"].status == status


@pytest.mark.parametrize(
    ("age_s", "status"), [(0.05, "ok"), (1.0, "ok"), (1.1, "problem"), (None, "problem")]
)
def test_a_lease_that_does_not_go_out_is_a_problem(look: Make, age_s: float | None, status: str) -> None:
    """Whatever the sidecar believes: an engine without leases falls back."""
    assert look({"lease_age_s": age_s})["lease"].status == status


@pytest.mark.parametrize(
    ("content", "status"), [(None, "note"), (b"{", "problem"), (b"", "problem"), ("other", "note")]
)
def test_a_fallback_table_is_read(look: Make, tmp_path: Path, content: Any, status: str) -> None:
    """One that is absent or of another launch is a note, one that nobody can read a problem."""
    file = tmp_path / "vllm-0.fallback.json"
    if content == "other":
        content = b'{"fingerprint": "0123", "batch_edges": [], "proposal_length": [1]}'
    if content is not None:
        file.write_bytes(content)
    assert look()["fallback"].status == status


def test_attached_counts_from_the_first_hello(look: Make) -> None:
    """Not from the start of the sidecar, and not from the last hello."""
    assert look()["attached"].text == "for 4.5 s, last heard 0.0 s ago; target smol"


def test_an_engine_that_does_not_say_whether_it_is_tested(look: Make) -> None:
    """Nothing is assumed for it."""
    for runner in ("", "v3", "v3, somehow"):
        found = look(runner=runner)["version"]
        assert found.status == "note"
        assert found.text.endswith(": unknown whether tested")


def test_the_default_state_dir_is_the_engines() -> None:
    """In the order in which the adapter looks."""
    assert default_state_dir({"STEERSMAN_STATE_DIR": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert default_state_dir({"XDG_STATE_HOME": "/b"}) == Path("/b/steersman")
    assert default_state_dir({}) == Path.home() / ".local" / "state" / "steersman"


def test_an_engines_own_words_do_nothing_to_a_terminal() -> None:
    """Control characters are replaced, so that a line stays a line."""
    finding = Finding("vllm-0", "version", "problem", "observe-only (\x1b[2Jx\ny)", "look")
    lines = examination_lines(Examination(False, [finding], {}, []))
    assert lines == [
        "engine vllm-0",
        "  problem  version    observe-only (?[2Jx?y)",
        " " * 22 + "-> look",
        "1 problem",
    ]
