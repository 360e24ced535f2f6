"""Real runs against simulated ones: one overhead constant from one run, frozen for every other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from steersman_controller.progress import Progress
from steersman_policies.messages import RequestReport
from steersman_simulator.acceptance.segments import ConstantAcceptance
from steersman_simulator.fidelity.measured_run import MeasuredRequest, arrivals_of, read_run
from steersman_simulator.fidelity.overhead import overhead_of
from steersman_simulator.fidelity.serve import serve
from steersman_simulator.truths.spec import TruthSpec, build_truth
from steersman_simulator.truths.step_work import Truth
from steersman_simulator.truths.surcharges import SurchargedTruth, Surcharges
from steersman_simulator.world.chance import stream
from steersman_simulator.world.shape import Shape

LIMITS = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06, "throughput": 0.03}
"""Median error over requests, and error of tokens per second."""


class RunSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One measured run."""

    name: str
    requests: str
    truth: TruthSpec
    """Without its overhead per step, which is fitted."""
    engine: Shape
    columns: dict[str, str] = {}
    """Our name to the file's, where they differ."""


class RunsSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="runs"):
    """Several runs; the constant of each is tried on all."""

    runs: tuple[RunSpec, ...]

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise ValueError("fidelity: two runs at least: one to fit on, one to predict")


class Errors(Struct, frozen=True):
    """Medians over requests of |simulated - measured| / measured; the biases are with their signs."""

    ttft: float
    tpot: float
    e2e: float
    throughput: float
    """Signed; of output tokens over the time from first arrival to last token."""
    ttft_bias: float
    tpot_bias: float
    e2e_bias: float

    @property
    def within(self) -> bool:
        """Whether all are within `LIMITS`."""
        return all(abs(getattr(self, name)) <= limit for name, limit in LIMITS.items())


def compare_runs(spec: RunsSpec, folder: Path, progress: Progress) -> dict[str, Any]:
    """Every ordered pair of runs, as a JSON tree. Raises ValueError or FileNotFoundError in one line."""
    measured = {run.name: read_run(folder / run.requests, run.columns) for run in spec.runs}
    truths = {run.name: build_truth(run.truth, folder) for run in spec.runs}
    overheads = {
        name: overhead_of(requests, truths[name].sampler(stream(0))) for name, requests in measured.items()
    }
    pairs = [(fitted, run) for fitted in spec.runs for run in spec.runs]
    out: list[dict[str, Any]] = []
    for number, (fitted, run) in enumerate(pairs):
        progress(f"{fitted.name} -> {run.name}", number / len(pairs))
        overhead_s, requests = overheads[fitted.name].seconds, measured[run.name]
        errors = _errors(requests, _simulated(run, requests, truths[run.name], overhead_s))
        out.append(
            {
                "fitted_on": fitted.name,
                "predicted": run.name,
                "is_score": fitted.name != run.name,
                "overhead_s": overhead_s,
                **msgspec.to_builtins(errors),
                "within": errors.within,
            }
        )
    return {
        "kind": "runs",
        "limits": LIMITS,
        "overheads": {name: msgspec.to_builtins(found) for name, found in overheads.items()},
        "pairs": out,
        "passed": all(pair["within"] for pair in out if pair["is_score"]),
    }


def _simulated(
    run: RunSpec, requests: Sequence[MeasuredRequest], truth: Truth, overhead_s: float
) -> list[RequestReport]:
    return serve(
        arrivals_of(requests),
        shape=run.engine,
        truth=SurchargedTruth(truth, Surcharges(step_s=overhead_s)),
        acceptance=ConstantAcceptance(0.0),
        k=0,
        seed=0,
    )


def _errors(measured: Sequence[MeasuredRequest], simulated: Sequence[RequestReport]) -> Errors:
    pairs = list(zip(measured, simulated, strict=True))
    ttft = np.array([s.ttft_s / m.ttft_s - 1.0 for m, s in pairs])
    e2e = np.array([s.e2e_s / m.e2e_s - 1.0 for m, s in pairs])
    tpot = np.array([s.tpot_s / m.tpot_s - 1.0 for m, s in pairs if m.tpot_s > 0.0])
    start_s = measured[0].arrival_s
    took_s = max(m.last_token_s for m in measured) - start_s
    simulated_s = max(s.arrived_s + s.e2e_s for s in simulated)
    return Errors(
        ttft=float(np.median(np.abs(ttft))),
        tpot=float(np.median(np.abs(tpot))) if len(tpot) else 0.0,
        e2e=float(np.median(np.abs(e2e))),
        throughput=took_s / simulated_s - 1.0,
        ttft_bias=float(np.median(ttft)),
        tpot_bias=float(np.median(tpot)) if len(tpot) else 0.0,
        e2e_bias=float(np.median(e2e)),
    )
