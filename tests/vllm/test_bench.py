"""The benchmark runs around a real vLLM, and what it finds there does not depend on the machine's speed."""

import json
from pathlib import Path

import pytest

from steersman_engine.bench.vllm import run

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_a_small_benchmark_finds_no_harm_in_a_real_vllm(vllm_python: str, model: Path) -> None:
    """Kills, requests, telemetry and reports are as they should be; every figure is there."""
    result = run.run(
        vllm_python=Path(vllm_python),
        model=model,
        groups=1,
        block_tokens=8,
        kills=1,
        driven_requests=64,
        steps=30,
        driven_groups=2,
        virtual_kills=40,
        progress=print,
    )
    assert json.loads(json.dumps(result)) == result
    missed = [line for line in result["missed"] if "must be 0" in line]
    assert missed == []
    live = result["live"]
    assert live["requests"]["run"] > 0
    assert live["requests"]["changed"] == 0
    assert live["kills"]["kills"] == 1
    assert live["kills"]["telemetry"]["lost"] + live["kills"]["telemetry"]["dropped"] > 0
    assert all(result["hook_us"][state]["p50"] > 0.0 for state in run.STATES)
    for mode in run.MODES:
        figures = result["driven"][mode]
        assert figures["virtual"]["kills"] == 20
        assert figures["virtual"]["reports"] > 500
        assert all(figures["hook_us"][state]["p50"] > figures["floor_us"]["p50"] for state in run.STATES)
