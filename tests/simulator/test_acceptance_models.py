"""Where drafts come from: by position, by segment, from traces, and how they change."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from steersman_policies.acceptance_trace import AcceptanceRecord, write_trace
from steersman_policies.acceptance_walk import walk
from steersman_policies.executor import Decision
from steersman_simulator.acceptance.draft_table import DraftTable
from steersman_simulator.acceptance.exact import ExactAcceptance
from steersman_simulator.acceptance.schedule import Phase, ScheduledAcceptance
from steersman_simulator.acceptance.segments import AcceptanceTruth, ConstantAcceptance, SegmentTruth
from steersman_simulator.acceptance.spec import AcceptanceSpec, build_acceptance
from steersman_simulator.acceptance.specdec_bench import read_specdec_bench
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.batch import Batch
from steersman_simulator.world.requests import Live
from steersman_simulator.world.shape import Shape

LONG = Arrival(0.0, "chat", 10, 4000)


def tables(truth: SegmentTruth, count: int = 40, arrival: Arrival = LONG) -> list[DraftTable]:
    acceptance = AcceptanceTruth({"unknown": truth})
    return [acceptance.table(arrival, ordinal, 5, 0.0) for ordinal in range(count)]


def first_accepted(drawn: list[DraftTable], k: int) -> float:
    """Share of the steps at this K whose first draft token is accepted."""
    steps = [step for table in drawn for step in walk(table.accepted.tolist(), None, k)]
    return sum(accepted > 0 for _, _, accepted in steps) / len(steps)


def test_drafts_that_agree_make_small_k_luckier():
    """At K = 1 steps begin inside of drafts that were right so far; without agreement K is no matter."""
    steep = SegmentTruth(1.0, 0.0, (1.0,), (0.2, 0.7), agreement=1.0)
    # Behind an accepted token the draft has two more with 0.7 ^ 2, and with 0.3 a new one begins.
    inside = 0.7**2 + 0.3 * 0.2
    assert first_accepted(tables(steep), 12) == pytest.approx(0.2, abs=0.015)
    assert first_accepted(tables(steep), 1) == pytest.approx(0.2 / (1.2 - inside), abs=0.015)
    loose = tables(SegmentTruth(1.0, 0.0, (1.0,), (0.2, 0.7)))
    assert first_accepted(loose, 1) == pytest.approx(0.2, abs=0.015)


def test_the_longer_of_both_drafts_is_kept_as_often_as_told():
    """Downward revisions are rarer than upward ones by exactly `keeps_better`."""
    truth = SegmentTruth(1.0, 0.0, (1.0,), (0.6,), agreement=0.4, keeps_better=0.5)
    before = np.concatenate([table.accepted[:-1] for table in tables(truth)]).astype(int)
    now = np.concatenate([table.accepted[1:] for table in tables(truth)]).astype(int)
    follows = before > 0
    rest, then = before[follows] - 1, now[follows]
    survival = 0.6 ** np.arange(70.0)
    assert (then > rest).sum() / survival[rest + 1].sum() == pytest.approx(0.6, abs=0.02)
    assert (then < rest).sum() / (1.0 - survival[rest]).sum() == pytest.approx(0.6 * 0.5, abs=0.02)


def test_stretches_fade_over_their_length():
    """Covariance of acceptance over a distance d is exp(-d / tokens) of that at none, requests aside."""
    truth = SegmentTruth(1.0, 0.0, (1.0,), (0.5, 0.0), wander_sd=1.5, wander_tokens=20.0)
    hit = np.stack([table.accepted > 0 for table in tables(truth, 200)]).astype(float) - 0.5
    near, far = ((hit[:, d:] * hit[:, :-d]).mean() for d in (10, 30))
    assert far / near == pytest.approx(math.exp(-1.0), abs=0.05)
    assert near > 0.03


def test_stretches_leave_the_segment_as_it_was_on_average():
    """Symmetric effects about even odds leave even odds."""
    truth = SegmentTruth(1.0, 0.0, (1.0,), (0.5, 0.0), wander_sd=2.0, wander_tokens=5.0)
    assert np.mean([table.accepted.mean() for table in tables(truth)]) == pytest.approx(0.5, abs=0.01)


def served(acceptance, arrivals: list[Arrival], k: int) -> list[list[tuple[int, int]]]:
    """(drafted, accepted) of every step of each request, in an engine that serves one at a time."""
    batch = Batch(Shape(1, 10_000), lambda live, at_s: acceptance.table(live.arrival, live.ordinal, 0, at_s))
    for ordinal, arrival in enumerate(arrivals):
        batch.arrive(Live(ordinal, 0, arrival, 0.0))
    out, decision, seconds = [[]], Decision({"s": k}, 0, "table", False), (0.0, 1.0, 0.0)
    while not batch.idle:
        forward = batch.compose(0.0)
        committed = batch.commit(forward, 0.0)
        drafting = batch.draft({"s": k}, forward)
        report = batch.report(forward, committed, decision, drafting, seconds)
        batch.close(forward, committed, False, seconds)
        for group in report.groups:
            out[-1] += [row[:2] for row in group.outcomes] or [(0, 0)]
        out += [[] for _ in committed.finished]
    return out[:-1]


def made_up(count: int = 12) -> list[AcceptanceRecord]:
    rng = np.random.default_rng(3)
    records = []
    for number in range(count):
        tokens = int(rng.integers(5, 60))
        offered = np.where(rng.random(tokens) < 0.7, rng.integers(1, 9, tokens), 0)
        accepted = np.minimum(rng.geometric(0.4, tokens) - 1, offered)
        # No more can be accepted than there is.
        accepted = np.minimum(accepted, tokens - np.arange(tokens))
        records.append(
            AcceptanceRecord(number, 5, tokens, tuple(accepted.tolist()), tuple(offered.tolist()), "s")
        )
    return records


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_served_trace_is_the_trace(k):
    """In the simulated engine every step of a request drafts and accepts what the trace says."""
    records = made_up()
    arrivals = [Arrival(0.0, "s", r.prompt_tokens, r.output_tokens) for r in records]
    for record, steps in zip(records, served(ExactAcceptance(records), arrivals, k), strict=True):
        wanted = walk(record.accepted_by_position, record.offered_by_position, k)
        assert steps == [(drafted, accepted) for _, drafted, accepted in wanted]


def test_a_trace_of_other_requests_is_refused_or_picked_from():
    """In order, lengths must be equal; by segment, chance picks and joins, the same way every time."""
    records = made_up()
    arrival = Arrival(0.0, "s", 5, 200)
    with pytest.raises(
        ValueError, match=r"request 3 has \d+ output tokens, the arrival 200; .*pick: segment"
    ):
        ExactAcceptance(records).table(arrival, 3, 0, 0.0)
    picked = ExactAcceptance(records, "segment")
    one, same, other = (picked.table(arrival, ordinal, 7, 0.0) for ordinal in (3, 3, 4))
    assert len(one.accepted) == len(one.offered) == 200
    assert one.accepted.tolist() == same.accepted.tolist() != other.accepted.tolist()
    with pytest.raises(ValueError, match=r"no segment 't'.*held: s"):
        picked.table(Arrival(0.0, "t", 5, 9), 0, 0, 0.0)


def test_a_little_less_acceptance_takes_a_little_from_every_table():
    """Thinning is monotone in the factor, and 2 % less changes few positions."""

    def at(factor: float) -> np.ndarray:
        schedule = ScheduledAcceptance(ConstantAcceptance(0.8), [Phase(0.0, factor)])
        return schedule.table(LONG, 0, 0, 0.0).accepted

    less, more = at(0.88), at(0.9)
    assert (less <= more).all()
    assert 0.0 < (less != more).mean() < 0.2


def test_a_factor_is_that_of_every_position():
    """Position acceptance becomes the factor times what it was, at any depth."""
    schedule = ScheduledAcceptance(ConstantAcceptance(0.9), [Phase(10.0, 0.7)])
    accepted = np.concatenate([schedule.table(LONG, n, 0, 10.0).accepted for n in range(20)])
    for position in (1, 2, 5):
        share = (accepted >= position).sum() / (accepted >= position - 1).sum()
        assert share == pytest.approx(0.63, abs=0.02)
    before = schedule.table(LONG, 0, 0, 9.99)
    assert before.accepted.tolist() == ConstantAcceptance(0.9).table(LONG, 0, 0, 0.0).accepted.tolist()


def test_a_schedule_ramps_swaps_and_spares_other_segments():
    """What is in force between, at and behind its phases, and at which moments that changes."""
    first, second = ConstantAcceptance(0.8), ConstantAcceptance(0.3)
    schedule = ScheduledAcceptance(
        first, [Phase(10.0, 0.5, over_s=20.0, segments=("chat",)), Phase(50.0, drafter=second)]
    )
    assert schedule.in_force("chat", 9.9) == (first, 1.0)
    assert schedule.in_force("chat", 19.5) == (first, pytest.approx(0.75))
    assert schedule.in_force("chat", 30.0) == (first, 0.5)
    assert schedule.in_force("chat", 50.0) == (second, 0.5)
    assert schedule.in_force("edit", 60.0) == (second, 1.0)
    changes = schedule.changes()
    assert changes[0] == 10.0
    assert changes[-1] == 50.0
    factors = [schedule.in_force("chat", at_s)[1] for at_s in changes]
    assert factors == sorted(factors, reverse=True)
    assert len(set(factors)) == 20  # every moment of a ramp is told
    with pytest.raises(ValueError, match="in order of at_s"):
        ScheduledAcceptance(first, [Phase(5.0), Phase(1.0)])


def spec(text: str) -> AcceptanceSpec:
    return msgspec.yaml.decode(text, type=AcceptanceSpec)


def test_specs_build_what_they_say(tmp_path: Path):
    """By position in all three ways, by segment, a trace and a fit of it, and a schedule."""
    (tmp_path / "p.csv").write_text("segment,position,acceptance\nchat,2,0.5\nchat,1,0.8\n")
    write_trace(tmp_path / "t.jsonl", made_up(30))
    wanted = (0.8, 0.5)
    for text in (
        "{kind: by_position, acceptance: {chat: [0.8, 0.5]}}",
        "{kind: by_position, survival: {chat: [0.8, 0.4]}}",
        "{kind: by_position, table: p.csv}",
    ):
        built = build_acceptance(spec(text), tmp_path)
        assert built.segments["unknown"].acceptance == pytest.approx(wanted)
    truth = "{coverage: 1, persistence: 0, offered_share: [1], acceptance: [.7]}"
    segments = spec(f"{{kind: segments, segments: {{unknown: {truth}}}}}")
    assert build_acceptance(segments, tmp_path).segments["unknown"].acceptance == (0.7,)
    arrival = Arrival(0.0, "s", 5, 40)
    for text in ("{kind: trace, path: t.jsonl, pick: segment}", "{kind: fitted, path: t.jsonl}"):
        assert len(build_acceptance(spec(text), tmp_path).table(arrival, 0, 0, 0.0).accepted) == 40
    sick = "drafter: {kind: constant, acceptance: 1}, phases: [{at_s: 5, factor: 0, engine: b}]"
    schedule = spec(f"{{kind: schedule, {sick}}}")
    one, two = (build_acceptance(schedule, tmp_path, engine) for engine in ("a", "b"))
    assert one.table(arrival, 0, 0, 9.0).accepted.min() > 0 == two.table(arrival, 0, 0, 9.0).accepted.max()
    assert (one.changes(), two.changes()) == ((), (5.0,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{kind: by_position}", "give one of acceptance, survival, table"),
        ("{kind: by_position, survival: {chat: [0.5, 0.6]}}", "must fall"),
        ("{kind: by_position, acceptance: {chat: []}}", "at least one position"),
        ("{kind: by_position, table: gap.csv}", "gap.csv: segment unknown has no position 2"),
        ("{kind: by_position, table: bad.csv}", "bad.csv: row 1: position 1.0 with acceptance 1.5"),
        ("{kind: segments, segments: {}}", "give 'unknown' too"),
        ("{kind: constant, acceptance: 1.2}", "<= 1.0"),
        ("{kind: constant, aceptance: 0.2}", "aceptance"),
    ],
)
def test_bad_specs_are_refused(tmp_path: Path, text: str, words: str):
    """One line that says what is allowed."""
    (tmp_path / "gap.csv").write_text("position,acceptance\n1,0.5\n3,0.5\n")
    (tmp_path / "bad.csv").write_text("position,acceptance\n1,1.5\n")
    with pytest.raises(ValueError, match=words):
        build_acceptance(spec(text), tmp_path)


def test_files_of_specdec_bench_are_read(tmp_path: Path):
    """Tokens emitted, bonus included, become tokens accepted; a bad line is named."""
    line = {
        "id": "7", "prompt_token_ids": [1, 2, 3], "generated_token_ids": [4, 5],
        "acc_eagle": {"acc_len": [3, 1]}, "acc_ngram": {"acc_len": [1, 1]},
    }  # fmt: skip
    path = tmp_path / "combined_x.jsonl"
    path.write_text(json.dumps(line) + "\n" + "{}\n")
    found = read_specdec_bench(path, "eagle3", "math")
    record = next(found)
    assert (record.accepted_by_position, record.prompt_tokens, record.segment) == ((2, 0), 3, "math")
    with pytest.raises(ValueError, match=r"combined_x.jsonl: line 2: .*missing required field"):
        next(found)
