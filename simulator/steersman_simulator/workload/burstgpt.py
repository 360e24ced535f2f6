"""BurstGPT (Wang et al., KDD 2025): CSV, one request a row.

`Timestamp` (s from midnight of the first day), `Model`, `Request tokens`, `Response tokens`, `Total tokens`,
`Log Type`. A request that failed has no response tokens; it is left out and counted.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.trace_file import Lost, RowFile, from_first, in_order, placed_rows
from steersman_simulator.workload.values import Cells

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class BurstGpt(RowFile, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="burstgpt"):
    """One such file; `segment_column` may be `Model` or `Log Type`."""


def read_burstgpt(spec: BurstGpt, path: Path, lost: Lost) -> Iterator[Arrival]:
    """Its requests, from the first one on."""
    return from_first(in_order(spec, path, placed_rows(spec, path, COLUMNS, _arrival), lost))


def _arrival(cells: Cells, values: Mapping[str, Any]) -> Arrival:
    return Arrival(
        at_s=cells.seconds("Timestamp", values["Timestamp"]),
        segment=UNKNOWN_SEGMENT,
        prompt_tokens=cells.tokens("Request tokens", values["Request tokens"]),
        output_tokens=cells.tokens("Response tokens", values["Response tokens"]),
    )
