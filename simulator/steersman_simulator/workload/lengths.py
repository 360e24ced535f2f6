"""How long made-up requests are."""

from bisect import bisect
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import log, sqrt
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from steersman_simulator.workload.arrival import MAX_REQUEST_TOKENS
from steersman_simulator.workload.rows import json_rows
from steersman_simulator.workload.values import Cells
from steersman_simulator.world.chance import Chance

Tokens = Annotated[int, Meta(ge=1, le=MAX_REQUEST_TOKENS // 2)]

Draw = Callable[[float], int]
"""Tokens of a request that arrives at this second."""


class LogNormal(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"
):
    """Log-normal lengths, cut at both ends; `mean` and `cv` are those before the cut."""

    mean: Annotated[float, Meta(ge=1.0, le=MAX_REQUEST_TOKENS)]
    cv: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0
    """Standard deviation over mean."""
    min: Tokens = 1
    max: Tokens = 32_768


class Pmf(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="pmf"):
    """Lengths with given probabilities: JSON lines that map tokens to probability, as ServeGen's data.

    A line is `{"client": 17, "window_start_s": 0, "input_tokens": {"13": 0.5, ...}, "output_tokens": {...}}`;
    without windows one line serves the whole run.
    """

    path: str
    key: Literal["input_tokens", "output_tokens"]
    client: int | None = None
    """Where the file holds several."""


Lengths: TypeAlias = Tokens | LogNormal | Pmf
"""A number of tokens for every request, or how they spread."""


def length_drawer(spec: Lengths, folder: Path, chance: Chance) -> Draw:
    """Draws lengths with `chance`. Raises ValueError or FileNotFoundError for a file that cannot be used."""
    if isinstance(spec, int):
        tokens = spec
        return lambda _: tokens
    if isinstance(spec, Pmf):
        return _pmf_drawer(spec, folder / spec.path, chance)
    if spec.min > spec.max:
        raise ValueError(f"lognormal.min: {spec.min}, must not be above max ({spec.max})")
    # Of a log-normal: cv^2 = exp(sigma^2) - 1, mean = exp(mu + sigma^2 / 2).
    sigma = sqrt(log(1.0 + spec.cv**2))
    mu = log(spec.mean) - sigma**2 / 2.0
    return lambda _: min(max(round(chance.lognormvariate(mu, sigma)), spec.min), spec.max)


def _pmf_drawer(spec: Pmf, path: Path, chance: Chance) -> Draw:
    windows = _pmf_windows(spec, path)
    starts = [start_s for start_s, _, _ in windows]

    def draw(at_s: float) -> int:
        _, tokens, edges = windows[max(0, bisect(starts, at_s) - 1)]
        return tokens[min(bisect(edges, chance.random() * edges[-1]), len(tokens) - 1)]

    return draw


def _pmf_windows(spec: Pmf, path: Path) -> list[tuple[float, list[int], list[float]]]:
    cells, windows, clients = Cells(path), [], dict[int, None]()
    for number, values in json_rows(path, [spec.key]):
        cells.at = number
        client = values.get("client")
        if client is not None:
            clients[client] = None
        if spec.client is not None and client != spec.client:
            continue
        start_s = cells.seconds("window_start_s", values.get("window_start_s") or 0.0)
        table = _checked(cells, spec.key, values[spec.key])
        if table:
            windows.append((start_s, list(table), list(accumulate(table.values()))))
    known = f"clients: {', '.join(map(str, clients))}" if clients else "no clients are named"
    if not windows:
        raise ValueError(f"{path}: no {spec.key} of client {spec.client}; {known}")
    if spec.client is None and len(clients) > 1:
        raise ValueError(f"{path}: holds several clients; choose one with `client`; {known}")
    if [w[0] for w in windows] != sorted({w[0] for w in windows}):
        raise ValueError(f"{path}: window_start_s must ascend")
    return windows


def _checked(cells: Cells, key: str, table: object) -> Mapping[int, float]:
    if not isinstance(table, dict):
        raise cells.error(key, table, "an object of tokens to probability")
    found = {}
    for tokens, share in table.items():
        count = cells.tokens(key, tokens)
        weight = cells.number(f"{key}.{tokens}", share, "a probability from 0 to 1")
        if count and weight:
            found[count] = weight
    return dict(sorted(found.items()))
