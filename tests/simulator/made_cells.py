"""What cells of a sweep run in tests: made-up figures, and failures of every kind."""

import os
import signal
import time
from pathlib import Path
from typing import Any


def made_figures(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Figures that follow from the scenario alone; or it fails as the scenario asks."""
    (folder / "ran").mkdir(exist_ok=True)
    policy = scenario["policy"]["name"]
    name = f"{policy}-{scenario['policy']['params'].get('k', 0)}-{scenario['load']}-{scenario['seed']}"
    with (folder / "ran" / name).open("a") as file:
        file.write("ran\n")
    time.sleep(scenario.get("seconds", 0.0))
    if scenario.get("fault") == "raise":
        raise ValueError("no such\nthing")
    if scenario.get("fault") == "bug":
        raise KeyError("k")
    if scenario.get("fault") == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    cost = scenario["load"] * (1.0 if policy == "off" else 0.9) + 0.001 * scenario["seed"]
    return {"busy_s_per_token": cost, "segments": {"chat": {"k": [1, 2.5]}}, "pid": os.getpid(), "none": None}
