"""A request while it is in an engine, and what is told of it when it is not any more."""

from collections.abc import Sequence

from msgspec import Struct

from steersman_policies.messages import RequestReport
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world import kernels


class Live(Struct, gc=False):
    """A request in an engine. Mutable: it belongs to one `Batch`.

    While it decodes, its counts are in a row of the batch; those here are what they were before.
    """

    ordinal: int
    arm: int
    arrival: Arrival
    arrived_s: float
    place: int = 0
    """Ordinal within its arm, on which its drafts depend."""
    admitted_s: float = -1.0
    """First time; below 0: not yet."""
    first_s: float = -1.0
    """Moment of the first token; below 0: none yet."""
    prefilled_tokens: int = 0
    prefill_tokens: int = 0
    """To be read before it decodes: its prompt, and the output so far where it was preempted."""
    committed_tokens: int = 0
    counts: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    """Steps, drafted, accepted, reached, steps with drafts."""
    blocks: int = 0
    """KV blocks while its prompt is read; shared ones included."""
    shared: list[int] = []
    """Hash ids of cached blocks that it uses."""
    hashed: int = 0
    """Hash ids of its prompt that were looked at."""
    preemptions: int = 0
    delivered_s: float = 0.0
    """When it last got tokens before it was preempted."""
    deliveries: list[tuple[float, int]] = []
    """(moment, tokens) of everything committed, where somebody wants to know."""


class Finished(Struct, frozen=True, gc=False):
    """A request that is done."""

    arm: int
    report: RequestReport
    deliveries: tuple[tuple[float, int], ...]
    preemptions: int


def finished(live: Live, committed_tokens: int, counts: tuple[int, ...], now_s: float) -> Finished:
    """The record of a request whose last token came just now."""
    arrival, later = live.arrival, committed_tokens - 1
    steps, drafted, accepted, reached, steps_drafted = counts
    report = RequestReport(
        request=live.ordinal,
        segment=arrival.segment,
        arrived_s=live.arrived_s,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=committed_tokens,
        queue_s=live.admitted_s - live.arrived_s,
        ttft_s=live.first_s - live.arrived_s,
        tpot_s=(now_s - live.first_s) / later if later else 0.0,
        e2e_s=now_s - live.arrived_s,
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        finish_reason="stop" if arrival.stops else "length",
        reached=reached,
        steps_drafted=steps_drafted,
        statistics=arrival.statistics,
    )
    return Finished(live.arm, report, tuple(live.deliveries), live.preemptions)


def counts_of(values: Sequence[int]) -> tuple[int, int, int, int, int]:
    """Steps, drafted, accepted, reached, steps with drafts, from a row by field."""
    return (
        values[kernels.STEPS],
        values[kernels.DRAFTED],
        values[kernels.ACCEPTED],
        values[kernels.REACHED],
        values[kernels.STEPS_DRAFTED],
    )
