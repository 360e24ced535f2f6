"""A saturated world to record in and to hold a replay against: what would the other policy really have done?

Every request waits from the start, so batches are as large under every policy, which is the question that a
replay answers.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from steersman_controller.events import ControllerConfig
from steersman_simulator.replay.result import Settings
from steersman_simulator.replay.run import replay_policies
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import Chance
from steersman_simulator.world.world import Arm, Change, Outcome, World

SELDOM = ControllerConfig(plan_interval_s=10.0)
"""Policies with nothing to learn need not be asked often."""


class NoisySteps:
    """Constant steps, 10 % slower or faster for a few steps at a time."""

    def __init__(self, steps: ConstantSteps, sd: float = 0.1, persistence: float = 0.8) -> None:
        self._steps, self._sd, self._persistence = steps, sd, persistence
        self._now = 1.0

    def sampler(self, chance: Chance) -> "NoisySteps":
        made = NoisySteps(self._steps, self._sd, self._persistence)
        made._chance = chance
        return made

    def verify_s(self, work: VerifyWork) -> float:
        return self._steps.verify_s(work) * self._now

    def draft_s(self, work: DraftWork) -> float:
        return self._steps.draft_s(work) * self._now

    def other_s(self, **work: int) -> float:
        seconds = self._steps.other_s(**work) * self._now
        fresh = self._sd * (1.0 - self._persistence**2) ** 0.5 * self._chance.gauss(0.0, 1.0)
        self._now = 1.0 + self._persistence * (self._now - 1.0) + fresh
        return seconds


def waiting(count: int, seed: int, output_tokens: int = 60) -> tuple[Arrival, ...]:
    """Requests of two segments, all there at the start."""
    rng = random.Random(seed)
    return tuple(
        Arrival(
            0.0,
            rng.choice(["edit", "chat"]),
            rng.randint(20, 200),
            rng.randint(output_tokens // 2, output_tokens * 3 // 2),
        )
        for _ in range(count)
    )


def served(
    make_world: Callable[..., World],
    policy: str,
    params: dict[str, Any],
    *,
    count: int = 220,
    seed: int = 0,
    together: bool = True,
    config: ControllerConfig = SELDOM,
    **parts: Any,
) -> Outcome:
    """A run of one policy. `together`: the engine has one K for all requests of a step."""
    parts |= {"seed": seed, "config": replace(config, seed=seed), "per_request_k": not together}
    world = make_world(policy=policy, **parts, **params)
    return world.run([Arm(policy, waiting(count, seed), (Change(0.0, policy, params),))])


def goodput(outcome: Outcome, steps: ConstantSteps) -> float:
    """Tokens per busy second, without the noise of a single run."""
    tokens = seconds = 0.0
    for step in outcome.steps:
        report = step.report
        drafts = report.target_tokens - report.decode_requests - report.prefill_tokens
        verify = VerifyWork(report.decode_requests, drafts, report.context_tokens, report.prefill_tokens)
        draft = DraftWork(report.drafting_depth, report.requests_drafting, 0)
        seconds += steps.verify_s(verify) + steps.draft_s(draft) + steps.host_s
        tokens += report.committed_tokens
    return tokens / seconds


def replayed(path: Path, *policies: tuple[str, dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """The result of a replay, without the progress."""
    return replay_policies(Settings(path, policies, **{"draws": 300} | settings), lambda text, done: None)
