"""What `steersman bench fidelity` compares: one strict YAML file."""

from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from steersman_controller.progress import Progress
from steersman_controller.sidecar.config import read_yaml
from steersman_controller.sidecar.shape import shaped
from steersman_simulator.fidelity.choice_of_k import compare_table
from steersman_simulator.fidelity.k_table import TableSpec
from steersman_simulator.fidelity.runs import RunsSpec, compare_runs

FidelitySpec: TypeAlias = RunsSpec | TableSpec


class _File(msgspec.Struct, frozen=True):
    compare: FidelitySpec


def read_fidelity(path: Path) -> FidelitySpec:
    """The comparison in a file. Raises FileNotFoundError, or ValueError naming source and key."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    tree = shaped({"compare": read_yaml(path)}, _File, str(path))
    return msgspec.convert(tree, _File).compare


def compare(spec: FidelitySpec, folder: Path, progress: Progress) -> dict[str, Any]:
    """Its result as a JSON tree; paths are relative to `folder`. Raises ValueError or FileNotFoundError."""
    if isinstance(spec, RunsSpec):
        return compare_runs(spec, folder, progress)
    return compare_table(spec, folder, progress)
