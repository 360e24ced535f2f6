"""Requests through one simulated engine at a fixed K, without a controller."""

from collections.abc import Iterable

from steersman_policies.messages import RequestReport, StepReport
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.truths.step_work import Truth
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.hello import plain_hello
from steersman_simulator.world.requests import Finished
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, World


def serve(
    arrivals: Iterable[Arrival], *, shape: Shape, truth: Truth, acceptance: Acceptance, k: int, seed: int
) -> list[RequestReport]:
    """The finished requests, in order of arrival. Raises ValueError where the engine refuses one."""
    seen = _Finished()
    world = World(
        started=None,
        hello=plain_hello(k, shape.max_batch),
        shape=shape,
        truth=truth,
        acceptance=acceptance,
        seed=seed,
        fixed_k=k,
        observer=seen,
    )
    outcome = world.run([Arm("fidelity", arrivals)])
    if outcome.rejected:
        first = outcome.rejected[0]
        raise ValueError(f"fidelity: the engine refuses request {first.request}: {first.reason}")
    return sorted(seen.reports, key=lambda report: report.request)


class _Finished:
    """Keeps what is told of finished requests, and nothing else."""

    wants_steps = False
    wants_deliveries = False

    def __init__(self) -> None:
        self.reports: list[RequestReport] = []

    def on_arm(self, arm: int) -> None:
        """There is one."""

    def on_step(self, engine: int, report: StepReport) -> None:
        """Not asked for."""

    def on_request(self, engine: int, done: Finished) -> None:
        """Keep it."""
        self.reports.append(done.report)

    def on_reject(self, request: int, reason: str) -> None:
        """The outcome has it."""
