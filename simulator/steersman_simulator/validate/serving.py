"""A small world for a check: one engine, under a fixed K or under K that change at given moments."""

from collections.abc import Sequence

from msgspec import Struct

from steersman_controller.events import ControllerConfig
from steersman_policies.messages import StepReport
from steersman_policies.view import SegmentBelief
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.simulate import started
from steersman_simulator.truths.step_work import Truth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.cluster import ENGINE_ID
from steersman_simulator.world.hello import plain_hello
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, Change, Outcome, World

SEGMENT = "chat"

PREFILL_BUDGET_TOKENS = 1 << 24
"""Whole prompts at once."""

PLAN_INTERVAL_S = 10.0
"""K is fixed, and a change is planned at once: nothing is gained by plans in between."""


class Served(Struct, frozen=True):
    """What a world did, and what its controller believes at the end, where there was one."""

    outcome: Outcome
    belief: tuple[SegmentBelief, ...]

    @property
    def steps(self) -> list[StepReport]:
        """Every step, in order."""
        return [step.report for step in self.outcome.steps]

    def outcomes(self, k: int) -> dict[int, int]:
        """How many drafts of exactly `k` tokens were accepted up to each length."""
        found = dict.fromkeys(range(k + 1), 0)
        for step in self.steps:
            for group in step.groups:
                for drafted, accepted, count in group.outcomes:
                    if drafted == k:
                        found[accepted] = found.get(accepted, 0) + count
        return found


def serve(
    arrivals: Sequence[Arrival],
    *,
    truth: Truth,
    acceptance: Acceptance,
    k: int,
    max_batch: int,
    seed: int,
) -> Served:
    """Serve the arrivals in one world without a controller, under a fixed K."""
    world = World(
        started=None,
        hello=plain_hello(max(k, 1), max_batch),
        shape=Shape(max_batch, PREFILL_BUDGET_TOKENS),
        truth=truth,
        acceptance=acceptance,
        seed=seed,
        fixed_k=k,
    )
    return Served(world.run([Arm("check", arrivals)]), ())


def watched(
    arrivals: Sequence[Arrival],
    *,
    truth: Truth,
    acceptance: Acceptance,
    changes: Sequence[tuple[float, int]],
    max_batch: int,
    seed: int,
) -> Served:
    """The same beside a controller that learns, and under K that change at these moments; the first is 0."""
    first, *_ = changes
    world = World(
        started=started(ControllerConfig(plan_interval_s=PLAN_INTERVAL_S), "fixed", {"k": first[1]}),
        hello=plain_hello(max(k for _, k in changes), max_batch),
        shape=Shape(max_batch, PREFILL_BUDGET_TOKENS),
        truth=truth,
        acceptance=acceptance,
        seed=seed,
    )
    policies = tuple(Change(at_s, "fixed", {"k": k}) for at_s, k in changes)
    outcome = world.run([Arm("check", arrivals, policies)])
    assert world.sidecar is not None
    return Served(outcome, world.sidecar.fleet.controllers[ENGINE_ID].segments())


def closed(requests: int, output_tokens: int, *, prompt_tokens: int = 1) -> list[Arrival]:
    """Equal requests that are all there at the start, and whose drafts may reach beyond their end."""
    arrival = Arrival(0.0, SEGMENT, prompt_tokens, output_tokens, stops=True)
    return [arrival] * requests
