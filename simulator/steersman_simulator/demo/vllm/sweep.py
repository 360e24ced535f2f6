"""vLLM's own batch table, tuned as its user would: measure every K at some batch sizes, take the best.

Each point is a closed loop under one fixed K. What counts is the busy seconds per token of the steps whose
batch lies in the range that the point will rule, so neither the first nor the last requests of the
loop, which run in smaller batches, say anything about larger ones.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from steersman_controller.trace.recording import Recording, read_recording
from steersman_policies.messages import StepReport
from steersman_simulator.demo.arms import Arm
from steersman_simulator.demo.live import View
from steersman_simulator.demo.measure import busy
from steersman_simulator.demo.pace import fly, together
from steersman_simulator.demo.processes import ChildError, Children
from steersman_simulator.demo.serving import Stack
from steersman_simulator.demo.spans import SETTLE_S, set_policy
from steersman_simulator.demo.vllm.launch import Table
from steersman_simulator.demo.workload import WorkItem

LENGTHS = (0, 1, 2, 4, 8)
REQUESTS = {1: 5, 4: 12, 16: 32}
"""By requests at a time: enough for some seconds of steps at that batch."""


class Stretch(Struct, frozen=True):
    """When one point was measured, on the monotonic clock."""

    batch: int
    k: int
    from_s: float
    to_s: float


class Point(Struct, frozen=True):
    """What one K cost at one batch size."""

    batch: int
    k: int
    busy_s: float
    tokens: int
    steps: int

    @property
    def s_per_token(self) -> float:
        """Busy seconds per committed token."""
        return self.busy_s / self.tokens


def sweep(
    stack: Stack, items: Sequence[WorkItem], folder: Path, children: Children, view: View
) -> tuple[Point, ...]:
    """Measure every K at every batch size on a server that follows its sidecar, which records to `folder`.

    Raises ChildError where the server does not follow or a stretch holds no step.
    """
    stretches = []
    for turn, (batch, count) in enumerate(REQUESTS.items()):
        requests = together([items[i % len(items)] for i in range(count)])
        # Up and down in turns, so that a drift of the machine favours no K everywhere.
        for k in LENGTHS if turn % 2 == 0 else reversed(LENGTHS):
            view.stage(f"sweep for vLLM's own table: K = {k}, {batch} at a time")
            set_policy(stack, Arm("sweep", "fixed", {"k": k}))
            from_s = stack.clock()
            fly(stack, requests, children, at_most=batch)
            stack.sleep(SETTLE_S)
            stretches.append(Stretch(batch, k, from_s, stack.clock()))
    return points(read_recording(folder), stack.engine_id, stretches, stack.max_batch)


def points(
    recording: Recording, engine_id: str, stretches: Sequence[Stretch], max_batch: int
) -> tuple[Point, ...]:
    """The points of some stretches. Raises ChildError where one holds no step at its batch size."""
    received = list(recording.records(engine_id))
    ruled = ranges({stretch.batch for stretch in stretches}, max_batch)
    found = []
    for stretch in stretches:
        first, last = ruled[stretch.batch]
        spent = busy(
            event.record
            for event in received
            if isinstance(event.record, StepReport)
            and stretch.from_s <= event.at_s < stretch.to_s
            and first <= event.record.decode_requests <= last
        )
        if not spent.tokens:
            raise ChildError(f"the sweep saw no step of {first} to {last} requests under K = {stretch.k}")
        found.append(Point(stretch.batch, stretch.k, spent.seconds, spent.tokens, spent.steps))
    return tuple(found)


def ranges(batches: Iterable[int], max_batch: int) -> dict[int, tuple[int, int]]:
    """First and last batch size that each measured one rules; borders lie at the geometric mean.

    >>> ranges([16, 1, 4], 16)
    {1: (1, 2), 4: (3, 8), 16: (9, 16)}
    """
    ascending = sorted(batches)
    borders = [math.isqrt(below * above) for below, above in pairwise(ascending)]
    firsts, lasts = [1, *(border + 1 for border in borders)], [*borders, max_batch]
    return dict(zip(ascending, zip(firsts, lasts, strict=True), strict=True))


def tuned_table(measured: Sequence[Point], max_batch: int) -> Table:
    """The K with the least busy seconds per token in each range; the smaller one where they tie.

    >>> cost = {(1, 0): 6.0, (1, 4): 2.0, (16, 0): 0.5, (16, 4): 0.7}
    >>> tuned_table([Point(batch, k, s, 1, 1) for (batch, k), s in cost.items()], 16)
    ((1, 4, 4), (5, 16, 0))
    """
    ruled = ranges({point.batch for point in measured}, max_batch)
    table = []
    for batch, (first, last) in ruled.items():
        here = [point for point in measured if point.batch == batch]
        table.append((first, last, min(here, key=lambda point: (point.s_per_token, point.k)).k))
    return tuple(table)
