"""How many engines there are, and who sends which request where."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from steersman_simulator.world.batch import Batch

ENGINE_ID = "simulated"

MAX_ENGINES = 1024
"""Each has a controller of its own."""


class Cluster(Struct, frozen=True, forbid_unknown_fields=True):
    """Equal engines behind a router. Raises ValueError for a cluster that cannot be."""

    engines: int = 1
    router: Literal["round_robin", "least_loaded"] = "round_robin"
    lockstep: bool = False
    """The engines are ranks of one group: they take every step together, for as long as the slowest needs,
    idle ones with a forward of one token; all use the smallest K that any of them chose."""

    def __post_init__(self) -> None:
        """Check every range."""
        if not 1 <= self.engines <= MAX_ENGINES:
            raise ValueError(f"cluster.engines: {self.engines}, must be from 1 to {MAX_ENGINES}")
        if self.lockstep and self.engines == 1:
            raise ValueError("cluster.lockstep: true, needs at least 2 engines")


def engine_ids(cluster: Cluster) -> tuple[str, ...]:
    """What the engines call themselves.

    >>> engine_ids(Cluster()), engine_ids(Cluster(engines=2))
    (('simulated',), ('simulated-0', 'simulated-1'))
    """
    if cluster.engines == 1:
        return (ENGINE_ID,)
    return tuple(f"{ENGINE_ID}-{number}" for number in range(cluster.engines))


def route(cluster: Cluster, batches: Sequence[Batch], number: int) -> int:
    """The engine for the request with this number; of equally loaded ones the first."""
    if cluster.router == "round_robin":
        return number % len(batches)
    return min(range(len(batches)), key=lambda index: batches[index].load_requests)
