"""What the cells of `steersman sweep` are: scenarios."""

from pathlib import Path
from typing import Any

import msgspec

from steersman_controller.sidecar.shape import shaped
from steersman_policies.policy import load
from steersman_simulator.dotted import Tree
from steersman_simulator.run_scenario import run_scenario
from steersman_simulator.scenario import Scenario

_INPUTS = frozenset(
    {"name", "version", *Scenario.__struct_fields__, "params", "load", "engines", "max_batch"}
)
"""What a result says again of its scenario."""


def check_scenario(tree: Tree, where: str) -> None:
    """Raises ValueError, in one line that begins with `where`, for what is no scenario."""
    policy = _scenario(tree, where).policy
    load(policy.name, policy.params)


def run_cell(tree: Tree, folder: Path) -> dict[str, Any]:
    """The figures of one scenario. Raises ValueError or OSError where it cannot run."""
    result = run_scenario(_scenario(tree, "scenario"), folder)
    return {key: value for key, value in result.items() if key not in _INPUTS}


def _scenario(tree: Tree, where: str) -> Scenario:
    return msgspec.convert(shaped(tree, Scenario, where), Scenario)
