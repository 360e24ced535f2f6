"""The demo's children with real processes: how their end is told, and that none outlives the demo."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steersman_simulator.demo.command import run_demo
from steersman_simulator.demo.processes import ChildError, Children, free_port

PARENT = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may have ignored it
from steersman_simulator.demo.processes import Children
folder = Path(sys.argv[1])
with Children() as children:
    verb = ["serve", f"--telemetry=ipc://{folder}/t", f"--admin=ipc://{folder}/a", "--metrics-port=0"]
    child = children.start("sidecar", verb, folder / "log")
    child.wait_ready(lambda: "ready" in (folder / "log").read_text(), 60.0)
    print(child.pid, flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_child_that_dies_is_one_line_with_the_end_of_its_log(tmp_path: Path) -> None:
    """Who, how, why and where to read more, without a line break."""
    with Children() as children:
        child = children.start("sidecar", ["serve", "--telemetry=nonsense"], tmp_path / "log")
        with pytest.raises(ChildError) as error:
            child.wait_ready(lambda: False, 60.0)
    text = str(error.value)
    assert text.startswith("the sidecar ended with exit code 2: ")
    assert "nonsense" in text
    assert str(tmp_path / "log") in text
    assert "\n" not in text


def test_cause_far_above_the_end_of_a_log_is_told(tmp_path: Path) -> None:
    """A worker's exception comes first, then the last lines; mere talk of errors is no cause."""
    lines = [
        "WARNING [limits.py:1] this can cause errors like `OSError: too many files`",
        "(EngineCore pid=7) ERROR 11-29 22:09 [core.py:9] ValueError: the table lacks K = 0",
        *(f"noise {n}" for n in range(50)),
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    code = f"print({chr(10).join(lines)!r}); raise SystemExit(1)"
    with Children() as children:
        child = children.run("engine", [sys.executable, "-c", code], tmp_path / "log")
        with pytest.raises(ChildError) as error:
            child.wait_ready(lambda: False, 60.0)
    text = str(error.value)
    assert text.startswith(
        "the engine ended with exit code 1: ValueError: the table lacks K = 0 | ... | noise"
    )
    assert "See root cause above." in text
    assert "\n" not in text


def test_child_that_never_gets_ready_is_an_error_and_is_stopped(tmp_path: Path) -> None:
    """A time limit ends the wait, and leaving the block ends the child."""
    verb = ["serve", f"--telemetry=ipc://{tmp_path}/t", f"--admin=ipc://{tmp_path}/a", "--metrics-port=0"]
    with Children() as children:
        child = children.start("sidecar", verb, tmp_path / "log")
        with pytest.raises(ChildError, match="was not ready within 0 s"):
            child.wait_ready(lambda: False, 0.0)
    assert not is_alive(child.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_child_outlives_an_interrupted_demo(tmp_path: Path, number: int) -> None:
    """Ctrl-C and SIGTERM end the children too."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(number)
    assert parent.wait(60) != 0
    deadline_s = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_alive(child)


WORKER = """
import fcntl, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open(sys.argv[1], "w")
fcntl.flock(held, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(600)
"""


def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    """A worker that ignores the polite signal does not outlive the engine that started it."""
    log, lock = tmp_path / "log", tmp_path / "lock"
    command = [sys.executable, "-c", WORKER, str(lock)]
    code = f"import subprocess, time; subprocess.Popen({command!r}); time.sleep(600)"
    with Children() as children:
        child = children.run("engine", [sys.executable, "-c", code], log)
        child.wait_ready(lambda: "ready" in log.read_text(), 60.0)
        assert not can_lock(lock)
    assert not is_alive(child.pid)
    deadline_s = time.monotonic() + 10
    while not can_lock(lock) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert can_lock(lock)


def can_lock(path: Path) -> bool:
    """Whether nobody holds the lock; the kernel drops it when its holder dies."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def test_free_ports_are_usable() -> None:
    """A port is given out that can be listened on."""
    import socket

    with socket.create_server(("127.0.0.1", free_port())):
        pass


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"workload": "missing.jsonl"}, "missing.jsonl"),
        ({"model": "./no-such-folder"}, "--model: no folder ./no-such-folder"),
        ({"out": "used"}, "used exists and is not an empty folder"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: str
) -> None:
    """A wrong path is one clear line, and no folder is made for a demo that cannot run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    given: dict[str, object] = {"workload": None, "out": None, "model": ""} | options
    for key in ("workload", "out"):
        given[key] = None if given[key] is None else Path(str(given[key]))
    with pytest.raises((ValueError, OSError), match=expected):
        run_demo(rounds=1, as_json=False, **given)  # type: ignore[arg-type]
    assert sorted(tmp_path.rglob("*")) == before
