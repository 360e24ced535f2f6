"""What is made of the references that a vLLM step leaves behind."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from steersman_engine.adapters.vllm.steps import Admitted, Ended, Proposed, Step, StepReader
from steersman_engine.rows import StepRows
from steersman_engine.telemetry import aggregate
from steersman_policies.executor import Decision
from steersman_policies.messages import RequestReport
from steersman_policies.prompt_statistics import PromptStatistics


class World:
    """A reader, and steps as vLLM describes them."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.reader = StepReader(lambda: 0.5, self.faults.append)
        self.number = 0

    def admit(self, *request_ids: str, segment: str = "chat", structured: bool = False) -> None:
        asked = PromptStatistics(prompt_tokens=8, structured=int(structured))
        for request_id in request_ids:
            assert not list(self.reader(Admitted(request_id, segment, 1.0, 10, asked)))

    def end(self, request_id: str, output_tokens: int, at_s: float = 9.0) -> list[Any]:
        return list(self.reader(Ended(request_id, at_s, output_tokens, "stop")))

    def step(
        self,
        scheduled: dict[str, int],
        sampled: dict[str, int],
        *,
        new: Iterable[str] = (),
        resumed: Iterable[str] = (),
        prefilling: Iterable[str] = (),
        drafts: dict[str, list[int]] | None = None,
        proposed: dict[str, list[int]] | None = None,
        invalid: dict[str, int] | None = None,
        kept: dict[str, int] | None = None,
        k: dict[str, int] | None = None,
        discarded: Iterable[str] = (),
        skip: int = 0,
    ) -> StepRows:
        """One step; `sampled` and `kept` are numbers of tokens."""
        cached = [request_id for request_id in scheduled if request_id not in new]
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_spec_decode_tokens=drafts or {},
            num_invalid_spec_tokens=invalid,
            preempted_req_ids=set(),
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=cached,
                resumed_req_ids=set(resumed),
                num_computed_tokens=[100] * len(cached),
                num_output_tokens=[0 if request_id in prefilling else 5 for request_id in cached],
            ),
        )
        self.number += skip
        handed = Step(
            number=self.number,
            output=output,
            index={request_id: at for at, request_id in enumerate(sampled)},
            sampled=list(sampled.values()),
            tokens=[[5] * count for count in (kept or sampled).values()],
            decision=Decision(k if k is not None else {"chat": 3}, 1, "table", False),
            decode_requests=len(scheduled),
            prefill_tokens=0,
            proposed=None if proposed is None else Proposed(list(proposed), list(proposed.values())),
            discarded=set(discarded),
            waiting=0,
            began_s=2.0,
            scheduled_s=2.0,
            returned_s=2.1,
        )
        self.number += 1
        (rows,) = self.reader(handed)
        assert isinstance(rows, StepRows)
        report, refused = aggregate(rows)
        assert report is not None
        assert not refused
        return rows


@pytest.fixture
def world() -> World:
    return World()


def started(world: World, *request_ids: str) -> None:
    """These requests have just got their first token, and three drafts each were asked for."""
    world.admit(*request_ids)
    rows = world.step(dict.fromkeys(request_ids, 10), dict.fromkeys(request_ids, 1), new=request_ids)
    assert (rows.first_tokens, list(rows.segments)) == (len(request_ids), [])


def test_drafts_are_counted_under_the_k_that_was_in_force_when_they_were_made(world: World) -> None:
    """Two depths in one step: what is verified was commanded in the step before."""
    started(world, "a", "b")
    rows = world.step(
        {"a": 4, "b": 4},
        {"a": 4, "b": 2},
        drafts={"a": [1, 2, 3], "b": [1, 2, 3]},
        proposed={"a": [1, 2, 3], "b": [1, 2, 3]},
        k={"chat": 1},
    )
    assert (rows.commanded_k, rows.drafted, rows.accepted, rows.committed) == ([3, 3], [3, 3], [3, 1], [4, 2])
    rows = world.step({"a": 2, "b": 1}, {"b": 1, "a": 1}, drafts={"a": [1]}, proposed={"a": [1], "b": []})
    assert (rows.commanded_k, rows.drafted, rows.accepted) == ([1, 1], [1, 0], [0, 0])
    assert rows.not_drafted == ["", "no_match"]


def test_tokens_cut_at_a_stop_are_accepted_but_not_committed(world: World) -> None:
    """What vLLM throws away after a stop was verified all the same."""
    started(world, "a")
    rows = world.step({"a": 4}, {"a": 4}, kept={"a": 2}, drafts={"a": [1, 2, 3]}, proposed={"a": [1, 2, 3]})
    assert (rows.accepted, rows.committed) == ([3], [2])


def test_padding_of_an_admitted_or_resumed_request_is_nobodys_draft(world: World) -> None:
    """vLLM pads a new one-token row to full width; counting that would bias acceptance down."""
    started(world, "a")
    world.admit("b")
    rows = world.step(
        {"a": 4, "b": 4},
        {"a": 1, "b": 1},
        new=["b"],
        drafts={"a": [-1, -1, -1], "b": [-1, -1, -1]},
    )
    assert (rows.drafted, rows.first_tokens) == ([3], 1)
    rows = world.step(
        {"a": 4, "b": 4}, {"a": 1, "b": 1}, resumed=["a"], drafts={"a": [-1] * 3, "b": [-1] * 3}
    )
    assert (rows.drafted, rows.first_tokens) == ([3], 1)


def test_a_chunk_of_a_prompt_is_no_decode_request(world: World) -> None:
    """Neither the first chunk nor a later one."""
    world.admit("a")
    rows = world.step({"a": 8}, {"a": 0}, new=["a"])
    assert (list(rows.segments), rows.first_tokens) == ([], 0)
    rows = world.step({"a": 8}, {"a": 1}, prefilling=["a"])
    assert (list(rows.segments), rows.first_tokens) == ([], 1)


def test_drafts_that_the_grammar_forbids_are_not_rejections(world: World) -> None:
    """In the worker they are replaced by -1; before it they never reach the scheduler."""
    started(world, "a")
    rows = world.step({"a": 4}, {"a": 2}, drafts={"a": [7, -1, -1]}, invalid={"a": 2})
    assert (rows.drafted, rows.accepted) == ([1], [1])
    rows = world.step({"a": 4}, {"a": 1}, drafts={"a": [-1, -1, -1]}, invalid={"a": 3})
    assert (rows.drafted, rows.not_drafted) == ([0], ["grammar"])
    world.admit("s", structured=True)
    world.step({"s": 10}, {"s": 1}, new=["s"])
    rows = world.step({"s": 1}, {"s": 1}, proposed={"s": [1, 2]})
    assert (rows.drafted, rows.not_drafted) == ([0], ["grammar"])


def test_a_proposal_that_found_no_room_says_so(world: World) -> None:
    """Near the longest context vLLM schedules no drafts."""
    started(world, "a")
    rows = world.step({"a": 1}, {"a": 1}, proposed={"a": [1, 2, 3]})
    assert rows.not_drafted == ["length_limit"]


def test_what_vllm_throws_away_counts_for_nothing(world: World) -> None:
    """Neither as drafts nor as tokens."""
    started(world, "a", "b")
    drafts = {"a": [-1] * 3, "b": [-1] * 3}
    rows = world.step({"a": 4, "b": 4}, {"a": 4, "b": 1}, drafts=drafts, discarded=["a"])
    assert (rows.drafted, rows.committed, rows.first_tokens) == ([3], [1], 0)


def test_a_request_that_was_aborted_while_the_step_ran_is_left_out(world: World) -> None:
    """vLLM ignores what came back for it."""
    started(world, "a", "b")
    assert len(world.end("a", 1)) == 1
    rows = world.step({"a": 4, "b": 4}, {"a": 4, "b": 2}, drafts={"a": [1] * 3, "b": [1] * 3})
    assert rows.accepted == [1]


def test_after_a_gap_nothing_is_said_about_the_k_of_the_drafts_at_hand(world: World) -> None:
    """An unknown command must not look like a drafter that fell short."""
    started(world, "a")
    rows = world.step({"a": 3}, {"a": 3}, drafts={"a": [1, 2]}, proposed={"a": [1, 2]}, skip=1)
    assert (rows.commanded_k, rows.drafted) == ([2], [2])


def test_a_request_that_skipped_a_step_keeps_the_k_of_its_own_drafts(world: World) -> None:
    """A full token budget may leave a request out."""
    started(world, "a", "b")
    world.step({"b": 1}, {"b": 1}, proposed={"b": []}, k={"chat": 1})
    rows = world.step(
        {"a": 4, "b": 2}, {"a": 1, "b": 1}, drafts={"a": [1] * 3, "b": [1]}, proposed={"b": [1]}
    )
    assert rows.commanded_k == [3, 1]


def test_a_request_report_adds_up_its_steps(world: World) -> None:
    """Queue, first token and totals of one request."""
    started(world, "a")
    world.step({"a": 4}, {"a": 3}, drafts={"a": [1] * 3}, proposed={"a": [1] * 3})
    (report,) = world.end("a", 4, at_s=4.1)
    assert isinstance(report, RequestReport)
    assert (report.steps, report.drafted, report.accepted, report.output_tokens) == (1, 3, 2, 4)
    assert report.queue_s == pytest.approx(1.0)
    assert report.ttft_s == pytest.approx(1.1)
    assert report.e2e_s == pytest.approx(3.1)
    assert report.tpot_s == pytest.approx(2.0 / 3.0)
    assert world.end("a", 4) == []


def test_the_first_surprise_ends_the_reading_and_is_told_once(world: World) -> None:
    """A vLLM that describes steps in another way must not flood the log."""
    world.admit("a")
    broken = SimpleNamespace(num_scheduled_tokens={"a": 1})
    step = Step(
        number=0, output=broken, decision=Decision({}, 0, "launch", False), decode_requests=0,
        prefill_tokens=0, proposed=None, waiting=0, began_s=0.0, scheduled_s=0.0,
    )  # fmt: skip
    assert list(world.reader(step)) == []
    assert list(world.reader(step)) == []
    assert [type(fault) for fault in world.faults] == [AttributeError]


def test_a_row_says_which_request_it_is_of() -> None:
    """By the number under which its report comes later, in whatever order requests are scheduled."""
    world = World()
    world.admit("a", "b")
    drafts = {"a": [1, 2], "b": [1]}
    rows = world.step({"b": 2, "a": 3}, {"b": 1, "a": 3}, drafts=drafts)
    assert list(rows.requests) == [1, 0]
    assert list(rows.drafted) == [1, 2]
    (report,) = world.end("a", 5)
    assert report.request == 0
