"""What cells of a sweep run in tests: made-up figures, and failures of every kind."""

import os
import signal
import time
from pathlib import Path
from typing import Any

SCENARIO = """
workload:
  kind: poisson
  rate_per_s: 4
  requests: 12
  prompt_tokens: {kind: lognormal, mean: 40, cv: 0.3}
  output_tokens: {kind: lognormal, mean: 20, cv: 0.3}
engine: {max_batch: 8, token_budget: 256}
truth: {kind: constant, step_s: 0.02, per_token_s: 0.001}
acceptance: {kind: constant, acceptance: 0.7}
policy: {name: fixed, params: {k: 2}}
"""
GRID = [
    "--vary",
    "policy=off,fixed",
    "--vary",
    "params.k=1,3",
    "--vary",
    "workload.load=0.5,2",
    "--seeds",
    "2",
]


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
