"""A whole simulation as data: workload, engine, truth, acceptance, policy. One strict YAML file.

An unknown key is an error that says where it is, what it may have meant and what is allowed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from steersman_controller.events import ControllerConfig
from steersman_controller.sidecar.config import (
    MIN_PLAN_INTERVAL_S,
    PolicyChoice,
    PriorChoice,
    read_yaml,
)
from steersman_controller.sidecar.shape import shaped
from steersman_policies.units import Count, Name, ProposalLength, Seconds
from steersman_simulator.acceptance.spec import AcceptanceSpec
from steersman_simulator.dotted import put
from steersman_simulator.report.tally import Slo
from steersman_simulator.truths.spec import TruthSpec
from steersman_simulator.workload.spec import WorkloadSpec
from steersman_simulator.world.cluster import Cluster
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Change


class Speculation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine can be asked for, and what it calls itself."""

    k_max: ProposalLength = 8
    reachable_k: tuple[ProposalLength, ...] = ()
    """Empty: all from 0 to k_max."""
    k_floor: ProposalLength = 0
    launch_k: ProposalLength = 0
    per_request_k: bool = True
    """Whether segments may have different K in one step."""
    target: Name = "target"
    drafter: Name = "drafter"
    method: Name = "draft_model"
    device: Name = "simulated"

    def __post_init__(self) -> None:
        """Check that no K is above `k_max`, as an engine's own would never be."""
        for name in ("k_floor", "launch_k"):
            if getattr(self, name) > self.k_max:
                raise ValueError(f"{name}: {getattr(self, name)}, at most k_max = {self.k_max}")
        reachable = self.reachable_k
        if list(reachable) != sorted(set(reachable)) or (reachable and reachable[-1] > self.k_max):
            raise ValueError(f"reachable_k: {list(reachable)}, must ascend to at most k_max = {self.k_max}")


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides the outcome of a run. Paths are relative to the folder of the file."""

    name: Name = ""
    """Empty: that of the file."""
    workload: WorkloadSpec
    engine: Shape
    cluster: Cluster = Cluster()
    truth: TruthSpec
    acceptance: AcceptanceSpec
    speculation: Speculation = Speculation()
    policy: PolicyChoice
    changes: tuple[Change, ...] = ()
    """Other policies that are pushed while it runs."""
    prior: PriorChoice = PriorChoice()
    """What the controller believes at first."""
    controller: ControllerConfig = ControllerConfig()
    slo: Slo = Slo()
    """What a request must keep to count as good; the controller is told by `controller.slo`."""
    seed: Count = 0
    horizon_s: Seconds = 0.0
    """Stop there, whatever is unfinished; 0: when the last request has left."""


def read_scenario(path: Path, changed: Mapping[str, Any] | None = None, policy: str = "") -> Scenario:
    """The scenario in a YAML file, with some dotted keys `changed`, and another `policy` where one is named.

    Parameters of the file's policy are not those of another one.

    Raises FileNotFoundError, or ValueError with one line: source, key, what is allowed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    tree = read_yaml(path)
    where = str(path)
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: must map keys to values, found {type(tree).__name__}")
    if policy:
        tree = {**tree, "policy": {"name": policy}}
    for key, value in (changed or {}).items():
        where = f"{path} with {', '.join(changed or {})}"
        put(tree, key, value)
    scenario = msgspec.convert(shaped(tree, Scenario, where), Scenario)
    found = scenario.controller.plan_interval_s
    if found < MIN_PLAN_INTERVAL_S:
        raise ValueError(
            f"{where}: controller.plan_interval_s: at least {MIN_PLAN_INTERVAL_S}, found {found}"
        )
    return msgspec.structs.replace(scenario, name=scenario.name or path.stem)
