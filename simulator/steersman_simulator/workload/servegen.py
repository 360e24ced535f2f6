"""Curves of measured rates, as ServeGen publishes them (Xiang et al., 2025): CSV, one window a row.

`window_start_s`, `rate_rps` (or `total_rate_rps`), and where known `interarrival_cv`, `family` (Gamma or
Weibull) with its shape in `param1`, `client`. The scale of the gaps follows from the rate.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from steersman_simulator.workload.made_up import MadeUp
from steersman_simulator.workload.rates import Piece, gamma_shape
from steersman_simulator.workload.rows import csv_rows
from steersman_simulator.workload.transform import Positive
from steersman_simulator.workload.values import Cells

_RATES = ("rate_rps", "total_rate_rps")
_SHAPES = (0.05, 1e4)


class Rates(MadeUp, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="rates"):
    """One such file; the curve ends with its last window."""

    path: str
    client: str = ""
    """Where the file holds several."""
    rate_scale: Positive = 1.0
    """So many times the rate, in the same time."""


def rate_pieces(spec: Rates, path: Path) -> Iterator[Piece]:
    """The windows of the file in order, as pieces of a rate. The first one begins at 0.

    The last window is as long as the one before it. Raises ValueError naming file and line.
    """
    held: Piece | None = None
    start_s, width_s = 0.0, 0.0
    for next_s, piece in _windows(spec, path):
        if held is not None:
            width_s = next_s - start_s
            yield _lasting(held, width_s)
        held, start_s = piece, next_s
    if held is not None:
        yield _lasting(held, width_s or 600.0)


def _windows(spec: Rates, path: Path) -> Iterator[tuple[float, Piece]]:
    cells, clients, before_s = Cells(path), dict[str, None](), -1.0
    for number, values in csv_rows(path, ["window_start_s"]):
        cells.at = number
        client = str(values.get("client", "")).strip()
        clients[client] = None
        if spec.client and client != spec.client:
            continue
        if not spec.client and len(clients) > 1:
            raise ValueError(
                f"{path}:{number}: another client ({client}) begins; choose one with `client`, and several "
                "with `kind: mix`"
            )
        start_s = cells.seconds("window_start_s", values["window_start_s"])
        if start_s <= before_s:
            raise ValueError(f"{path}:{number}: window_start_s {start_s:g} after {before_s:g}; must ascend")
        before_s = start_s
        yield start_s, _piece(spec, cells, values)
    if before_s < 0.0:
        raise ValueError(
            f"{path}: no window of client {spec.client!r}; it has {', '.join(clients) or 'none'}"
        )


def _piece(spec: Rates, cells: Cells, values: Mapping[str, Any]) -> Piece:
    name = next((name for name in _RATES if name in values), None)
    if name is None:
        raise ValueError(f"{cells.path}:1: no column 'rate_rps'; it has {', '.join(values)}")
    rate = cells.number(name, values[name], "a rate per second from 0 on") * spec.rate_scale
    family, shape = _family(cells, values)
    return Piece(1.0, rate, rate, family, shape)


def _family(cells: Cells, values: Mapping[str, Any]) -> tuple[Literal["gamma", "weibull"], float]:
    word = str(values.get("family", "")).strip().lower()
    low, high = _SHAPES
    if word:
        if word not in ("gamma", "weibull"):
            raise cells.error("family", values["family"], "Gamma, Weibull or nothing")
        allowed = f"the shape of the {word} distribution, {low} to {high:g}"
        shape = cells.number("param1", values.get("param1"), allowed)
        if not low <= shape <= high:
            raise cells.error("param1", values.get("param1"), allowed)
        return "weibull" if word == "weibull" else "gamma", shape
    text = values.get("interarrival_cv") or "0"
    cv = cells.number("interarrival_cv", text, "a coefficient of variation from 0 on")
    return "gamma", min(max(gamma_shape(cv), low), high) if cv else 1.0


def _lasting(piece: Piece, seconds: float) -> Piece:
    return Piece(seconds, piece.from_per_s, piece.to_per_s, piece.family, piece.shape)
