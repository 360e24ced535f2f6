"""What finished requests say about the segments of a live engine is told."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import segment_truth as truth

from steersman_controller import request_spread
from steersman_controller.console import status_lines
from steersman_controller.sidecar.admin import Status, StatusRequest
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.desk import answer
from steersman_policies.messages import Hello, RequestReport, StepReport

Make = Callable[..., Any]
Tell = Callable[[list[RequestReport]], str]


@pytest.fixture
def told(
    config: SidecarConfig, hello: Hello, step: Callable[..., StepReport], sidecars: Make, engines: Make
) -> Tell:
    """The status of a sidecar whose engine served these requests, as people read it."""

    def tell(requests: list[RequestReport]) -> str:
        one, engine = sidecars(config), engines(config.telemetry)
        engine.send(hello)
        names = sorted({report.segment for report in requests})
        for number, name in enumerate(names):
            engine.send(step(number, name))
        one.frames(1 + len(names))
        for first in range(0, len(requests), 50):
            for report in requests[first : first + 50]:
                engine.send(report)
            one.frames(len(requests[first : first + 50]))
        status = answer(one.sidecar, StatusRequest())
        assert isinstance(status, Status)
        return "\n".join(status_lines(status))

    return tell


def served() -> list[RequestReport]:
    """Of two segments with one acceptance, one with another, and one of two kinds of requests."""
    return [
        *truth.requests(160, tags=("one", "two"), easy=0.8, hard=0.8),
        *truth.requests(80, tags=("other",), easy=0.3, hard=0.3, seed=1),
        *truth.requests(80, tags=("mixed",), easy=0.95, hard=0.3, seed=2),
    ]


def test_segments_to_merge_and_to_split_are_named(told: Tell) -> None:
    """Those that cannot be told apart, and those of several kinds of requests; no others."""
    text = told(served())
    assert "segments that could be one: one = two\n" in text
    assert "segments of more than one kind of request: mixed\n" in text


def test_few_requests_say_nothing_about_segments(told: Tell) -> None:
    """Nothing is named while fewer than twenty of a segment are over."""
    assert "segments" not in told(truth.requests(38, tags=("one", "two")))


def test_segments_taken_for_different_by_chance_are_caught(
    told: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without knowing what chance does, two equal segments are not named."""
    monkeypatch.setattr(request_spread, "SAME_ABOVE", 1.0)
    assert "could be one" not in told(served())


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("pause", "a pause, by its file"),
        ("lease", "no lease held"),
        ("table", "the plan\n"),
        ("odd", "odd\n"),
    ],
)
def test_why_k_is_what_it_is_is_said(
    config: SidecarConfig,
    hello: Hello,
    step: Callable[..., StepReport],
    sidecars: Make,
    engines: Make,
    reason: str,
    words: str,
) -> None:
    """An engine that obeys a pause file drafts nothing, and its status says why."""
    one, engine = sidecars(config), engines(config.telemetry)
    engine.send(hello)
    engine.send(msgspec.structs.replace(step(0, "chat"), reason=reason))
    one.frames(2)
    status = answer(one.sidecar, StatusRequest())
    assert isinstance(status, Status)
    (line,) = (line + "\n" for line in status_lines(status) if "lease" in line)
    assert words in line
