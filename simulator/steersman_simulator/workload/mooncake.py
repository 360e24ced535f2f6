"""Mooncake's traces (Qin et al., FAST 2025): JSON lines with the prefix blocks of every prompt.

`timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (of 512-token blocks; prompts with
equal leading ids share a prefix). Arrivals stand on ticks of 3 s; they are spread inside them by chance.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.trace_file import Lost, RowFile, in_order, placed_rows
from steersman_simulator.workload.values import Cells
from steersman_simulator.world.chance import Chance

COLUMNS = ("timestamp", "input_length", "output_length")
MAX_IN_TICK = 1_000_000


class Mooncake(RowFile, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mooncake"):
    """One such file."""

    tick_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 3.0
    """Requests of one moment are spread over so long, at most to the next moment; 0: as they stand."""
    hash_block_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 512


def read_mooncake(spec: Mooncake, path: Path, lost: Lost, chance: Chance) -> Iterator[Arrival]:
    """Its requests at the times that the file says, spread inside their ticks."""

    def build(cells: Cells, values: Mapping[str, Any]) -> Arrival:
        prompt = cells.tokens("input_length", values["input_length"])
        ids = cells.ids("hash_ids", values.get("hash_ids"))
        blocks = -(-prompt // spec.hash_block_tokens)
        if len(ids) > blocks:
            fits = f"at most {blocks} ids for {prompt} tokens in blocks of {spec.hash_block_tokens}"
            raise cells.error("hash_ids", f"{len(ids)} ids", fits)
        return Arrival(
            at_s=cells.seconds("timestamp", values["timestamp"], 1e-3),
            segment=UNKNOWN_SEGMENT,
            prompt_tokens=prompt,
            output_tokens=cells.tokens("output_length", values["output_length"]),
            hash_ids=ids,
            hash_block_tokens=spec.hash_block_tokens if ids else 0,
        )

    flow = in_order(spec, path, placed_rows(spec, path, COLUMNS, build), lost)
    return _spread(flow, spec.tick_s, path, chance) if spec.tick_s else flow


def _spread(flow: Iterable[Arrival], tick_s: float, path: Path, chance: Chance) -> Iterator[Arrival]:
    held: list[Arrival] = []
    for at_s, group in groupby(flow, key=lambda arrival: arrival.at_s):
        if held:
            yield from _within(held, min(tick_s, at_s - held[0].at_s), chance)
        held = list(islice(group, MAX_IN_TICK + 1))
        if len(held) > MAX_IN_TICK:
            raise ValueError(
                f"{path}: more than {MAX_IN_TICK} requests at {at_s} s; allowed with `tick_s: 0`"
            )
    yield from _within(held, tick_s, chance)


def _within(held: list[Arrival], width_s: float, chance: Chance) -> Iterator[Arrival]:
    moments = sorted(chance.random() * width_s for _ in held)
    return (
        replace(arrival, at_s=arrival.at_s + later_s) for arrival, later_s in zip(held, moments, strict=True)
    )
