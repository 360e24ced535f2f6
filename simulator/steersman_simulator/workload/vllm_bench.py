"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object with arrays over requests.

`input_lens`, `output_lens`, `start_times` (s, any origin). Where `start_times` are missing, arrivals are
drawn again as vLLM draws them: Gamma gaps of shape `burstiness` at `request_rate`. A request that failed
has no output; it is left out and counted. With `--append-result` a file holds several runs, one a line.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.rows import check_regular, is_gzip
from steersman_simulator.workload.trace_file import Lost, Placed, TraceFile, from_first, in_order
from steersman_simulator.workload.values import Cells
from steersman_simulator.world.chance import Chance

MAX_BYTES = 1 << 30
"""One JSON object cannot be read in parts; a million requests are a tenth of this."""


class VllmBench(TraceFile, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="vllm_bench"):
    """One such file."""

    run: Annotated[int, Meta(ge=0)] = 0
    """Which run, from 1 on, of a file that holds several."""


class Result(Struct, frozen=True):
    """What is read of a result; the rest is passed over."""

    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    start_times: list[float] | None = None
    request_rate: float | str = "inf"
    burstiness: float = 1.0


def read_vllm_bench(spec: VllmBench, path: Path, lost: Lost, chance: Chance) -> Iterator[Arrival]:
    """Its requests, from the first one on. The line of an error is the place of the request in the arrays."""
    found = _results(path)
    if spec.run > len(found) or (len(found) > 1 and not spec.run):
        raise ValueError(f"{path}: holds {len(found)} runs; choose one with `run: 1` to `run: {len(found)}`")
    result = found[max(0, spec.run - 1)]
    return from_first(in_order(spec, path, _placed(path, result, chance), lost))


def _placed(path: Path, result: Result, chance: Chance) -> Iterator[Placed]:
    if result.input_lens is None or result.output_lens is None:
        missing = "input_lens" if result.input_lens is None else "output_lens"
        raise ValueError(
            f"{path}:1: no {missing!r}; allowed is what `vllm bench serve --save-detailed` saves"
        )
    start_times = _drawn(path, result, chance) if result.start_times is None else result.start_times
    sizes = {len(result.input_lens), len(result.output_lens), len(start_times)}
    if len(sizes) > 1:
        raise ValueError(f"{path}:1: input_lens, output_lens and start_times differ in length")
    cells = Cells(path)
    rows = zip(start_times, result.input_lens, result.output_lens, strict=True)
    for cells.at, (at_s, prompt, output) in enumerate(rows, start=1):
        yield Placed(
            cells.at,
            Arrival(
                at_s=cells.seconds("start_times", at_s),
                segment=UNKNOWN_SEGMENT,
                prompt_tokens=cells.tokens("input_lens", prompt),
                output_tokens=cells.tokens("output_lens", output),
            ),
        )


def _drawn(path: Path, result: Result, chance: Chance) -> list[float]:
    count = len(result.input_lens or ())
    try:
        rate = float(result.request_rate)
        if not (rate > 0.0 and result.burstiness > 0.0):
            raise ValueError
    except ValueError:
        found = f"request_rate {result.request_rate!r}, burstiness {result.burstiness!r}"
        raise ValueError(f"{path}:1: {found}; both must be above 0 where there are no start_times") from None
    moments, at_s = [], 0.0
    for _ in range(count):
        moments.append(at_s)
        at_s += chance.gammavariate(result.burstiness, 1.0 / (rate * result.burstiness))
    return moments


def _results(path: Path) -> list[Result]:
    check_regular(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:1: truncated or damaged gzip ({error})") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: more than {MAX_BYTES} bytes, which is the limit for one JSON object")
    decoder = msgspec.json.Decoder(Result)
    found: list[Result] = []
    try:
        try:
            return [decoder.decode(data)]
        except msgspec.DecodeError:
            for line in data.split(b"\n"):
                if line.strip():
                    found.append(decoder.decode(line))
            return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        at = len(found) + 1
        raise ValueError(f"{path}:{at}: no result of `vllm bench serve` ({error})") from None
