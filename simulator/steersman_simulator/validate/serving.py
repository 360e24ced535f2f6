"""A small world for a check: one engine under a fixed K, or under K that change at given moments."""

from collections.abc import Sequence

from msgspec import Struct

from steersman_controller.events import ControllerConfig
from steersman_policies.messages import Fingerprint, Hello, StepReport
from steersman_policies.view import SegmentBelief
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.simulate import started
from steersman_simulator.truths.step_work import Truth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import ENGINE_ID, Arm, Change, Outcome, World

SEGMENT = "chat"

PLAN_INTERVAL_S = 10.0
"""K is fixed, and a change is planned at once: nothing is gained by plans in between."""


class Served(Struct, frozen=True):
    """What a world did, and what its controller believes at the end."""

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


def hello(k_max: int, max_batch: int) -> Hello:
    """An engine in which every K up to `k_max` is reachable, by request."""
    fingerprint = Fingerprint(
        "simulated", "1", "target", "drafter", "1", "eagle", "none", "float16", "none", ""
    )
    return Hello(
        fingerprint=fingerprint,
        k_max=k_max,
        reachable_k=tuple(range(k_max + 1)),
        k_floor=0,
        launch_k=0,
        max_batch=max_batch,
        per_request_k=True,
        draft_timing=True,
        confidence=False,
        drafter_state_survives_off=True,
    )


def serve(
    arrivals: Sequence[Arrival],
    *,
    truth: Truth,
    acceptance: Acceptance,
    k: int | Sequence[tuple[float, int]],
    max_batch: int,
    seed: int,
    prefill_budget_tokens: int = 1 << 24,
) -> Served:
    """Serve the arrivals in one world. `k`: the K from the start on, or (moment, K) of each change."""
    changes = [(0.0, k)] if isinstance(k, int) else list(k)
    steps = tuple(Change(at_s, "fixed", {"k": to}) for at_s, to in changes)
    k_max = max(1, *(to for _, to in changes))
    world = World(
        started=started(ControllerConfig(plan_interval_s=PLAN_INTERVAL_S), "fixed", {"k": changes[0][1]}),
        hello=hello(k_max, max_batch),
        shape=Shape(max_batch, prefill_budget_tokens),
        truth=truth,
        acceptance=acceptance,
        seed=seed,
    )
    outcome = world.run([Arm("check", tuple(arrivals), steps)])
    return Served(outcome, world.steering.fleet.controllers[ENGINE_ID].segments())


def closed(requests: int, output_tokens: int, *, prompt_tokens: int = 1) -> list[Arrival]:
    """Equal requests that are all there at the start, and whose drafts may reach beyond their end."""
    arrival = Arrival(0.0, SEGMENT, prompt_tokens, output_tokens, stops=True)
    return [arrival] * requests
