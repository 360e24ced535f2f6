"""From sweep and recording to vLLM's table and to the steps of each arm; which prompts tune."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from steersman_controller.events import ControllerConfig, Received
from steersman_controller.trace.recording import Recording, read_recording
from steersman_policies.messages import Hello, StepReport
from steersman_simulator.demo.processes import ChildError
from steersman_simulator.demo.schedule import Phase, Schedule
from steersman_simulator.demo.spans import Span, cut
from steersman_simulator.demo.vllm.split import split
from steersman_simulator.demo.vllm.sweep import Point, Stretch, points, ranges, tuned_table
from steersman_simulator.demo.workload import WorkItem, bundled_workload
from steersman_simulator.simulate import started

STEP = StepReport(
    step=0,
    started_s=0.0,
    draft_s=0.0,
    verify_s=0.1,
    other_s=0.0,
    decode_requests=1,
    prefill_tokens=0,
    target_tokens=1,
    context_tokens=0,
    drafting_depth=0,
    requests_drafting=0,
    waiting=0,
    kv_used_fraction=0.0,
    committed_tokens=1,
    plan_id=0,
)
Frames = Sequence[tuple[str, float, int, float]]
"""Engine, moment, decode requests (one token each), seconds."""


@pytest.fixture
def recorded(
    tmp_path: Path, hello: Hello, write_recording: Callable[[Path, Sequence[object]], Path]
) -> Callable[[Frames], Recording]:
    """A recording of several engines; each says hello at 0 s."""

    def make(frames: Frames) -> Recording:
        engines = dict.fromkeys(name for name, *_ in frames)
        events: list[object] = [started(ControllerConfig(), "off", {})]
        events += [Received(0.0, name, 1, 0, 0, hello) for name in engines]
        for number, (name, at_s, requests, seconds) in enumerate(frames, start=1):
            report = replace(STEP, verify_s=seconds, decode_requests=requests, committed_tokens=requests)
            events.append(Received(at_s, name, 1, number, 0, report))
        return read_recording(write_recording(tmp_path / "journal.bin", events))

    return make


def test_point_counts_steps_of_its_engine_its_time_and_its_batches(
    recorded: Callable[[Frames], Recording],
) -> None:
    """Another engine, another moment and a batch outside the range that a point rules change nothing."""
    mine = [("mine", 1.0, 4, 0.2), ("mine", 1.5, 8, 0.4)]
    others = [("mine", 1.6, 2, 9.0), ("mine", 1.7, 9, 9.0), ("mine", 5.0, 4, 9.0), ("other", 1.2, 4, 9.0)]
    stretches = [Stretch(4, 2, 0.5, 2.0), Stretch(1, 2, 1.55, 1.65), Stretch(16, 2, 1.65, 2.0)]
    found = points(recorded([*mine, *others]), "mine", stretches, 16)
    assert found[0] == Point(4, 2, pytest.approx(0.6), 12, 2)  # type: ignore[arg-type]
    assert found[0].s_per_token == pytest.approx(0.05)


def test_stretch_without_steps_is_an_error_not_a_number(recorded: Callable[[Frames], Recording]) -> None:
    """A K that was never measured must not win, nor lose."""
    with pytest.raises(ChildError, match="no step of 1 to 16 requests under K = 8"):
        points(recorded([("mine", 1.0, 1, 0.1)]), "mine", [Stretch(4, 8, 2.0, 3.0)], 16)


def test_table_takes_the_best_k_of_each_range() -> None:
    """Each measured batch size rules its range, from 1 to the last batch without a gap."""
    cost = {(1, 0): 60.0, (1, 8): 20.0, (4, 0): 20.0, (4, 4): 15.0, (16, 0): 6.0, (16, 4): 9.0}
    measured = [Point(batch, k, ms, 1, 1) for (batch, k), ms in cost.items()]
    assert tuned_table(measured, 16) == ((1, 2, 8), (3, 8, 4), (9, 16, 0))
    worse = [replace(p, busy_s=99.0) if (p.batch, p.k) == (1, 8) else p for p in measured]
    assert tuned_table(worse, 16)[0] == (1, 2, 0)


def test_equal_costs_take_the_smaller_k() -> None:
    """What brings nothing is not drafted."""
    assert tuned_table([Point(1, k, 1.0, 1, 1) for k in (4, 0, 8)], 16) == ((1, 16, 0),)


@pytest.mark.parametrize("batches", [[1], [1, 4, 16], [2, 3], [1, 2, 64]])
def test_ranges_cover_every_batch_once(batches: list[int]) -> None:
    """vLLM refuses a table with a gap or an overlap."""
    found = ranges(batches, 64)
    assert [n for first, last in found.values() for n in range(first, last + 1)] == list(range(1, 65))
    assert all(first <= batch <= last for batch, (first, last) in found.items())


def test_prompts_that_tune_do_not_compare() -> None:
    """The bundled workload falls into two parts of the same mix; nothing is in both or in none."""
    items = bundled_workload()
    found = split(items)
    assert sorted(map(id, (*found.sweep, *found.arms))) == sorted(map(id, items))
    for segment in {item.segment for item in items}:
        share = [sum(item.segment == segment for item in part) / len(part) for part in (items, found.sweep)]
        assert share[1] == pytest.approx(share[0], abs=0.05)
    assert list(found.arms) == [item for item in items if item in found.arms]


def test_workload_too_small_to_split_is_refused() -> None:
    """One line says how many there are and how many are needed."""
    with pytest.raises(ValueError, match="--workload: 2 requests; at least 3 are needed"):
        split([WorkItem(prompt="a"), WorkItem(prompt="b")])


def test_steps_are_cut_by_engine_and_time(recorded: Callable[[Frames], Recording]) -> None:
    """Servers report side by side; a run holds the steps of its own server within its window alone."""
    recording = recorded([("a", 1.0, 1, 0.1), ("b", 1.0, 2, 0.2), ("a", 2.0, 3, 0.3), ("b", 2.0, 4, 0.4)])
    schedule = Schedule((), (Phase("given", 0.0),))
    spans = [Span("off", 1, "a", 0.5, 1.5, ()), Span("table", 1, "b", 1.5, 2.5, ())]
    off, table = cut(recording, schedule, spans).runs
    assert [(step.at_s, step.report.committed_tokens) for step in off.steps] == [(0.5, 1)]
    assert [(step.at_s, step.report.committed_tokens) for step in table.steps] == [(0.5, 4)]
