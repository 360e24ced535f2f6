"""The arms, the order in which they run, and what one run of an arm left behind."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from steersman_policies.messages import StepReport
from steersman_simulator.demo.client import Outcome
from steersman_simulator.demo.schedule import Schedule


class Arm(Struct, frozen=True):
    """A policy under its name in the report."""

    name: str
    policy: str = ""
    """Empty: whatever its engine was launched with."""
    params: dict[str, Any] = {}
    engine_id: str = ""
    """The engine that serves it, where there are several."""


OFF = Arm("off", "off")
FIXED = Arm("fixed", "fixed", {"k": 4})
STEERED = Arm("steered", "goodput")
ARMS = (OFF, FIXED, STEERED)


class TimedStep(Struct, frozen=True):
    """A step and when it was over, from the start of its arm's run."""

    at_s: float
    report: StepReport


class ArmRun(Struct, frozen=True):
    """One arm in one round, live or simulated."""

    arm: str
    round: int
    schedule: Schedule
    outcomes: tuple[Outcome, ...]
    steps: tuple[TimedStep, ...]

    @property
    def served(self) -> list[Outcome]:
        """Requests that came to their end."""
        return [outcome for outcome in self.outcomes if not outcome.error]

    def reports(self, phase: str | None = None) -> list[StepReport]:
        """Steps of a phase, or all. A phase lasts until its last request has ended."""
        starts = self._phase_starts()
        return [
            step.report
            for step in self.steps
            if phase is None or phase == max(p for p in starts if p[0] <= max(step.at_s, 0.0))[1]
        ]

    def _phase_starts(self) -> list[tuple[float, str]]:
        # An arm that has not drained in time would bill its backlog to the phase that follows.
        starts, ended_s = [], 0.0
        for phase in self.schedule.phases:
            starts.append((max(phase.start_s, ended_s), phase.name))
            mine = (o.last_token_s or 0.0 for o in self.outcomes if o.phase == phase.name)
            ended_s = max(ended_s, max(mine, default=0.0))
        return starts


def running_order(rounds: int, arms: Sequence[Arm] = ARMS) -> list[tuple[int, Arm]]:
    """(round, arm) in time order: every second round backwards, so that a drift hits all arms alike.

    >>> [(number, arm.name) for number, arm in running_order(2)]
    [(1, 'off'), (1, 'fixed'), (1, 'steered'), (2, 'steered'), (2, 'fixed'), (2, 'off')]
    """
    return [
        (number, arm)
        for number in range(1, rounds + 1)
        for arm in (arms if number % 2 else tuple(reversed(arms)))
    ]
