"""Every kind of trace, and the reader of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.azure import Azure, read_azure
from steersman_simulator.workload.burstgpt import BurstGpt, read_burstgpt
from steersman_simulator.workload.mooncake import Mooncake, read_mooncake
from steersman_simulator.workload.recording import Recorded, read_recorded
from steersman_simulator.workload.table import Table, read_table
from steersman_simulator.workload.trace_file import Lost
from steersman_simulator.workload.vllm_bench import VllmBench, read_vllm_bench
from steersman_simulator.world.chance import Chance

TraceSpec: TypeAlias = Azure | Mooncake | BurstGpt | VllmBench | Table | Recorded


def read_trace(spec: TraceSpec, folder: Path, chance: Chance, lost: Lost) -> Iterator[Arrival]:
    """The requests of a trace in the order of time, before any transformation."""
    path = folder / spec.path
    match spec:
        case Azure():
            return read_azure(spec, path, lost)
        case Mooncake():
            return read_mooncake(spec, path, lost, chance)
        case BurstGpt():
            return read_burstgpt(spec, path, lost)
        case VllmBench():
            return read_vllm_bench(spec, path, lost, chance)
        case Table():
            return read_table(spec, path, lost)
        case Recorded():
            return read_recorded(spec, path, lost)
