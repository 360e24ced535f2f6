"""Made-up traffic: Poisson, Gamma, on and off, ramps. It has no end: say `requests` or `to_s`."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, islice, pairwise
from math import inf
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from steersman_policies.units import UNKNOWN_SEGMENT, Seconds
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.lengths import Lengths, length_drawer
from steersman_simulator.workload.rates import Piece, gamma_shape, moments
from steersman_simulator.workload.trace_file import Lost
from steersman_simulator.workload.traces import TraceSpec, read_trace
from steersman_simulator.workload.transform import Positive, Traffic
from steersman_simulator.world.chance import Chance, stream

MAX_PAIRS = 100_000
"""Lengths that are drawn from: the first so many requests of a trace."""

Rate = Annotated[float, Meta(ge=0.0, le=1e6)]
Cv = Annotated[float, Meta(ge=0.01, le=100.0)]


class MadeUp(Traffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both lengths, or a trace to draw pairs of them from (with its segments)."""

    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    lengths_from: TraceSpec | None = None
    stops: bool = False
    """Whether requests end with a stop token, so that nobody knows their length in advance."""


class Poisson(MadeUp, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="poisson"):
    """Independent arrivals."""

    rate_per_s: Positive


class Gamma(MadeUp, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gamma"):
    """Gamma gaps: burstier than Poisson above a `cv` of 1, more even below."""

    rate_per_s: Positive
    cv: Cv


class OnOff(MadeUp, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="on_off"):
    """Bursts: `on_s` seconds at one rate, `off_s` at another, in turn."""

    on_rate_per_s: Positive
    off_rate_per_s: Rate = 0.0
    on_s: Positive
    off_s: Positive
    cv: Cv = 1.0


class Ramp(MadeUp, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ramp"):
    """A rate that goes linearly from point to point, (second, rate), and stays at the last one."""

    points: Annotated[tuple[tuple[Seconds, Rate], ...], Meta(min_length=2)]
    cv: Cv = 1.0


def pieces_of(spec: Poisson | Gamma | OnOff | Ramp) -> Iterable[Piece]:
    """The rate over time, without an end. Raises ValueError for points of a ramp that do not ascend."""
    match spec:
        case Poisson(rate_per_s=rate):
            return [Piece(inf, rate, rate)]
        case Gamma(rate_per_s=rate, cv=cv):
            return [Piece(inf, rate, rate, shape=gamma_shape(cv))]
        case OnOff(on_rate_per_s=on, off_rate_per_s=off, cv=cv):
            shape = gamma_shape(cv)
            return cycle([Piece(spec.on_s, on, on, shape=shape), Piece(spec.off_s, off, off, shape=shape)])
        case Ramp(points=points, cv=cv):
            return _ramp(points, gamma_shape(cv))


def made_up(spec: MadeUp, pieces: Iterable[Piece], folder: Path, seed: int, lost: Lost) -> Iterator[Arrival]:
    """Arrivals along the pieces. Times, prompt and output lengths have a stream of chance each."""
    lengths = _lengths(spec, folder, seed, lost)
    for at_s in moments(pieces, stream(seed, 0)):
        prompt, output, segment = lengths(at_s)
        yield Arrival(at_s, segment, prompt, output, stops=spec.stops)


def _lengths(spec: MadeUp, folder: Path, seed: int, lost: Lost) -> Callable[[float], tuple[int, int, str]]:
    both = spec.prompt_tokens is not None and spec.output_tokens is not None
    if both == (spec.lengths_from is not None) or (spec.prompt_tokens is None) != (
        spec.output_tokens is None
    ):
        raise ValueError("workload: needs either prompt_tokens and output_tokens, or lengths_from")
    if spec.lengths_from is not None:
        return _drawn_from(spec.lengths_from, folder, stream(seed, 3), lost)
    assert spec.prompt_tokens is not None
    assert spec.output_tokens is not None
    prompt = length_drawer(spec.prompt_tokens, folder, stream(seed, 1))
    output = length_drawer(spec.output_tokens, folder, stream(seed, 2))
    return lambda at_s: (prompt(at_s), output(at_s), UNKNOWN_SEGMENT)


def _drawn_from(
    spec: TraceSpec, folder: Path, chance: Chance, lost: Lost
) -> Callable[[float], tuple[int, int, str]]:
    trace = islice(read_trace(spec, folder, chance, lost), MAX_PAIRS)
    held = [(each.prompt_tokens, each.output_tokens, each.segment) for each in trace]
    if not held:
        raise ValueError(f"{folder / spec.path}: no request to draw lengths from")
    return lambda _: held[chance.randrange(len(held))]


def _ramp(points: tuple[tuple[float, float], ...], shape: float) -> Iterable[Piece]:
    if any(later[0] <= earlier[0] for earlier, later in pairwise(points)) or points[0][0] != 0.0:
        raise ValueError("workload.points: seconds must begin at 0 and ascend")
    slopes = (Piece(b[0] - a[0], a[1], b[1], shape=shape) for a, b in pairwise(points))
    last = points[-1][1]
    return chain(slopes, [Piece(inf, last, last, shape=shape)] if last else [])
