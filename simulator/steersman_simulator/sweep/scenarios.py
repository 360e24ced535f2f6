"""The cells that `steersman sweep` runs: scenarios."""

from pathlib import Path
from typing import Any

from steersman_simulator.sweep.cells import Tree


def check_scenario(tree: Tree, where: str) -> None:
    """Raises ValueError for what is no scenario."""


def run_scenario_cell(tree: Tree, folder: Path) -> dict[str, Any]:
    """The figures of one scenario."""
    raise NotImplementedError
