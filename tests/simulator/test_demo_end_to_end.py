"""The real demo: a real engine, a real sidecar, a stranger's workload with names of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steersman_controller.trace.recording import read_recording
from steersman_simulator.demo.workload import bundled_workload

pytestmark = pytest.mark.slow

RENAMED = {"code_edit": "alpha", "extract": "beta", "summarise": "gamma", "chat": "delta"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One round over ten short prompts under other names; the folder it wrote, and what it printed."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("demo")
    workload = folder / "mine.jsonl"
    with workload.open("w", encoding="utf-8") as lines:
        for item in bundled_workload()[:10]:
            assert item.messages is not None
            content = item.messages[0].content
            line = {"messages": [{"role": "user", "content": content}], "max_tokens": 12}
            lines.write(json.dumps(line | {"segment": RENAMED[item.segment or ""]}) + "\n")
    code = "from steersman_controller.cli import main; main()"
    verb = ["demo", f"--workload={workload}", "--rounds=1", f"--out={folder / 'out'}", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *verb],
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | {"CI": "1"},
    )
    return folder / "out", done


def test_demo_exits_well_and_prints_one_object(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Exit code 0, one JSON object on standard output, everything else on standard error."""
    folder, done = demo
    assert done.returncode == 0, done.stderr[-2000:]
    printed = json.loads(done.stdout)
    assert printed == json.loads((folder / "result.json").read_text())
    assert "Report: " in done.stderr


def test_demo_served_every_request_in_every_arm(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """Nothing failed, the texts do not depend on K, and the tags are the stranger's."""
    result = json.loads(demo[1].stdout)
    assert result["failed_requests"] == []
    assert [result["arms"][arm]["requests"] for arm in ("off", "fixed", "steered")] == [10, 10, 10]
    assert result["outputs"]["equal"] == 10
    assert set(result["workload"]["segments"]) == set(RENAMED.values())
    assert result["arms"]["off"]["drafted_tokens"] == 0
    assert result["arms"]["fixed"]["drafted_tokens"] > 0
    assert set(result["arms"]["fixed"]["mean_k_by_segment"].values()) <= {4.0}


def test_engine_and_clients_count_the_same_tokens(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """What the engine reports as committed in an arm is what the clients received in it."""
    result = json.loads(demo[1].stdout)
    for figures in result["arms"].values():
        assert figures["committed_tokens"] == figures["output_tokens"]


def test_demo_leaves_a_readable_recording_and_a_report(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """The trace holds every step of the arms, under the three policies, and the page is whole."""
    folder, done = demo
    result = json.loads(done.stdout)
    recording = read_recording(folder / "trace.parquet")
    assert recording.warning is None
    assert len(list(recording.steps())) >= sum(figures["steps"] for figures in result["arms"].values())
    assert {plan.policy for plan in recording.plans} == {"off", "fixed", "goodput"}
    assert (folder / "report.html").read_text().rstrip().endswith("</html>")
