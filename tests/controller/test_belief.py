"""The belief as a whole: a function of the sane reports, and of nothing else."""

import math
import random
from collections.abc import Callable

import msgspec
import pytest
import traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman_controller.belief.arrays import Counts
from steersman_controller.belief.belief import FOLD_AT, Belief
from steersman_controller.belief.columns import Columns, columns
from steersman_controller.belief.evidence import Evidence
from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import StepReport
from steersman_policies.policy import load

Fault = Callable[[StepReport], StepReport]


def controller() -> Controller:
    config = ControllerConfig(mode="steer", seed=3)
    return Controller(traffic.HELLO, fingerprint_digest(traffic.FINGERPRINT), load("goodput", {}), config)


def busy(steps: int, seed: int = 1, *, segments: int = 6) -> list[StepReport]:
    """Traffic with all that makes a belief work: crowds of segments, gaps, prefill, changes, pauses."""
    chance, out, now_s = random.Random(seed), [], 1.0
    for step in range(steps):
        alpha = 0.9 if (step // 400) % 2 else 0.3
        groups = []
        for index in chance.sample(range(segments), 3):
            k = chance.choice((0, 2, 4, 8))
            accepted = [next((n for n in range(k) if chance.random() >= alpha), k) for _ in range(3)]
            groups.append(
                traffic.group(f"s{index}", k, accepted, bucket=index % 5, undrafted=chance.randrange(2))
            )
        slow = 3.0 if step > steps // 2 else 1.0
        one = traffic.report(
            step,
            groups,
            verify_s=slow * 0.005 * chance.lognormvariate(0.0, 0.1),
            prefill_tokens=chance.choice((0, 0, 0, 100)),
            warm_up=step < 3,
            preemption=chance.random() < 0.05,
            first_after_switch=chance.random() < 0.05,
        )
        now_s += one.busy_s + chance.choice((0.0, 0.0, 0.001, 200.0 * (chance.random() < 0.02)))
        out.append(msgspec.structs.replace(one, started_s=now_s))
    return out


def told(reports: list[StepReport], asked_after: set[int] = frozenset()) -> Controller:  # type: ignore[assignment]
    """A controller that was told these reports, and asked for its belief after some of them."""
    one = controller()
    for index, report in enumerate(reports):
        one.observe(report, report.started_s + report.busy_s)
        if index in asked_after:
            one.belief.fold()
    return one


LONG = busy(1500, segments=40)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 1500), st.sets(st.integers(0, 1499), max_size=60))
def test_when_it_is_asked_makes_no_difference(steps: int, asked_after: set[int]) -> None:
    """Snapshots are equal to the byte wherever the reports were folded, through alarms and full houses."""
    assert told(LONG[:steps], asked_after).snapshot() == told(LONG[:steps]).snapshot()


def test_the_long_traffic_exercises_everything() -> None:
    """Otherwise the test above would say little: there are alarms of both kinds, and segments come and go."""
    one = told(LONG)
    assert {"acceptance", "cost"} <= set(one.belief.alarms)
    assert len(one.segments()) == 16
    assert one.belief.load.state.folded > 0
    assert one.belief.load.state.anchor_s > 100.0


def test_a_sum_that_knows_about_chunks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sums by chunk instead of one term after the other, equality is lost."""
    add = Evidence.add

    def by_chunk(self: Evidence, chunk: Columns, rows: Counts) -> None:
        before = self.state.sums.copy()
        self.state.sums[:] = 0.0
        add(self, chunk, rows)
        self.state.sums += before

    monkeypatch.setattr(Evidence, "add", by_chunk)
    assert told(LONG[:600], set(range(0, 600, 7))).snapshot() != told(LONG[:600]).snapshot()


def test_a_snapshot_in_the_middle_of_a_block_goes_on_alike() -> None:
    """What was restored learns the rest like the one that never stopped."""
    first, second = told(LONG[:333]), controller()
    second.restore(first.snapshot())
    for report in LONG[333:700]:
        for one in (first, second):
            one.belief.observe(report)
    assert msgspec.json.encode(first.segments()) == msgspec.json.encode(second.segments())
    assert first.belief.cost.compile(0.0) == second.belief.cost.compile(0.0)


def test_reports_wait_for_nobody() -> None:
    """At most so many wait; memory does not grow while no plan is asked for."""
    belief = Belief(traffic.HELLO)
    for report in LONG:
        belief.observe(report)
        assert len(belief._waiting) < FOLD_AT


def with_group(**more: object) -> Fault:
    """The report with its first group changed."""

    def change(report: StepReport) -> StepReport:
        first = msgspec.structs.replace(report.groups[0], **more)
        return msgspec.structs.replace(report, groups=(first, *report.groups[1:]))

    return change


def with_fields(**more: object) -> Fault:
    return lambda report: msgspec.structs.replace(report, **more)


def ahead(by_s: float) -> Fault:
    """More accepted than drafted, in a step that starts too early."""
    lie = with_group(commanded_k=4, requests=1, requests_drafted=1, outcomes=((3, 4, 1),))
    return lambda report: msgspec.structs.replace(lie(report), started_s=report.started_s + by_s)


POISON: dict[str, Fault] = {
    "verify NaN": with_fields(verify_s=math.nan),
    "draft infinite": with_fields(draft_s=math.inf),
    "other negative": with_fields(other_s=-0.001),
    "start NaN": with_fields(started_s=math.nan),
    "start negative": with_fields(started_s=-1.0),
    "context NaN": with_fields(context_tokens=math.nan),
    "tokens negative": with_fields(target_tokens=-4),
    "committed negative": with_fields(committed_tokens=-1),
    "accepted beyond drafted": with_group(
        commanded_k=4, requests=1, requests_drafted=1, outcomes=((3, 4, 1),)
    ),
    "drafted beyond the command": with_group(
        commanded_k=2, requests=1, requests_drafted=1, outcomes=((3, 1, 1),)
    ),
    "command beyond K_max": with_group(
        commanded_k=60, requests=1, requests_drafted=1, outcomes=((60, 1, 1),)
    ),
    "more drafted than there": with_group(
        commanded_k=4, requests=1, requests_drafted=2, outcomes=((3, 1, 2),)
    ),
    "a lie a little ahead of its time": ahead(0.09),
    "a lie ahead of its time": ahead(3.0),
    "outcomes do not add up": with_group(
        commanded_k=4, requests=3, requests_drafted=3, outcomes=((3, 1, 2),)
    ),
    "negative outcome": with_group(commanded_k=4, requests=3, requests_drafted=-1, outcomes=((3, 1, -1),)),
    "NaN outcome": with_group(commanded_k=4, requests=3, requests_drafted=1, outcomes=((3, math.nan, 1),)),
    "more left out than there": with_group(
        commanded_k=4, requests=1, requests_drafted=0, outcomes=(), not_drafted={"invalid_state": 9}
    ),
    "more in groups than in the batch": with_fields(decode_requests=0),
    "more drafted than in the forward": with_fields(target_tokens=1),
    "more in the forward than anybody asked for": with_fields(target_tokens=10**12),
    "a prompt that nobody has": with_fields(prefill_tokens=10**12, target_tokens=10**12),
    "a context that nobody has": with_fields(context_tokens=2**40),
    "more committed than possible": with_fields(committed_tokens=10**9),
    "hardly any time": with_fields(draft_s=0.0, verify_s=1e-320, other_s=0.0),
    "no time": with_fields(draft_s=0.0, verify_s=0.0, other_s=0.0),
    "deeper than K_max": with_fields(drafting_depth=60),
    "no such context": with_group(context_bucket=9),
    "unknown segment in it": with_group(
        segment="evil", commanded_k=4, requests=1, requests_drafted=1, outcomes=((3, 4, 1),)
    ),
    "clock set back": lambda report: msgspec.structs.replace(report, started_s=report.started_s - 90.0),
    "clock set ahead": lambda report: msgspec.structs.replace(report, started_s=report.started_s + 9e5),
}


def estimators(one: Controller) -> bytes:
    """Everything learned, as bytes; the counters are meant to differ."""
    one.counted()
    one.counters.clear()
    return one.snapshot()


CLEAN = [report for report in busy(301, seed=3) if report.started_s < 1e5]


@pytest.mark.parametrize("name", POISON)
def test_poison_teaches_nothing(name: str) -> None:
    """A refused report is counted and leaves every estimator bit-identical; the next valid one moves it."""
    clean, poisoned = controller(), controller()
    for index, report in enumerate(CLEAN[:300]):
        now_s = report.started_s + report.busy_s
        if index % 10 == 5:
            poisoned.observe(POISON[name](report), now_s)
        for one in (clean, poisoned):
            one.observe(report, now_s)
    assert poisoned.counted()["reports_refused"] == 30
    assert poisoned.counters["clock_steps"] == 0
    assert estimators(poisoned) == estimators(clean)
    last = CLEAN[300]
    before = estimators(poisoned)
    poisoned.observe(last, last.started_s + last.busy_s)
    assert estimators(poisoned) != before


@pytest.mark.parametrize("special", ["warm_up", "graph_capture", "preemption", "nothing committed"])
def test_excluded_steps_train_nothing(special: str) -> None:
    """Special and stalled steps move the load, and neither acceptance nor cost nor the watch."""
    one = told(CLEAN[:200])
    now_s = CLEAN[199].started_s
    state = one.belief.state()

    def learned() -> bytes:
        found = one.belief.state()
        kept = (found.acceptance, found.cost, found.watch, found.steps, found.filled)
        return msgspec.json.encode(kept, enc_hook=lambda array: array.tolist())

    before, load_before = learned(), state.load.sums.copy()
    for step in range(100):
        fields = {"committed_tokens": 0} if special == "nothing committed" else {special: True}
        groups = [traffic.group("s1", 4, [0, 0, 0])]
        stalled = traffic.report(step, groups, verify_s=5.0, **fields)
        now_s += 5.1
        one.observe(msgspec.structs.replace(stalled, started_s=now_s), now_s + 5.001)
    assert learned() == before
    assert (one.belief.state().load.sums != load_before).any()


def test_an_engine_whose_clock_was_set_is_believed_again() -> None:
    """The first report on the new clock is refused, the second one counts, and so does the rest."""
    one = told(CLEAN[:200])
    learned = one.belief.cost.steps
    for report in CLEAN[200:300]:
        moved = msgspec.structs.replace(report, started_s=report.started_s + 5000.0)
        one.observe(moved, report.started_s + report.busy_s)
    assert one.counted()["reports_refused"] == 1
    assert one.counters["clock_steps"] == 1
    assert one.belief.cost.steps > learned + 80
    assert sum(belief.share for belief in one.segments()) == pytest.approx(1.0)


def test_an_engine_that_begins_with_a_lie_is_believed_from_then_on() -> None:
    """The first report of all says when the clock began, but not alone."""
    clean, poisoned = controller(), controller()
    poisoned.observe(ahead(3.0)(CLEAN[0]), CLEAN[0].started_s)
    for report in CLEAN[:50]:
        for one in (clean, poisoned):
            one.observe(report, report.started_s + report.busy_s)
    assert poisoned.counted()["reports_refused"] == 1
    assert estimators(poisoned) == estimators(clean)


def test_a_report_ahead_of_its_time_takes_none_with_it() -> None:
    """Those after it go on where those before it were, and count."""
    one = controller()
    for index, report in enumerate(CLEAN[:200]):
        early_s = 2.0 if index == 100 else 0.0
        one.observe(
            msgspec.structs.replace(report, started_s=report.started_s + early_s), report.started_s + 0.02
        )
    assert one.counters["clock_steps"] == 0
    assert one.counted()["reports_refused"] == 0


def test_a_long_pause_is_no_clock_step() -> None:
    """An engine that was idle for an hour, and a sidecar that was stopped for one, change nothing."""
    one = told(CLEAN[:100])
    for index, report in enumerate(CLEAN[100:200]):
        late_s = 3600.0 * (index >= 50)
        moved = msgspec.structs.replace(report, started_s=report.started_s + 3600.0)
        one.observe(moved, moved.started_s + moved.busy_s + late_s)
    assert one.counted()["reports_refused"] == 0


@pytest.mark.parametrize("requests", [1, 127, 128, 255, 256, 70_000])
def test_large_batches_are_read_as_they_are(requests: int) -> None:
    """What does not fit into a byte counts like what does, also beside it."""
    groups = [traffic.group("s1", 4, [2] * requests), traffic.group("s2", 8, [8, 0], undrafted=requests)]
    found, sane = columns([traffic.report(0, groups)], traffic.K_MAX)
    assert len(sane) == 1
    assert found.requests.tolist() == [requests, requests + 2]
    assert found.verified.tolist() == [requests, 1, 1]
    assert [found.offered.tolist(), found.reached.tolist()] == [[4, 8, 8], [3, 8, 1]]
    assert found.accepted.tolist() == [2, 8, 0]


def test_an_engine_that_cannot_draft_is_learned_from() -> None:
    """With K_max 0 there is nothing to accept, and the cost of steps is learned all the same."""
    belief = Belief(msgspec.structs.replace(traffic.HELLO, k_max=0, reachable_k=(0,)))
    for step in range(100):
        belief.observe(traffic.report(step, [traffic.group("s1", 0, [0, 0])]))
    assert [found.acceptance for found in belief.segments()] == [(), ()]
    assert belief.cost.steps == 100
