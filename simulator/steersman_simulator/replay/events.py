"""A recording, event by event, on a virtual clock: what would the controller have planned?

The fleet changes by events alone, so a fresh one that meets the same events at the same moments
makes the same plans and ends in the same state as the sidecar that recorded them.
"""

from collections.abc import Iterable, Sequence

import simpy
from simpy.events import ProcessGenerator

from steersman_controller.events import Event, Started, Ticked
from steersman_controller.fleet import Fleet
from steersman_policies.plan import Plan


def replay(events: Iterable[Event], env: simpy.Environment) -> tuple[list[Plan], dict[str, bytes]]:
    """The plans made anew, in order, and the snapshot of every engine's controller at the end.

    Recorded ticks say *when* a plan was asked for; the fleet plans anew. `env` starts
    at or before the first event. Raises ValueError where the events do not begin with `Started`.
    """
    first, *rest = events
    if not isinstance(first, Started):
        raise ValueError(f"trace: begins with {type(first).__name__}, not with Started")
    fleet = Fleet(first)
    plans: list[Plan] = []
    env.run(until=env.process(_apply(fleet, rest, plans, env)))
    return plans, {engine_id: c.snapshot() for engine_id, c in sorted(fleet.controllers.items())}


def _apply(
    fleet: Fleet, events: Sequence[Event], plans: list[Plan], env: simpy.Environment
) -> ProcessGenerator:
    yield env.timeout(0.0)
    for event in events:
        if event.at_s > env.now:
            yield env.timeout(event.at_s - env.now)
        # Two stamps can differ by less than the clock can add: the recorded stamp is what counts.
        plan = fleet.apply(event)
        if plan is not None and isinstance(event, Ticked):
            plans.append(plan)
