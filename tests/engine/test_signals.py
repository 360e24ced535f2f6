"""What a step's report says of its drafts beyond their outcomes, and that it says nothing wrong."""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from link_world import rows as link_rows
from tiny_models import drain, engine_of, submit, target_of

from steersman_engine.decode.request import Request
from steersman_engine.drafters.drafter import Proposal
from steersman_engine.rows import StepRows
from steersman_engine.signals import FOLLOWED_REQUESTS, REMEMBERED_REQUESTS, Signals
from steersman_engine.steering import Launch
from steersman_engine.telemetry import aggregate
from steersman_policies.messages import StepReport

COLUMNS = ("requests", "segments", "commanded_k", "drafted", "accepted")


def step_of(*drafts: tuple[Any, ...], confidence: Sequence[Sequence[float]] = ()) -> StepRows:
    """A step of these requests: number, segment, K, drafted, accepted."""
    columns = dict(zip(COLUMNS, map(list, zip(*drafts, strict=True)), strict=True))
    return msgspec.structs.replace(
        link_rows(1),
        context_tokens=[100] * len(drafts),
        committed=[draft[4] + 1 for draft in drafts],
        not_drafted=["" if draft[3] else "no_match" for draft in drafts],
        confidence=confidence,
        **columns,
    )


def reported(rows: StepRows, signals: Signals) -> StepReport:
    report, refused = aggregate(rows, signals=signals)
    assert refused == {}
    assert report is not None
    return report


def counts(report: StepReport, signal: str, segment: str = "chat") -> dict[tuple[int, int], tuple[int, ...]]:
    """(offered, verified, accepted) by bin and position."""
    return {
        (row[0], row[1]): row[2:]
        for group in report.groups
        if group.segment == segment
        for found in group.signals
        if found.signal == signal
        for row in found.counts
    }


def test_the_state_is_what_was_known_before_the_draft() -> None:
    """The first draft of a request falls into bin 0, the next into that of the first one's outcome."""
    signals = Signals()
    first = reported(step_of((0, "chat", 3, 3, 3), (1, "chat", 3, 3, 0), (2, "chat", 3, 0, 0)), signals)
    assert counts(first, "state") == {(0, 1): (2, 2, 1), (0, 2): (2, 2, 1), (0, 3): (2, 2, 1)}
    second = reported(step_of((0, "chat", 3, 2, 1), (1, "chat", 3, 1, 1), (2, "chat", 3, 1, 1)), signals)
    assert counts(second, "state") == {
        (9, 1): (1, 1, 1),
        (9, 2): (1, 1, 0),
        (1, 1): (1, 1, 1),
        (0, 1): (1, 1, 1),
    }


def test_a_request_that_is_over_is_forgotten() -> None:
    """Its number may not come again, and its state takes no memory."""
    signals = Signals()
    for number in range(3 * REMEMBERED_REQUESTS):
        reported(step_of((number, "chat", 3, 3, 3)), signals)
    assert len(signals._states) == REMEMBERED_REQUESTS
    for number in range(3 * REMEMBERED_REQUESTS):
        signals.forget(number)
    assert not signals._states


def test_a_large_batch_is_sampled_by_request() -> None:
    """About 16 requests are followed, each from its first draft on; one that was seen before never is."""
    signals, batch = Signals(), [(number, "chat", 3, 3, 3) for number in range(256)]
    for _ in range(2):
        found = counts(reported(step_of(*batch), signals), "state")
        assert sum(n for (_, position), (n, *_) in found.items() if position == 1) == FOLLOWED_REQUESTS
    few = reported(step_of(*batch[:4]), signals)
    assert counts(few, "state") == {(9, position): (1, 1, 1) for position in (1, 2, 3)}


def test_confidence_is_that_of_the_draft_so_far() -> None:
    """Probabilities are multiplied along the draft; drafts without any are left out."""
    rows = step_of(
        (0, "chat", 2, 2, 1), (1, "chat", 2, 2, 0), (2, "code", 2, 0, 0), confidence=([0.9, 0.5], [], [])
    )
    report = reported(rows, Signals())
    assert counts(report, "confidence") == {(7, 1): (1, 1, 1), (4, 2): (1, 1, 0)}
    assert counts(report, "confidence", "code") == {}


def test_a_refused_row_leaves_no_signal() -> None:
    """A step with a row that cannot be true has none; and a column of another length makes it worthless."""
    bad = step_of((0, "chat", 3, 3, 3), (1, "chat", 3, 2, 3))
    report, refused = aggregate(bad, signals=Signals())
    assert refused == {"over_accepted": 1}
    assert report is not None
    assert all(not group.signals for group in report.groups)
    short = msgspec.structs.replace(step_of((0, "chat", 3, 3, 3)), requests=[0, 1])
    assert aggregate(short, signals=Signals()) == (None, {"step_malformed": 1})


def test_an_engine_that_names_no_requests_sends_no_signals() -> None:
    """The column is optional."""
    rows = msgspec.structs.replace(step_of((0, "chat", 3, 3, 3)), requests=())
    assert all(not group.signals for group in reported(rows, Signals()).groups)


class Sure:
    """Repeats the last token, and says how sure it is."""

    name, version, survives_off, confident = "sure", "1", True, True

    def admit(self, request: Request) -> None:
        pass

    def release(self, request: Request) -> None:
        pass

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
        return [
            Proposal([r.tokens[-1]] * 9, confidence=torch.linspace(0.9, 0.1, 9))
            if r.number
            else Proposal([1])
            for r in requests
        ]

    def commit(self, request: Request, accepted: int) -> None:
        pass


def test_the_engine_hands_over_what_the_drafter_says() -> None:
    """One probability per draft token that is verified, by request, and none where the drafter gave none."""
    steps: list[StepRows] = []

    class Keeping(Launch):
        def record(self, rows: StepRows) -> None:
            steps.append(rows)

    engine = engine_of(target_of(), Keeping(3), Sure())
    for _ in range(2):
        submit(engine, [4, 5, 6], max_tokens=12)
    drain(engine)
    drafting = [rows for rows in steps if any(rows.drafted)]
    assert list(drafting[0].requests) == [0, 1]
    assert [len(one) for one in drafting[0].confidence] == [0, 3]
    assert drafting[0].confidence[1][1] == torch.linspace(0.9, 0.1, 9)[1].item()
    for rows in drafting:
        for drafted, told, number in zip(
            rows.drafted, rows.confidence or [()] * 9, rows.requests, strict=False
        ):
            assert len(told) == (drafted if number else 0)
    report = reported(drafting[0], Signals())
    assert sum(n for n, *_ in counts(report, "confidence", "unknown").values()) == 3
