"""How fast this machine serves with drafting off, from a few small flights at the start."""

from collections.abc import Sequence

from steersman_simulator.demo.client import Flight, Outcome
from steersman_simulator.demo.live import View
from steersman_simulator.demo.processes import ChildError, Children
from steersman_simulator.demo.schedule import Pace, Request
from steersman_simulator.demo.serving import Stack
from steersman_simulator.demo.spans import LOOK_INTERVAL_S, SETTLE_S
from steersman_simulator.demo.workload import WorkItem

WARM_UP_TOKENS = 8

LEAST_GAIN = 4.0
"""A full batch is believed to give at least this many times the tokens per second of one request."""


def measure_pace(stack: Stack, items: Sequence[WorkItem], children: Children, view: View) -> Pace:
    """Small flights with drafting off: one to warm up, one request alone, two full batches."""
    view.stage("measuring the machine's pace with drafting off")
    batch = stack.max_batch
    fly(stack, together(items[:2], WARM_UP_TOKENS), children)
    lone = fly(stack, together(items[:1], 2 * WARM_UP_TOKENS), children)[0]
    short, long = (fly(stack, together(items[-batch:], tokens), children) for tokens in (1, WARM_UP_TOKENS))
    stack.sleep(SETTLE_S)
    first_s, lone_s = lone.ttft_s or 0.0, lone.tpot_s or 0.0
    short_s, long_s = (max(outcome.last_token_s or 0.0 for outcome in crowd) for crowd in (short, long))
    tokens = max(1, sum(outcome.tokens - 1 for outcome in long))
    # Something else on the machine may have disturbed so short a look; the bounds keep the arms short.
    crowded_first_s = min(short_s / len(short), first_s)
    crowded_s = min(max((long_s - short_s) / tokens, lone_s / batch), lone_s / LEAST_GAIN)
    return Pace(first_s, lone_s, crowded_first_s, crowded_s)


def together(items: Sequence[WorkItem], max_tokens: int | None = None) -> list[Request]:
    """Requests that are all sent at once, each cut at `max_tokens` where given."""
    return [
        Request(
            number,
            "",
            0.0,
            WorkItem(item.prompt, item.messages, item.segment, None, max_tokens or item.max_tokens),
        )
        for number, item in enumerate(items)
    ]


def fly(
    stack: Stack, requests: Sequence[Request], children: Children, *, at_most: int | None = None
) -> list[Outcome]:
    """The outcomes of requests that serve no arm. Raises ChildError where one of them fails."""
    flight = Flight(stack.base_url, stack.model, requests, carrier=stack.carrier, at_most=at_most)
    flight.start()
    while not flight.wait(LOOK_INTERVAL_S):
        children.check()
    outcomes = flight.outcomes()
    failed = next((outcome for outcome in outcomes if outcome.error), None)
    if failed is not None:
        raise ChildError(f"the engine refused a warm-up request: {failed.error}")
    return outcomes
