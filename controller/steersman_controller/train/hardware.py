"""What is known of target, drafter and device before anything was measured, ready to be used as a prior."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from steersman_controller.train.cells import Cells
from steersman_controller.train.devices import device
from steersman_controller.train.model_shape import ModelShape, read_shape
from steersman_controller.train.models import Fit
from steersman_controller.train.operator_tables import ComposedForward, OperatorTables
from steersman_controller.train.prior import prior_cells, with_prior
from steersman_controller.train.roofline import Forward, Roofline
from steersman_controller.train.serving import compare, read_deployments

PRIOR_K = 8
"""The longest proposal of a prior without measurements."""

PRIOR_CONTEXTS = (0.0, 1024.0, 8192.0)


class Hardware(Struct, frozen=True):
    """What a prior is made of."""

    target_config: Path
    device: str
    drafter_config: Path | None = None
    tensor_parallel: int = 1
    operators: Path | None = None


class Measured(Struct, frozen=True):
    """A file of measured deployments to compare the prior with."""

    path: Path
    columns: dict[str, str]
    where: dict[str, str]


class Forwards(Struct, frozen=True):
    """Forwards of target and drafter."""

    target: Forward
    drafter: Forward | None
    of_degree: Callable[[int], Forward]
    """The target's, by degree of tensor parallelism."""
    datasheet: Callable[[int], Forward]
    """The same without operator tables."""
    operator_files: tuple[str, ...]
    source: str

    def cells(self) -> Cells:
        """Cells for a bundle that nothing was measured for."""
        k_max = PRIOR_K if self.drafter is not None else 0
        return prior_cells(self.target, self.drafter, k_max=k_max, mean_contexts=PRIOR_CONTEXTS)

    def candidates(self, cells: Cells) -> Mapping[str, Fit]:
        """The candidates for `cells`, those with the prior behind them included."""
        contexts = PRIOR_CONTEXTS if (cells.context > 0).any() else (0.0,)
        k_max = int(cells.k.max()) if self.drafter is not None else 0
        return with_prior(prior_cells(self.target, self.drafter, k_max=k_max, mean_contexts=contexts))


def forwards_of(hardware: Hardware) -> Forwards:
    """Raises ValueError in one line for an unknown device, a bad config or missing operator tables."""
    machine = device(hardware.device)
    target = read_shape(hardware.target_config)
    drafter = read_shape(hardware.drafter_config) if hardware.drafter_config else None
    tables = OperatorTables(hardware.operators, hardware.device.lower()) if hardware.operators else None

    def datasheet(shape: ModelShape, ways: int) -> Forward:
        return Roofline(shape, machine, ways)

    def best(shape: ModelShape, ways: int) -> Forward:
        return datasheet(shape, ways) if tables is None else ComposedForward(tables, shape, machine, ways)

    return Forwards(
        target=best(target, hardware.tensor_parallel),
        # Drafters are smaller than what operator tables cover; the data sheet has no smallest size.
        drafter=None if drafter is None else datasheet(drafter, hardware.tensor_parallel),
        of_degree=lambda ways: best(target, ways),
        datasheet=lambda ways: datasheet(target, ways),
        operator_files=tuple(tables.files) if tables else (),
        source=machine.source,
    )


def prior_figures(forwards: Forwards, measured: Measured | None) -> dict[str, Any]:
    """Where a prior comes from, and how far it is from deployments that were measured."""
    one_s = forwards.target.seconds(tokens=1.0, sequences=1.0, context_tokens=1024.0, prefill_tokens=0.0)
    found: dict[str, Any] = {
        "device_source": forwards.source,
        "operator_files": list(forwards.operator_files),
        "one_request_ms": 1e3 * one_s,
    }
    if measured is not None:
        rows = read_deployments(measured.path, measured.columns, measured.where)
        ways = {"datasheet": forwards.datasheet}
        if forwards.operator_files:
            ways["operators"] = forwards.of_degree
        found["tpot_against"] = measured.path.name
        found["tpot"] = {name: msgspec.to_builtins(compare(rows, of)) for name, of in ways.items()}
    return found
