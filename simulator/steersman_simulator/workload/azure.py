"""Azure's LLM inference traces (2023; Patel et al., Splitwise, ISCA 2024): CSV, one request a row.

`TIMESTAMP` as `2023-11-16 18:17:03.9799600` (parts of 100 ns), `ContextTokens`, `GeneratedTokens`.
"""

import re
from calendar import timegm
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.trace_file import Lost, RowFile, from_first, in_order, placed_rows
from steersman_simulator.workload.values import Cells

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TICKS = 10_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?")


class Azure(RowFile, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="azure"):
    """One such file."""


def read_azure(spec: Azure, path: Path, lost: Lost) -> Iterator[Arrival]:
    """Its requests, from the first one on."""
    start = -1

    def build(cells: Cells, values: Mapping[str, Any]) -> Arrival:
        nonlocal start
        ticks = _ticks(cells, values["TIMESTAMP"])
        start = ticks if start < 0 else start
        return Arrival(
            # Subtracted as whole numbers: seconds since 1970 leave a float no room for 100 ns.
            at_s=(ticks - start) / _TICKS,
            segment=UNKNOWN_SEGMENT,
            prompt_tokens=cells.tokens("ContextTokens", values["ContextTokens"]),
            output_tokens=cells.tokens("GeneratedTokens", values["GeneratedTokens"]),
        )

    return from_first(in_order(spec, path, placed_rows(spec, path, COLUMNS, build), lost))


def _ticks(cells: Cells, value: Any) -> int:
    matched = _TIME.fullmatch(str(value).strip())
    try:
        if matched is None:
            raise ValueError
        moment = datetime.fromisoformat(matched[1])
    except ValueError:
        raise cells.error("TIMESTAMP", value, "a time like 2023-11-16 18:17:03.9799600") from None
    parts = (matched[2] or "0").ljust(7, "0")[:7]
    return timegm(moment.timetuple()) * _TICKS + int(parts)
