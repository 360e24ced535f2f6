"""When each request is sent: three phases on one time axis, the same in every arm.

quiet: about one request is live. saturated: a burst fills the batch and leaves a queue.
quiet_again: as before. The axis is stretched to the machine by a `Pace` measured once, at the
start, with drafting off; a workload that brings its own arrivals is left as it is.
"""

from collections.abc import Sequence

from msgspec import Struct

from steersman_simulator.demo.workload import WorkItem

QUIET, SATURATED, QUIET_AGAIN, GIVEN = "quiet", "saturated", "quiet_again", "given"

QUIET_SHARE = 0.07
"""Of the requests, in each of the two quiet phases, where nobody asks for another share."""

BURST_SHARE = 0.15
"""The burst arrives within this share of the time that it takes to serve."""

SLACK = 1.2
"""The last phase starts when an arm this much slower than drafting off would have drained."""


class Pace(Struct, frozen=True):
    """Seconds this machine needs with drafting off."""

    first_token_s: float
    """A lone request, sent to first token."""
    lone_token_s: float
    """A lone request, per further token."""
    crowded_first_s: float
    """A full batch, per request for its first token."""
    crowded_token_s: float
    """A full batch, per further token of any of its requests."""


class Request(Struct, frozen=True):
    """One request of an arm."""

    number: int
    """Its line among the workload's requests: the same id in every arm."""
    phase: str
    scheduled_s: float
    """From the start of the arm."""
    item: WorkItem


class Phase(Struct, frozen=True):
    """A stretch of an arm; it ends where the next begins, the last one when the arm has drained."""

    name: str
    start_s: float


class Schedule(Struct, frozen=True):
    """One arm's requests in the order of their arrival, and its phases."""

    requests: tuple[Request, ...]
    phases: tuple[Phase, ...]

    def phase_at(self, at_s: float) -> str:
        """The phase in which a moment lies; moments before the first belong to it."""
        name = self.phases[0].name
        for phase in self.phases:
            if phase.start_s <= at_s:
                name = phase.name
        return name


def make_schedule(
    items: Sequence[WorkItem], pace: Pace, *, quiet_share: float = QUIET_SHARE, slack: float = SLACK
) -> Schedule:
    """The schedule of one arm; items without arrivals are spread in order over the three phases.

    >>> pace = Pace(first_token_s=0.5, lone_token_s=0.1, crowded_first_s=0.4, crowded_token_s=0.01)
    >>> plan = make_schedule([WorkItem(prompt="a", max_tokens=10)] * 22, pace)
    >>> [(phase.name, round(phase.start_s, 2)) for phase in plan.phases]
    [('quiet', 0.0), ('saturated', 3.0), ('quiet_again', 13.8)]
    """
    if all(item.arrival_s is not None for item in items):
        return _given(items)
    quiet = round(len(items) * quiet_share)
    parts = [(QUIET, items[:quiet]), (SATURATED, items[quiet : len(items) - quiet])]
    parts.append((QUIET_AGAIN, items[len(items) - quiet :]))
    requests: list[Request] = []
    phases: list[Phase] = []
    start_s = 0.0
    for name, part in parts:
        if not part:
            continue
        phases.append(Phase(name, start_s))
        gaps_s, length_s = _burst(part, pace, slack) if name == SATURATED else _one_by_one(part, pace)
        at_s = start_s
        for item, gap_s in zip(part, gaps_s, strict=True):
            requests.append(Request(len(requests), name, at_s, item))
            at_s += gap_s
        start_s += length_s
    return Schedule(tuple(requests), tuple(phases))


def _one_by_one(items: Sequence[WorkItem], pace: Pace) -> tuple[list[float], float]:
    gaps_s = [pace.first_token_s + item.max_tokens * pace.lone_token_s for item in items]
    return gaps_s, sum(gaps_s)


def _burst(items: Sequence[WorkItem], pace: Pace, slack: float) -> tuple[list[float], float]:
    tokens = sum(item.max_tokens for item in items)
    service_s = len(items) * pace.crowded_first_s + tokens * pace.crowded_token_s
    return [service_s * BURST_SHARE / len(items)] * len(items), service_s * slack


def _given(items: Sequence[WorkItem]) -> Schedule:
    numbered = sorted(enumerate(items), key=lambda pair: (pair[1].arrival_s or 0.0, pair[0]))
    requests = tuple(Request(number, GIVEN, item.arrival_s or 0.0, item) for number, item in numbered)
    return Schedule(requests, (Phase(GIVEN, 0.0),))
