"""The benchmark of the vLLM adapter measures what it says, and fails where the adapter is at fault."""

import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from link_world import HELLO

from steersman_controller.events import Event, Received, Ticked
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_engine.adapters.vllm.steps import StepReader
from steersman_engine.bench.driven import SEGMENTS
from steersman_engine.bench.expiry import FALLBACK_K, PLAN_K, Judge
from steersman_engine.bench.vllm import outside, run, virtual
from steersman_engine.bench.vllm.policy import NAME, OTHERS, Policy
from steersman_engine.bench.vllm.ratio import ratio
from steersman_engine.bench.vllm.sidecars import Frame, Sidecars, read_journal
from steersman_engine.bench.vllm.spec import Sizes
from steersman_engine.bench.vllm.stopwatch import LOOP_US, Stopwatch, hooked, idle, looping
from steersman_engine.bench.vllm.watch import Account, Watch, Wire, account, total
from steersman_engine.bench.vllm.worker import Driven, Worker
from steersman_engine.link import Link
from steersman_policies.conformance import checks, example_views
from steersman_policies.executor import Executor
from steersman_policies.messages import Lease

HOOK = {"p50": 20.0, "p99": 100.0, "steps": 500}
TELEMETRY = {"produced": 9, "received": 6, "lost": 2, "dropped": 1, "unaccounted": 0, "gaps": 1}
KILLS = {
    "decisions_after_expiry": 0,
    "without_fallback": 0,
    "without_return": 0,
    "over_k": 0,
    "telemetry": TELEMETRY,
}
MODE = {
    "hook_us": dict.fromkeys(run.STATES, HOOK),
    "errors": 0,
    "refused": {},
    "virtual": {**KILLS, "reports_wrong": 0},
}
GOOD: dict[str, Any] = run.arranged(
    {"synchronous": {**MODE, "difference": {"fraction": 0.001}}, "asynchronous": MODE},
    {
        "vllm_version": "0",
        "hook_us": {**HOOK, **dict.fromkeys(run.STATES, HOOK)},
        "throughput": {"ratio": 0.999},
        "speed": {state: {"high": 1.0} for state in run.STATES[1:]},
        "requests": {"run": 100, "lost": 0, "changed": 0},
        "kills": KILLS,
        "errors": 0,
        "refused": {},
    },
)


class Scheduler:
    """As much of vLLM's scheduler as the hook looks at; it calls the hook as the adapter does."""

    def __init__(self) -> None:
        self._hook: Any = None
        self.requests: dict[str, Any] = {}
        self._inflight_prefills: set[Any] = set()
        self.get_kv_cache_usage = lambda: 0.1
        self._made = 0

    @property
    def running(self) -> list[Any]:
        return list(self.requests.values())

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.requests), 0

    def fill(self, number: int) -> None:
        for request in self.running:
            self._hook.ended(self.requests.pop(request.request_id))
        for index in range(number):
            self._made += 1
            request = SimpleNamespace(
                request_id=f"r{self._made}",
                arrival_time=time.time(),
                num_prompt_tokens=8,
                prompt_token_ids=[1] * 8,
                max_tokens=16,
                num_output_tokens=0,
                num_computed_tokens=0,
                lora_request=None,
                sampling_params=SimpleNamespace(
                    extra_args={"steersman_segment": SEGMENTS[index]},
                    temperature=0.0,
                    structured_outputs=None,
                ),
                get_finished_reason=lambda: "abort",
                resumable=False,
                spec_token_ids=[],
            )
            self.requests[request.request_id] = request
            self._hook.admitted(request)

    def schedule(self) -> Any:
        self._hook.begin()
        new = [r for r in self.running if not r.num_output_tokens]
        old = [r for r in self.running if r.num_output_tokens]
        output = SimpleNamespace(
            num_scheduled_tokens={
                **{r.request_id: 1 + len(r.spec_token_ids) for r in old},
                **{r.request_id: 8 for r in new},
            },
            scheduled_spec_decode_tokens={r.request_id: r.spec_token_ids for r in old if r.spec_token_ids},
            num_invalid_spec_tokens=None,
            preempted_req_ids=None,
            num_spec_tokens_to_schedule=3,
            scheduled_new_reqs=[SimpleNamespace(req_id=r.request_id) for r in new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[r.request_id for r in old],
                resumed_req_ids=set(),
                num_computed_tokens=[r.num_computed_tokens for r in old],
                num_output_tokens=[r.num_output_tokens for r in old],
            ),
        )
        self._hook.choose(self, output)
        return output

    def update_from_output(self, output: Any, result: Any) -> None:
        step = self._hook.returned(self, output, result)
        for request_id, tokens in zip(output.num_scheduled_tokens, result.sampled_token_ids, strict=True):
            self.requests[request_id].num_output_tokens += len(tokens)
            self.requests[request_id].num_computed_tokens += len(tokens)
        if step is not None:
            self._hook.processed(self, step)

    def update_draft_token_ids(self, drafts: Any) -> None:
        for request_id, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            self.requests[request_id].spec_token_ids = tokens
        self._hook.drafted(drafts)
        self._hook.limit()


def trials(folder: Path, number: int = 5) -> virtual.Trials:
    scheduler, worker = Scheduler(), Worker(random.Random(2))
    driven = Driven(
        scheduler,
        worker,
        is_async=False,
        work=lambda: None,
        sampled=lambda ids, tokens: SimpleNamespace(
            req_id_to_index={request_id: at for at, request_id in enumerate(ids)}, sampled_token_ids=tokens
        ),
        drafted=lambda ids, drafts: SimpleNamespace(req_ids=ids, draft_token_ids=drafts),
    )

    def fill(requests: int) -> None:
        scheduler.fill(requests)
        worker.forget()

    hello = msgspec.structs.replace(HELLO, reachable_k=(0, 1, 2, 3, 4, 6))
    return virtual.virtual_trials(
        number, random.Random(5), folder, driven, hello=hello, clamp=True, fill=fill
    )


def test_kills_on_a_virtual_clock_are_survived_and_every_record_is_accounted_for(tmp_path: Path) -> None:
    """Fallback, successor's plan, gaps and reports are all as they should be."""
    found = trials(tmp_path)
    assert found.kills == 5
    assert (found.decisions_after_expiry, found.without_fallback, found.without_return) == (0, 0, 0)
    assert (found.over_k, found.reports_wrong, found.telemetry.unaccounted) == (0, 0, 0)
    assert found.reports > 100
    assert found.telemetry.lost > 0
    assert found.telemetry.dropped > 0


def test_an_adapter_that_ignores_the_lease_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the drafts that it still asks for."""

    def renew(executor: Executor, lease: Lease, now_s: float) -> bool:
        executor.lease_until_s = math.inf
        return True

    monkeypatch.setattr(Executor, "renew", renew)
    found = trials(tmp_path, 3)
    assert found.decisions_after_expiry > 0
    assert found.without_fallback == 3


def test_an_adapter_that_never_returns_to_a_plan_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of a successor that are refused leave the fallback's drafts."""
    monkeypatch.setattr(Executor, "forget", lambda self: setattr(self, "renew", lambda lease, now_s: False))
    assert trials(tmp_path, 2).without_return == 2


def test_telemetry_that_vanishes_uncounted_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped by the link without a word."""
    hand_over, seen = Link.hand_over, iter(range(10**6))
    monkeypatch.setattr(
        Link,
        "hand_over",
        lambda self, *item, **how: None if next(seen) % 50 == 9 else hand_over(self, *item, **how),
    )
    assert trials(tmp_path, 2).telemetry.unaccounted > 0


def test_reports_that_do_not_say_what_happened_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draft is called accepted."""
    row = StepReader._row

    def flattering(self: StepReader, columns: Any, request: Any, *more: Any) -> None:
        row(self, columns, request, *more)
        columns.accepted[-1] = columns.drafted[-1]

    monkeypatch.setattr(StepReader, "_row", flattering)
    assert trials(tmp_path, 2).reports_wrong > 0


def test_drafts_longer_than_told_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that drafts one token too many."""
    draft = Worker.draft
    monkeypatch.setattr(
        Worker, "draft", lambda self, output: [[*d, 5] if d else d for d in draft(self, output)]
    )
    assert trials(tmp_path, 1).over_k > 0


def test_worker_and_reports_agree_about_an_empty_step() -> None:
    """Nothing is sampled, drafted or noted for nobody."""
    worker = Worker(random.Random(1))
    worker.outcomes = []
    output = SimpleNamespace(
        num_scheduled_tokens={}, scheduled_spec_decode_tokens={}, num_spec_tokens_to_schedule=4
    )
    assert (worker.sample(output), worker.draft(output), worker.outcomes) == ([], [], [])


def test_a_worker_drafts_at_most_what_it_is_told_and_what_a_request_yields() -> None:
    """So that steered and unsteered steps can have the same work."""
    worker = Worker(random.Random(1), miss=0.0)
    worker.longest["short"] = 2
    output = SimpleNamespace(
        num_scheduled_tokens={"short": 1, "long": 1},
        scheduled_spec_decode_tokens={"long": [5] * 4},
        num_spec_tokens_to_schedule=4,
    )
    assert list(map(len, worker.draft(output))) == [2, 4]
    assert all(1 <= len(tokens) <= limit for tokens, limit in zip(worker.sample(output), (1, 5), strict=True))


def test_the_watch_reads_the_plan_off_the_drafts_of_the_next_step() -> None:
    """It trusts neither the decision nor its reason."""
    now_s = [10.0]
    hook = SimpleNamespace(choose=lambda scheduler, output: None)
    watch = Watch(hook, lambda: 9.5, lambda: now_s[0])
    watch.judge = judge = Judge(1.0)

    def step(drafted: int, told: int) -> None:
        drafts = {"a": [5] * drafted} if drafted else {}
        hook.choose(
            None,
            SimpleNamespace(
                num_scheduled_tokens={"a": 1},
                scheduled_spec_decode_tokens=drafts,
                num_spec_tokens_to_schedule=told,
            ),
        )

    step(0, PLAN_K)
    step(3, PLAN_K)  # a drafter that found less
    assert (watch.drafted_k, judge.followed, watch.over_k) == (PLAN_K, True, 0)
    now_s[0] = 10.6
    step(PLAN_K, PLAN_K)
    step(PLAN_K, FALLBACK_K)
    step(FALLBACK_K + 1, FALLBACK_K)
    assert watch.over_k == 1
    assert judge.verdict(0).decisions_after_expiry == 2
    assert watch.steps == 5


def test_frames_are_counted_by_kind_where_the_network_took_them() -> None:
    """An acknowledgement counts as produced also where it did not."""
    taken = iter([True, False, False])
    transport = SimpleNamespace(send=lambda frames: next(taken), receive=lambda: [b"lease", b"", b""])
    wire = Wire(transport, lambda: 7.0)
    for kind in (b"hello", b"hello", b"ack"):
        transport.send([kind, b"", b""])
    assert (wire.sent["hello"], wire.sent["ack"], wire.acks) == (1, 0, 1)
    assert wire.lease_read_s is None
    transport.receive()
    assert wire.lease_read_s == 7.0


def frames(*sequences: int) -> list[Frame]:
    return [Frame(sequence, "step") for sequence in sequences]


def test_what_is_missing_in_the_sequence_is_lost_and_the_rest_must_balance() -> None:
    """Also a record that was counted twice is noticed, and one engine cannot make up for another."""
    assert account(8, frames(0, 1, 4, 6), dropped=1) == Account(8, 4, 3, 1, 0, 2)
    assert account(9, frames(0, 1, 4, 6), dropped=1).unaccounted == 1
    assert account(4, frames(0, 1, 1, 2), dropped=0).unaccounted == 1
    both = total([account(5, frames(0), dropped=0), account(1, frames(0, 1), dropped=0)])
    assert both.unaccounted == 5


def test_a_torn_recording_yields_the_frames_before_the_tear(tmp_path: Path) -> None:
    """Read without the sidecar's own reader, from a file that the sidecar's own writer made."""
    report = Received(1.0, "e", 1, 3, 0, HELLO)
    events: list[Event] = [Ticked(0.5, "e", None), report, Received(2.0, "e", 1, 5, 0, HELLO)]
    journal = JournalWriter(tmp_path / "journal.bin")
    for event in events:
        journal.append(encode_event(event))
    journal.close()
    whole = (tmp_path / "journal.bin").read_bytes()
    assert list(read_journal(tmp_path / "journal.bin")) == [Frame(3, "hello"), Frame(5, "hello")]
    (tmp_path / "torn").write_bytes(whole[:-3])
    assert list(read_journal(tmp_path / "torn")) == [Frame(3, "hello")]
    assert list(read_journal(tmp_path / "none")) == []
    (tmp_path / "other").write_bytes(b"something else altogether")
    with pytest.raises(RuntimeError, match="no recording"):
        list(read_journal(tmp_path / "other"))


class Methods:
    """A hook whose methods take known times on a clock that the test moves."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def begin(self) -> None:
        self.clock.now_s += 1e-6

    def choose(self, scheduler: Any, output: Any) -> None:
        self.clock.now_s += 10e-6

    def returned(self, output: Any) -> int:
        self.clock.now_s += 3e-6
        return 7

    def _inner(self) -> None:
        self.clock.now_s += 1.0


def test_a_step_is_all_that_a_hook_takes_until_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the methods return comes through; the step that is not over yet is left out."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    hook = Methods(clock)
    stopwatch = Stopwatch(hook)
    stopwatch.restart()
    for _ in range(3):
        hook.begin()
        clock.now_s += 0.5  # vLLM's own work
        hook.choose(None, None)
        assert hook.returned(None) == 7
    found = hooked(stopwatch.taken())
    assert (found.p50, found.p99, found.steps) == (14.0, 14.0, 2)
    assert stopwatch.by_method_us() == {"begin": 1.0, "choose": 10.0, "returned": 3.0}


def test_an_idle_hook_has_every_method_and_does_nothing() -> None:
    """It is what the measuring itself takes."""
    hook = idle(Methods(SimpleNamespace(now_s=0.0)))
    Stopwatch(hook)
    hook.begin()
    hook.choose(None, None)
    assert hook.returned(None) == ()


def test_a_looping_hook_takes_what_the_machine_makes_of_a_fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many readings of the clock as fit into it."""
    clock = SimpleNamespace(now_s=0.0)

    def read() -> float:
        clock.now_s += 0.1e-6
        return float(clock.now_s)

    monkeypatch.setattr(time, "perf_counter", read)
    hook = looping(Methods(clock))
    began_s = clock.now_s
    hook.choose(None, None)
    assert clock.now_s - began_s == pytest.approx(LOOP_US * 1e-6, rel=0.05)
    assert hook.begin() == ()


def test_speeds_are_compared_pair_by_pair() -> None:
    """A drift that hits both arms alike cancels out, and the interval is the sign test's."""
    base = [1.0 + 0.1 * n for n in range(10)]
    found = ratio([2 * seconds for seconds in base], base)
    assert (found.ratio, found.low, found.high, found.pairs) == (0.5, 0.5, 0.5, 10)
    mixed = ratio([1.0] * 6, [0.9, 1.0, 1.1, 1.2, 1.3, 1.4])
    assert (mixed.low, mixed.high) == (0.9, 1.4)


def test_the_benchmarks_policy_tells_plan_from_fallback_and_segments_from_each_other() -> None:
    """And it holds the contract of every policy."""
    policy = Policy(k=4, other_k=2, fallback_k=0)
    for view in example_views():
        for _, check in checks(policy):
            check(view)
        ks = view.hello.reachable_k
        k, other_k, fallback_k = (
            max((k for k in ks if k <= wanted), default=min(ks)) for wanted in (4, 2, 0)
        )
        plan, _ = policy.plan(view, {}, 0.5)
        assert {plan.proposal_length[name][0][0] for name in OTHERS} == {other_k}
        assert plan.proposal_length["unknown"][0][0] == k
        assert set(plan.fallback) == {fallback_k}


def test_a_sidecar_finds_the_benchmarks_policy_and_no_setting_of_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed for the benchmark's own sidecars only."""
    monkeypatch.setenv("STEERSMAN_ENGINE_ID", "other")
    environment = outside._sidecar_environment(tmp_path)
    assert "STEERSMAN_ENGINE_ID" not in environment
    ask = "from steersman_policies.policy import load; print(load('bench_vllm', {'k': '3'}))"
    words = [sys.executable, "-c", ask]
    shown = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "Policy(k=3, other_k=8, fallback_k=8)"
    assert NAME not in subprocess.run(words, capture_output=True, text=True, check=False).stdout


def test_a_sidecar_that_ends_by_itself_is_said(tmp_path: Path) -> None:
    """With its last words; and one that gives no lease, too."""
    words = [sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)"]
    sidecars = Sidecars(words, dict(os.environ), tmp_path)
    sidecars.steer(1, 1, 1)
    assert sidecars._process is not None
    sidecars._process.wait()
    with pytest.raises(RuntimeError, match="code 3: no such thing"):
        sidecars.check(math.inf)
    sidecars.kill()
    with pytest.raises(RuntimeError, match="no lease within"):
        sidecars.check(-math.inf)


def test_a_sidecar_in_shadow_is_started_without_the_word_that_makes_it_steer(tmp_path: Path) -> None:
    """Everything else stays."""
    say = "import sys; print(sys.argv[1:])"
    sidecars = Sidecars([sys.executable, "-c", say, "serve", "--steer"], dict(os.environ), tmp_path)
    sidecars.shadow()
    assert sidecars._process is not None
    sidecars._process.wait()
    assert sidecars.log.read_text().startswith("['serve', '--record'")


def test_without_vllm_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter, a wrong one, and one for which vLLM is not installed."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^--vllm-python: no .venv-vllm/bin/python here"):
        outside.find_python(None)
    with pytest.raises(ValueError, match=r"^--vllm-python: nowhere does not exist"):
        outside.find_python(Path("nowhere"))
    sizes = Sizes(part="driven", requests=1, groups=1, kills=1)
    with pytest.raises(RuntimeError, match=r"^inside vLLM: ModuleNotFoundError: No module named 'vllm'$"):
        outside.run_part(Path(sys.executable), tmp_path, tmp_path, sizes, 0, print)


def test_an_interpreter_that_fails_is_said(tmp_path: Path) -> None:
    """With its last words."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such thing\nexit 3\n")
    python.chmod(0o755)
    sizes = Sizes(part="live", requests=1, groups=1, kills=1)
    with pytest.raises(RuntimeError, match="code 3: no such thing"):
        outside.run_part(python, tmp_path, tmp_path, sizes, 0, print)


def test_good_figures_pass() -> None:
    """And are one JSON object with the names that were promised."""
    assert run.verdict(GOOD) == {"passed": True, "missed": []}
    found = json.loads(json.dumps(GOOD))
    assert {"hook_us", "throughput_ratio", "step_difference_fraction", "decisions_after_expiry"} <= set(found)
    assert {"p50", "p99"} <= set(found["hook_us"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hook_us.alive.p50", 30.1),
        ("hook_us.stopped.p50", math.nan),
        ("hook_us.restarted.p99", 150.1),
        ("driven.synchronous.hook_us.killed.p50", 35.1),
        ("driven.asynchronous.hook_us.alive.p50", 35.1),
        ("step_difference_fraction", 0.0051),
        ("throughput_ratio", 0.989),
        ("live.speed.killed.high", 0.98),
        ("decisions_after_expiry", 1),
        ("live.requests.lost", 1),
        ("live.kills.without_return", 1),
        ("live.kills.telemetry.unaccounted", -1),
        ("live.errors", 1),
        ("driven.synchronous.virtual.without_fallback", 1),
        ("driven.asynchronous.virtual.over_k", 1),
        ("driven.asynchronous.virtual.telemetry.unaccounted", 1),
        ("driven.synchronous.virtual.reports_wrong", 1),
        ("driven.synchronous.refused", {"refused.over_commanded": 2}),
    ],
)
def test_every_mark_counts(path: str, value: Any) -> None:
    """One miss is enough, and it is named."""
    result = json.loads(json.dumps(GOOD))
    *folders, name = path.split(".")
    place = result
    for folder in folders:
        place = place[folder]
    assert name in place
    place[name] = value
    verdict = run.verdict(result)
    assert not verdict["passed"]
    assert len(verdict["missed"]) == 1
    assert name in verdict["missed"][0]
