"""Attached, and not steering: everything is seen, nothing is touched."""

from collections.abc import Callable

import pytest
from vllm_sidecar import ENGINE_ID, Sidecar
from vllm_world import K_MAX, PROMPTS, Completion, Server

pytestmark = pytest.mark.vllm
Start = Callable[..., Sidecar]


def test_a_sidecar_without_steer_touches_nothing(
    server: Server, plain: list[Completion], sidecar: Start
) -> None:
    """The plan's K is only logged, beside the one that vLLM chose by its own table."""
    steersman = sidecar().attached()
    steersman.push("fixed", k=2)
    assert [server.complete(prompt) for prompt in PROMPTS] == plain
    assert max(max(answer.drafted, default=0) for answer in plain) == K_MAX
    steersman.requests(len(PROMPTS))
    steps = steersman.steps()
    assert {report.reason for report in steps} == {"shadow"}
    assert {k for report in steps for k in report.commanded.values()} == {K_MAX}
    assert {k for report in steps for k in report.would_be.values()} == {2}


def test_without_a_sidecar_nothing_is_touched(unattended: list[Completion], plain: list[Completion]) -> None:
    """A server that was never attached to anybody is vLLM."""
    assert unattended == plain


def test_the_sidecar_knows_what_it_is_attached_to(server: Server, sidecar: Start) -> None:
    """Engine, version, drafter, K, runner; shadow unless told otherwise."""
    engine = sidecar().attached().engine()
    assert engine is not None
    about = engine.about
    assert engine.engine_id == ENGINE_ID
    assert engine.mode == "shadow"
    assert (about.engine, about.method, about.observe_only) == ("vllm", "ngram", "")
    assert about.engine_version.startswith("0.32.0")
    assert about.runner == "v1, synchronous, tested"
    assert about.target.endswith("smollm2-135m-instruct")
    assert about.k_max == about.launch_k == K_MAX
    assert about.reachable_k == tuple(range(K_MAX + 1))
