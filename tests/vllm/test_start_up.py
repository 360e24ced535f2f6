"""Launches that cannot be steered: the operator reads what to change, and vLLM serves."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from vllm_sidecar import Sidecar
from vllm_world import CODE, K_MAX, MAX_BATCH, NGRAM, SCHEDULER, STEERABLE, Server

pytestmark = pytest.mark.vllm
Start = Callable[..., Sidecar]
Launch = Callable[..., Server]

NARROW = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 16, 4]]}
OWN_DRAFTER = {"method": "custom_class", "model": "planted_drafter.Repeats", "num_speculative_tokens": 2}
LACKS = "the start-up table (num_speculative_tokens_per_batch_size) lacks K = 0, 1, 2, 3, 5, 6, 7, 8"


class Case(NamedTuple):
    launch: dict[str, Any]
    reason: str
    line: str
    """What the log must say about what to change."""
    own_k: int


CASES = {
    "version": Case(
        {"scheduler": "planted.OtherVersion"},
        "vLLM 0.99.0 is not a version that this adapter was written for",
        "pip install vllm==0.32.0 to steer",
        8,
    ),
    "signature": Case(
        {"scheduler": "planted.OtherSignature"},
        "does not declare as expected: Scheduler.add_request",
        "lane: int = 0",
        8,
    ),
    "method": Case(
        {
            "speculative": {
                "method": "custom_class",
                "model": "planted_drafter.Repeats",
                "num_speculative_tokens": 2,
            }
        },
        "method custom_class: vLLM does not tell a proposer of one's own which K is in force",
        "methods that can be steered: ngram, draft_model, eagle, eagle3, mtp",
        2,
    ),
    "table": Case({"speculative": NARROW}, LACKS, "--speculative-config", 4),
}


def test_the_printed_launch_is_the_one_that_is_tested() -> None:
    """`steersman vllm-args` prints the configuration that the shared server of these tests runs with."""
    words = ["vllm-args", "model", "--max-num-seqs", str(MAX_BATCH), "--k-max", str(K_MAX), "--json"]
    printed = subprocess.run(
        [sys.executable, "-m", "steersman_controller", *words], capture_output=True, text=True, check=True
    )
    found = json.loads(printed.stdout)
    assert found["speculative_config"] == STEERABLE
    assert found["command"][found["command"].index("--scheduler-cls") + 1] == SCHEDULER


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_launch_that_cannot_be_steered_is_observed(launch: Launch, sidecar: Start, case: Case) -> None:
    """The log holds the line to change, the sidecar knows why, K stays vLLM's, telemetry flows."""
    server = launch(**case.launch).wait()
    assert case.reason in server.text()
    assert case.line in server.text()
    steersman = sidecar("--steer").attached()
    engine = steersman.engine()
    assert engine is not None
    assert case.reason in engine.about.observe_only
    steersman.push("fixed", k=1)
    answer = server.complete(CODE)
    assert max(answer.drafted) == case.own_k
    (report,) = steersman.requests(1)
    assert report.output_tokens == answer.output_tokens
    # Whether a lease held or not in a step, it was the launch setting that counted.
    reasons = {report.reason for report in steersman.steps()}
    assert "shadow" in reasons
    assert reasons <= {"shadow", "launch"}


def test_strict_refuses_such_a_launch(launch: Launch) -> None:
    """With STEERSMAN_STRICT=1 vLLM does not start, and the printed flag is the one that helps."""
    server = launch(speculative=NARROW, environment={"STEERSMAN_STRICT": "1"})
    assert server.process.wait(300) != 0
    assert f"STEERSMAN_STRICT=1, and K cannot be steered here: {LACKS}" in server.text()
    line = next(line for line in server.text().splitlines() if "--speculative-config" in line)
    words = shlex.split(line[line.index("--speculative-config") :])
    assert json.loads(words[1]) == STEERABLE
