"""V7: mean latency against the request rate, L = C1 / (1 - rate x C2), at a fixed K below saturation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steersman_simulator.acceptance.segments import ConstantAcceptance, expected_tokens
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.validate.check import Asked, Check, Figure
from steersman_simulator.validate.queueing import poisson
from steersman_simulator.validate.serving import serve
from steersman_simulator.world.chance import stream

TRUTH = ConstantSteps(step_s=0.02, per_token_s=2e-4, per_draft_token_s=5e-4)
ACCEPTANCE = 0.7
OUTPUT_TOKENS = 60
LOADS = (0.15, 0.3, 0.45, 0.6, 0.7)
"""Of the rate at which the formula diverges."""

REQUESTS = 5000
MEASURED = (0.3, 0.9)
"""The stretch of the requests whose latency counts: after the queue has filled, before arrivals end."""

SLOTS = 512


def figures(asked: Asked) -> list[Figure]:
    """For K = 0 and 3: how well the form fits, and whether its constants are those of the step cost."""
    found = []
    for k in (0, 3):
        rates = np.array(LOADS) / constants(k, (OUTPUT_TOKENS - 1) / expected_tokens(ACCEPTANCE, k))[1]
        measured = [_latency_and_steps(k, rate, number, asked) for number, rate in enumerate(rates.tolist())]
        c1_s, c2_s = constants(k, float(np.mean([steps for _, steps in measured])))
        fitted_c1, fitted_c2, r2 = fit(rates, [latency_s for latency_s, _ in measured])
        found += [
            Figure(f"K = {k}: R2 of the form", 0.98, r2, 0.0, "at_least"),
            Figure(f"K = {k}: C1 relative to the step cost", 1.0, fitted_c1 / c1_s, 0.1),
            Figure(f"K = {k}: C2 relative to the step cost", 1.0, fitted_c2 / c2_s, 0.1),
        ]
    return found


def constants(k: int, steps: float) -> tuple[float, float]:
    """C1 and C2: seconds of a request alone, and what each other request adds.

    To the `steps` that decode comes one that prefills a token, and half a step until that one begins.
    """
    tokens_s = TRUTH.per_token_s * (steps * (k + 1) + 1)
    return (steps + 1.5) * TRUTH.step_s + tokens_s + steps * TRUTH.per_draft_token_s * k, tokens_s


def _latency_and_steps(k: int, per_s: float, number: int, asked: Asked) -> tuple[float, float]:
    """Means over requests: seconds end to end, and steps."""
    chance = stream(asked.seed, 7, number)
    arrivals = poisson(per_s, asked.count(REQUESTS), chance, output_tokens=OUTPUT_TOKENS)
    acceptance = ConstantAcceptance(ACCEPTANCE)
    served = serve(arrivals, truth=TRUTH, acceptance=acceptance, k=k, max_batch=SLOTS, seed=asked.seed)
    reports = sorted((s.report for s in served.outcome.served), key=lambda report: report.request)
    first, last = (round(part * len(reports)) for part in MEASURED)
    inside = reports[first:last]
    return float(np.mean([r.e2e_s for r in inside])), float(np.mean([r.steps for r in inside]))


def fit(rates: NDArray[np.float64], latencies: Sequence[float]) -> tuple[float, float, float]:
    """C1, C2, and R2 (of L), of L = C1 / (1 - rate x C2), by least squares on log L.

    >>> [round(x, 3) for x in fit(np.array([0.1, 0.2, 0.3]), [1 / 0.9, 1 / 0.8, 1 / 0.7])]
    [1.0, 1.0, 1.0]
    """
    from scipy.optimize import curve_fit

    found = np.asarray(latencies)
    slope, start = np.polyfit(rates, 1.0 / found, 1)
    first = (1.0 / start, -slope / start)
    # On logarithms: the longest latencies are also the least certain ones.
    form = lambda rate, c1, c2: np.log(c1) - np.log1p(-rate * c2)  # noqa: E731
    (c1, c2), _ = curve_fit(form, rates, np.log(found), p0=first)
    left = found - c1 / (1.0 - rates * c2)
    return float(c1), float(c2), 1.0 - float(left @ left) / float(((found - found.mean()) ** 2).sum())


CHECK = Check(
    "V7",
    "latency under load",
    "L = C1 / (1 - rate x C2) with Poisson arrivals at fixed K below 80 % load, and its constants",
    "R2 >= 0.98; constants 10 %",
    figures,
)
