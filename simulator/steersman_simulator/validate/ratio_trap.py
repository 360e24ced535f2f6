"""V3: accepted / drafted falls with K although nothing changed; A / (A + R) does not, and is believed."""

import numpy as np

from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.report.summary import speculation, summary
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.validate.check import Asked, Check, Figure, Sample, mean_of, three_sigma
from steersman_simulator.validate.serving import SEGMENT, Served, closed, serve, watched
from steersman_simulator.world.chance import generator

RATIO = {
    0.50: {1: 0.500, 3: 0.292, 5: 0.194, 7: 0.142},
    0.66: {1: 0.660, 3: 0.461, 5: 0.340, 7: 0.262},
    0.80: {1: 0.800, 3: 0.651, 5: 0.538, 7: 0.452},
}
"""Accepted / drafted by acceptance and K (papers 1.4), to three digits."""

K_MAX = 7
REQUESTS, OUTPUT_TOKENS = 32, 600
WORLDS, FEWEST_WORLDS = 20, 8
STEP_S, K_LASTS_S = 0.01, 0.05


def ratio_samples(asked: Asked) -> list[Sample]:
    """The table, from the summary of a run under a fixed K."""
    samples = []
    for alpha, row in RATIO.items():
        for k, expected in row.items():
            served = serve(
                closed(REQUESTS, asked.count(OUTPUT_TOKENS)),
                truth=ConstantSteps(STEP_S),
                acceptance=ConstantAcceptance(alpha),
                k=k,
                max_batch=REQUESTS,
                seed=asked.seed,
            )
            metrics = summary([], served.steps, duration_s=1.0)
            counts = served.outcomes(k)
            steps = sum(counts.values())
            mean = sum(a * n for a, n in counts.items()) / steps
            spread = (sum((a - mean) ** 2 * n for a, n in counts.items()) / steps) ** 0.5
            what = f"accepted / drafted at acceptance {alpha:g}, K = {k}"
            error = spread / k / steps**0.5
            samples.append(Sample(what, expected, metrics["draft_acceptance_rate"], error, rounding=0.0005))
    return samples


def belief_samples(asked: Asked) -> list[Sample]:
    """A / (A + R) under a K that changes at random: of the records, and as the controller believes."""
    samples = []
    for alpha in RATIO:
        recorded, believed = [], []
        for world in range(_worlds(asked)):
            served = _under_random_k(alpha, world, asked)
            recorded.append(speculation(served.steps)["segments"][SEGMENT]["position_acceptance"])
            believed.append(next(b for b in served.belief if b.segment == SEGMENT).acceptance)
        for name, found in (("recorded", recorded), ("believed", believed)):
            samples += [
                mean_of(f"{name} acceptance of position {j + 1}, {alpha:g}", alpha, [row[j] for row in found])
                for j in (0, 2)
            ]
    return samples


def figures(asked: Asked) -> list[Figure]:
    """The trap, and the way out."""
    return three_sigma(ratio_samples(asked)) + three_sigma(belief_samples(asked), degrees=_worlds(asked) - 1)


def _worlds(asked: Asked) -> int:
    return max(FEWEST_WORLDS, asked.count(WORLDS))


def _under_random_k(alpha: float, world: int, asked: Asked) -> Served:
    chance = generator(asked.seed, 3, world)
    moments = np.arange(0.0, OUTPUT_TOKENS * STEP_S, K_LASTS_S).tolist()
    ks = [K_MAX, *chance.integers(1, K_MAX + 1, len(moments) - 1).tolist()]
    return watched(
        closed(REQUESTS, asked.count(OUTPUT_TOKENS)),
        truth=ConstantSteps(STEP_S),
        acceptance=ConstantAcceptance(alpha),
        changes=list(zip(moments, ks, strict=True)),
        max_batch=REQUESTS,
        seed=asked.seed + 1000 * world,
    )


CHECK = Check(
    "V3",
    "the ratio trap",
    "accepted / drafted by K as tabulated; A / (A + R) unbiased under random K, in records and belief",
    "3 sigma",
    figures,
)
