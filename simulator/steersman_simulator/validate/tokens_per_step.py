"""V2: tokens of a step, drawn in the world."""

from collections.abc import Sequence

import numpy as np

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.by_position import by_position
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.validate.check import Asked, Check, Figure, Sample, share_of, three_sigma
from steersman_simulator.validate.serving import closed, serve

CONSTANT = ((0.5, 1), (0.7, 4), (0.9, 8))
BY_POSITION = ((0.92, 0.68, 0.38), (0.608, 0.641, 0.692, 0.749, 0.769))
"""Falling (GLM-4.5-Air) and rising with depth (EAGLE-3 on InstructCoder): papers 4.2 and 5.1."""

REQUESTS, OUTPUT_TOKENS = 64, 1500


def step_samples(name: str, drawn: Acceptance, hazards: Sequence[float], asked: Asked) -> list[Sample]:
    """E[N] = 1 + sum S_j, and P(N = n) = S_(n-1) (1 - a_n), S_K for the last (papers 1.2)."""
    k = len(hazards)
    arrivals = closed(REQUESTS, asked.count(OUTPUT_TOKENS))
    served = serve(
        arrivals, truth=ConstantSteps(0.01), acceptance=drawn, k=k, max_batch=REQUESTS, seed=asked.seed
    )
    found = served.outcomes(k)
    steps = sum(found.values())
    survival = np.cumprod([1.0, *hazards])
    chance = survival * np.array([*(1.0 - a for a in hazards), 1.0])
    accepted = np.arange(k + 1)
    mean, tokens = float(chance @ accepted), sum(a * n for a, n in found.items()) / steps
    error = float(np.sqrt((chance @ (accepted - mean) ** 2) / steps))
    return [
        Sample(f"{name}: E[N]", 1.0 + mean, 1.0 + tokens, error),
        *(share_of(f"{name}: P(N = {a + 1})", float(chance[a]), found[a], steps) for a in accepted.tolist()),
    ]


def figures(asked: Asked) -> list[Figure]:
    """Every case in a world of its own."""
    samples: list[Sample] = []
    for alpha, k in CONSTANT:
        name = f"constant {alpha:g}, K = {k}"
        samples += step_samples(name, ConstantAcceptance(alpha), (alpha,) * k, asked)
    for hazards in BY_POSITION:
        name = "by position " + " ".join(f"{a:g}" for a in hazards)
        samples += step_samples(name, by_position({UNKNOWN_SEGMENT: hazards}), hazards, asked)
    return three_sigma(samples)


CHECK = Check(
    "V2",
    "tokens per step",
    "E[N] and P(N = n) of steps drawn in the world, for constant acceptance and acceptance by position",
    "3 sigma",
    figures,
)
