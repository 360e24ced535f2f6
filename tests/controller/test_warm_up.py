"""Nothing is compiled while a sidecar works."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

from steersman_controller import compiled as compiled_module
from steersman_controller.compiled import compiled
from steersman_controller.sidecar import serving
from steersman_controller.sidecar.config import SidecarConfig

AFTERWARDS = """
import random, sys
import msgspec
from numba.core.dispatcher import Dispatcher
from steersman_controller.warm_up import warm_up
{before}
loops = {{
    f"{{name}}.{{key}}": value
    for name, module in list(sys.modules.items()) if name.startswith("steersman_controller")
    for key, value in vars(module).items() if isinstance(value, Dispatcher) and value.__module__ == name
}}
known = {{name: len(loop.signatures) for name, loop in loops.items()}}
import test_belief, traffic
from steersman_controller.belief.belief import Belief

one, chance = test_belief.controller(), random.Random(0)
for index, report in enumerate(test_belief.LONG):
    one.observe(report, report.started_s + report.busy_s)
    if chance.random() < 0.1:
        one.belief.fold()
    if index % 100 == 0:
        one.plan(report.started_s)
        one.status(report.started_s)
        snapshot = one.snapshot()
        one = test_belief.controller()
        one.restore(snapshot)
    if index == 1000:
        one.restarted()
bare = Belief(msgspec.structs.replace(traffic.HELLO, k_max=0, reachable_k=(0,), max_batch=1))
for step in range(100):
    bare.observe(traffic.report(step, [traffic.group("s1", 0, [0])] if step % 3 else []))
    bare.fold()
bare.segments()
print([name for name, loop in loops.items() if len(loop.signatures) != known[name]])
"""


def compiled_afterwards(before: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AFTERWARDS.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip()


def test_a_warm_controller_compiles_nothing() -> None:
    """Through alarms, full houses, restarts, snapshots, and an engine that cannot draft."""
    assert compiled_afterwards("warm_up()") == "[]"


def test_a_cold_controller_is_caught() -> None:
    """Without it all loops are compiled in the midst of work."""
    assert "watch._advance" in compiled_afterwards("")


def test_a_sidecar_is_warm_before_it_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine that finds a socket finds somebody who answers."""
    order = []

    def listen(*_: object, **__: object) -> None:
        order.append("listens")
        raise ValueError("enough")

    monkeypatch.setattr(serving, "warm_up", lambda: order.append("warm"))
    monkeypatch.setattr(serving, "Sidecar", listen)
    monkeypatch.setattr(serving, "_Stop", lambda: None)
    config = SidecarConfig(telemetry=f"ipc://{tmp_path}/t", admin=f"ipc://{tmp_path}/a", metrics_port=0)
    with pytest.raises(ValueError, match="enough"):
        serving.serve(config, as_json=True)
    assert order == ["warm", "listens"]


@pytest.mark.parametrize("can_be_written", [True, False])
def test_no_folder_to_keep_it_in(monkeypatch: pytest.MonkeyPatch, can_be_written: bool) -> None:
    """Where the folder of the source cannot be written nothing is kept, also in no other folder."""
    asked: list[bool] = []

    def njit(function: Any, *, cache: bool = False, **others: object) -> Any:
        asked.append(cache)
        return numba.njit(function, **others)

    monkeypatch.setattr(compiled_module, "njit", njit)
    monkeypatch.setattr(compiled_module.os, "access", lambda *_: can_be_written)

    @compiled
    def twice(number: float) -> float:
        return 2.0 * number

    assert twice(4.0) == 8.0
    assert asked == [can_be_written]
