"""The ratio trap in a closed loop: the same rule and the same drafts, only the estimator differs.

Step seconds are those that SpecDecode-Bench published for Llama-3.1-8B with EAGLE on an H100, at batch 8. Its
recorded drafts leave 1.02x of 2.04x in the trap; independent ones have 1.87x to lose.
"""

from collections.abc import Callable

import numpy as np
import pytest
import traffic

from steersman_controller.belief.belief import Belief

BATCH = 8
CONTEXT_TOKENS = 600 * BATCH
ALPHA = 0.64
DECIDE_STEPS = 20
KS = range(8)

Expected = Callable[[int], float]
"""Tokens per step and request expected at a K."""


def step_s(k: int) -> float:
    verify_s = 5.88590713e-3 + 2.10103129e-5 * BATCH * (k + 1) + 3.92645679e-8 * CONTEXT_TOKENS
    return verify_s + 1.20683946e-3 + (2.13526175e-3 if k else 0.0)


def smartspec(expected: Expected) -> int:
    """The K of the most expected tokens per second."""
    return max(KS, key=lambda k: expected(k) / step_s(k))


class Chain:
    """Accepted / drafted, taken for the acceptance of each token."""

    def __init__(self) -> None:
        self.accepted, self.drafted = 0.0, 1e-9

    def learn(self, step: int, k: int, accepted: list[int]) -> None:
        self.accepted = 0.995 * self.accepted + sum(accepted)
        self.drafted = 0.995 * self.drafted + k * len(accepted)

    def expected(self, k: int) -> float:
        return sum((self.accepted / self.drafted) ** j for j in range(k + 1))


class Believed:
    """The belief: accepted / reached, by position."""

    def __init__(self) -> None:
        self.belief = Belief(traffic.HELLO)

    def learn(self, step: int, k: int, accepted: list[int]) -> None:
        self.belief.observe(traffic.report(step, [traffic.group("code", k, accepted)], verify_s=step_s(k)))

    def expected(self, k: int) -> float:
        found = next(one for one in self.belief.segments() if one.segment == "code")
        return 1.0 + found.gains()[k]


def speedup(estimator: Chain | Believed, steps: int = 2000) -> tuple[float, int]:
    """Tokens per second over those without speculation, and the K at the end. Off is never probed."""
    rng, k, tokens, seconds = np.random.default_rng(1), 7, 0, 0.0
    for step in range(steps):
        accepted = np.minimum(rng.geometric(1.0 - ALPHA, BATCH) - 1, k).tolist()
        tokens, seconds = tokens + BATCH + sum(accepted), seconds + step_s(k)
        if k:
            estimator.learn(step, k, accepted)
        if k and step % DECIDE_STEPS == DECIDE_STEPS - 1:
            k = smartspec(estimator.expected)
    return tokens / seconds / (BATCH / step_s(0)), k


def test_smartspec_fed_with_the_ratio_locks_itself_off() -> None:
    """It gives a speedup of 1.87 away and stays at K = 0; the belief takes what is there."""
    best = max(sum(ALPHA**j for j in range(k + 1)) / step_s(k) for k in KS) * step_s(0)
    assert best == pytest.approx(1.87, abs=0.02)
    trapped, held = speedup(Chain())
    assert trapped == pytest.approx(1.02, abs=0.03)
    assert held == 0
    found, chosen = speedup(Believed())
    assert found > 0.98 * best
    assert chosen >= 6
