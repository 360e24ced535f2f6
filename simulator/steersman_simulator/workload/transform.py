"""What can be done to any traffic: a part of it, again and again, denser, stretched, sorted into segments.

In this order: `from_s`, `to_s`, `requests` (on the trace's own time), `loop`, `load`, `time_warp`, segments.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from steersman_policies.units import MAX_SEGMENTS, Count, Seconds, Segment
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import Chance

Positive = Annotated[float, Meta(gt=0.0, le=1e9)]

Again = Callable[[], Iterator[Arrival]]
"""The same traffic from its start."""


class Stretch(Struct, frozen=True, forbid_unknown_fields=True):
    """From `from_s` to `to_s`, time lasts `factor` times as long; below 1 the window is denser."""

    from_s: Seconds
    to_s: Seconds
    factor: Positive


class SegmentRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of these lengths, both ends included, belong to `segment`; the first rule that fits counts."""

    segment: Segment
    prompt_tokens: tuple[Count, Count] = (0, 2**53)
    output_tokens: tuple[Count, Count] = (0, 2**53)

    def fits(self, arrival: Arrival) -> bool:
        """Whether both lengths are in range."""
        low, high = self.prompt_tokens
        shortest, longest = self.output_tokens
        return low <= arrival.prompt_tokens <= high and shortest <= arrival.output_tokens <= longest


class Traffic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every workload can be told, wherever its requests come from."""

    from_s: Seconds = 0.0
    """Only what comes from here on; it becomes 0."""
    to_s: Seconds = 0.0
    """Only what comes before; 0: to the end."""
    requests: Count = 0
    """Only so many; 0: all."""
    loop: Annotated[int, Meta(ge=1, le=10**6)] = 1
    """Served so many times, one after the other."""
    load: Annotated[float, Meta(ge=1e-3, le=1e3)] = 1.0
    """So many times as dense."""
    time_warp: tuple[Stretch, ...] = ()
    segments: dict[Segment, Positive] = {}
    """Sorted into these by chance, with these weights; empty: as the trace says."""
    segment_rules: tuple[SegmentRule, ...] = ()
    """Looked at before the weights."""


def transformed(spec: Traffic, again: Again, chance: Chance) -> Iterator[Arrival]:
    """The traffic as `spec` wants it. Raises ValueError for windows that overlap or too many segments."""
    flow = _looped(spec, again) if spec.loop > 1 else _part(spec, again())
    if spec.load != 1.0:
        flow = (replace(each, at_s=each.at_s / spec.load) for each in flow)
    if spec.time_warp:
        flow = _warped(spec.time_warp, flow)
    if spec.segments or spec.segment_rules:
        flow = _sorted_into(spec, flow, chance)
    return flow


def _part(spec: Traffic, flow: Iterable[Arrival]) -> Iterator[Arrival]:
    if spec.to_s and spec.to_s <= spec.from_s:
        raise ValueError(f"workload.to_s: {spec.to_s}, must be above from_s ({spec.from_s})")
    served = 0
    for arrival in flow:
        if (spec.to_s and arrival.at_s >= spec.to_s) or (spec.requests and served == spec.requests):
            return
        if arrival.at_s >= spec.from_s:
            served += 1
            yield replace(arrival, at_s=arrival.at_s - spec.from_s) if spec.from_s else arrival


def _looped(spec: Traffic, again: Again) -> Iterator[Arrival]:
    """One round lasts to `to_s`, or one mean gap beyond its last arrival."""
    start_s = 0.0
    for _ in range(spec.loop):
        count, last_s = 0, 0.0
        for arrival in _part(spec, again()):
            count, last_s = count + 1, arrival.at_s
            yield replace(arrival, at_s=start_s + arrival.at_s)
        gap_s = last_s / (count - 1) if count > 1 else 1.0
        start_s += spec.to_s - spec.from_s if spec.to_s and not spec.requests else last_s + gap_s


def _warped(warp: tuple[Stretch, ...], flow: Iterable[Arrival]) -> Iterator[Arrival]:
    end_s = 0.0
    for window in warp:
        if not end_s <= window.from_s < window.to_s:
            raise ValueError(
                f"workload.time_warp: {window.from_s} to {window.to_s} s; windows are ascending, do not "
                "overlap, and end after they begin"
            )
        end_s = window.to_s
    for arrival in flow:
        extra_s = sum(
            (min(arrival.at_s, window.to_s) - window.from_s) * (window.factor - 1.0)
            for window in warp
            if arrival.at_s > window.from_s
        )
        yield replace(arrival, at_s=arrival.at_s + extra_s)


def _sorted_into(spec: Traffic, flow: Iterable[Arrival], chance: Chance) -> Iterator[Arrival]:
    names = list(spec.segments)
    if len({*names, *(rule.segment for rule in spec.segment_rules)}) >= MAX_SEGMENTS:
        raise ValueError(f"workload.segments: at most {MAX_SEGMENTS - 1}")
    edges = list(accumulate(spec.segments.values()))
    for arrival in flow:
        # Drawn for every request, so that a rule more moves no other request.
        drawn = chance.random()
        rule = next((rule for rule in spec.segment_rules if rule.fits(arrival)), None)
        if rule is not None:
            yield replace(arrival, segment=rule.segment)
        elif names:
            yield replace(arrival, segment=names[min(bisect(edges, drawn * edges[-1]), len(names) - 1)])
        else:
            yield arrival
