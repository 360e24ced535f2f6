"""V12: without speculation, with one slot and one token a request, the world is a textbook queue."""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.truths.step_work import DraftWork, Truth, VerifyWork
from steersman_simulator.validate.check import Asked, Check, Figure, Sample, three_sigma
from steersman_simulator.validate.serving import SEGMENT, serve
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import Chance, stream

SERVICE_S = 1e-3
"""Short against the sidecar's own intervals, which cost time in a run and change nothing here."""

LOADS = (0.3, 0.6, 0.8)
REQUESTS = 30_000

Column = NDArray[np.float64]


class ExponentialSteps(Struct, frozen=True):
    """Steps of exponential length: with one token a request, exponential service."""

    mean_s: float

    def sampler(self, chance: Chance) -> "ExponentialSampler":
        """A stream of its own."""
        return ExponentialSampler(self.mean_s, chance)


class ExponentialSampler:
    """Draws a length for every forward."""

    def __init__(self, mean_s: float, chance: Chance) -> None:
        self._rate, self._chance = 1.0 / mean_s, chance

    def verify_s(self, work: VerifyWork) -> float:
        """Whatever the work."""
        del work
        return self._chance.expovariate(self._rate)

    def draft_s(self, work: DraftWork) -> float:
        """Nobody drafts."""
        del work
        return 0.0

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Nothing else."""
        del decode_requests, committed_tokens
        return 0.0


def figures(asked: Asked) -> list[Figure]:
    """M/M/1 and M/D/1 at three loads each."""
    samples: list[Sample] = []
    counts = []
    for number, load in enumerate(LOADS):
        arrivals = poisson(load / SERVICE_S, asked.count(REQUESTS), stream(asked.seed, 12, number))
        random_s = _waited(arrivals, ExponentialSteps(SERVICE_S), asked.seed)
        equal_s = _waited(arrivals, ConstantSteps(SERVICE_S), asked.seed)
        samples += [*_m_m_1(load, *random_s), *_m_d_1(load, *equal_s)]
        served = len(random_s[0]) + len(equal_s[0])
        counts.append(Figure(f"requests served at load {load:g}", 2 * len(arrivals), served, 0.0))
    return [*counts, *three_sigma(samples)]


def poisson(per_s: float, count: int, chance: Chance, *, output_tokens: int = 1) -> list[Arrival]:
    """Equal requests at exponential intervals, of a length that nobody knows."""
    at_s, found = 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(per_s)
        found.append(Arrival(at_s, SEGMENT, 1, output_tokens, stops=True))
    return found


def _waited(arrivals: Sequence[Arrival], truth: Truth, seed: int) -> tuple[Column, Column]:
    """Seconds in the queue and in the system, in order of arrival."""
    served = serve(arrivals, truth=truth, acceptance=ConstantAcceptance(0.5), k=0, max_batch=1, seed=seed)
    reports = sorted((s.report for s in served.outcome.served), key=lambda report: report.request)
    return np.array([r.queue_s for r in reports]), np.array([r.e2e_s for r in reports])


def _m_m_1(load: float, queue_s: Column, e2e_s: Column) -> list[Sample]:
    """Sojourn is exponential with rate mu (1 - load); P(wait > t) = load exp(-t mu (1 - load))."""
    name, rate = f"M/M/1 at load {load:g}", (1.0 - load) / SERVICE_S
    idle = _idle(queue_s)
    late = [(share, -math.log(share) / rate) for share in (0.5, 0.1)]
    return [
        _over_cycles(f"{name}: mean wait", load / rate, queue_s, idle),
        _over_cycles(f"{name}: mean stay", 1.0 / rate, e2e_s, idle),
        _over_cycles(f"{name}: P(no wait)", 1.0 - load, idle, idle),
        *(
            _over_cycles(f"{name}: P(stay > {1e3 * t:.2f} ms)", share, _above(e2e_s, t), idle)
            for share, t in late
        ),
    ]


def _m_d_1(load: float, queue_s: Column, e2e_s: Column) -> list[Sample]:
    """Mean wait load x service / (2 (1 - load)) (Pollaczek-Khinchine)."""
    name, idle = f"M/D/1 at load {load:g}", _idle(queue_s)
    wait_s = load * SERVICE_S / (2.0 * (1.0 - load))
    return [
        _over_cycles(f"{name}: mean wait", wait_s, queue_s, idle),
        _over_cycles(f"{name}: mean stay", wait_s + SERVICE_S, e2e_s, idle),
        _over_cycles(f"{name}: P(no wait)", 1.0 - load, idle, idle),
    ]


def _idle(queue_s: Column) -> Column:
    """1 for a request that found the queue empty."""
    return (queue_s < 1e-3 * SERVICE_S).astype(np.float64)


def _above(seconds: Column, limit_s: float) -> Column:
    return (seconds > limit_s).astype(np.float64)


def _over_cycles(what: str, expected: float, values: Column, idle: Column) -> Sample:
    """The mean over requests, with a standard error that neighbours' likeness does not spoil.

    A queue starts afresh with every request that finds it empty, so busy periods are independent: the
    regenerative estimator, a ratio of sums over busy periods (Crane and Iglehart 1975).
    """
    cycle = np.cumsum(idle).astype(np.intp) - 1
    cycles = int(cycle[-1]) + 1
    sums = np.bincount(cycle, weights=values, minlength=cycles)
    sizes = np.bincount(cycle, minlength=cycles)
    mean = float(sums.sum() / sizes.sum())
    error = float(np.sqrt(((sums - expected * sizes) ** 2).sum()) / sizes.sum())
    return Sample(what, expected, mean, error)


CHECK = Check(
    "V12",
    "queueing theory",
    "waits and times in the system of M/M/1 and M/D/1, through the world: one slot, one token, no drafts",
    "3 sigma",
    figures,
)
