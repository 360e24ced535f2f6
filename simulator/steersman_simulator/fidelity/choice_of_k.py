"""Tokens per second of a table's rows, simulated; and what the simulated best K would have cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from steersman_controller.progress import Progress
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.zoo import goodput
from steersman_simulator.acceptance.by_position import by_position
from steersman_simulator.fidelity.k_table import (
    Fit,
    Key,
    ServedRow,
    TableSpec,
    fit_table,
    is_fitted,
    read_table,
)
from steersman_simulator.fidelity.serve import serve
from steersman_simulator.truths.bundle import BundleSteps
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import generator
from steersman_simulator.world.shape import Shape

TIE = goodput.Policy().tie

LIMITS = {"median_error": 0.08, "p90_error": 0.15, "regret": 0.04}


class Predicted(Struct, frozen=True):
    """One row under one drafter's step cost; rows without a drafter are predicted for each."""

    row: ServedRow
    drafter: str
    tokens_per_s: float

    @property
    def error(self) -> float:
        """Signed, relative to what was measured."""
        return self.tokens_per_s / self.row.output_tokens_per_s - 1.0


def compare_table(spec: TableSpec, folder: Path, progress: Progress) -> dict[str, Any]:
    """Errors and regrets over the rows that were not fitted on, as a JSON tree.

    Raises ValueError or FileNotFoundError in one line.
    """
    path = folder / spec.table
    table = read_table(path, spec.columns)
    progress("fitting", 0.0)
    fit = fit_table(spec, path, table)
    unseen = [row for row in table if not is_fitted(spec, row)]
    if not unseen:
        raise ValueError(f"{path}: every row is fitted on; none is left to predict")
    return {"kind": "k_table", "limits": LIMITS, **scores(predicted(spec, fit, unseen, progress))}


def predicted(spec: TableSpec, fit: Fit, unseen: Sequence[ServedRow], progress: Progress) -> list[Predicted]:
    """Every row under its drafter's step cost, or, without a drafter, under each."""
    found: list[Predicted] = []
    for number, row in enumerate(unseen):
        progress(f"{row.dataset}, {row.drafter or 'no drafter'}, K = {row.k}", number / len(unseen))
        for drafter in [row.drafter] if row.drafter else sorted(fit.costs):
            found.append(Predicted(row, drafter, tokens_per_s(spec, fit, row, drafter)))
    return found


def tokens_per_s(spec: TableSpec, fit: Fit, row: ServedRow, drafter: str) -> float:
    """Simulated output tokens per second, from the first arrival to the last token; mean over seeds."""
    shape = _shape(spec.engine, row)
    acceptance = by_position({UNKNOWN_SEGMENT: fit.acceptance[row.dataset, drafter]})
    speeds = []
    for seed in range(spec.seeds):
        reports = serve(
            made_arrivals(row, seed),
            shape=shape,
            truth=BundleSteps(fit.costs[drafter]),
            acceptance=acceptance,
            k=row.k,
            seed=seed,
        )
        speeds.append(row.output_tokens / max(r.arrived_s + r.e2e_s for r in reports))
    return float(np.mean(speeds))


def made_arrivals(row: ServedRow, seed: int) -> list[Arrival]:
    """Poisson arrivals at the row's rate, the first at once, lengths as even as their sums allow.

    At most `concurrency` requests at a time: the engine has no more places, so that it is the queue
    where a client would have waited.
    """
    gaps_s = generator(seed, row.requests, row.concurrency).exponential(1.0 / row.concurrency, row.requests)
    at_s = np.cumsum(gaps_s) - gaps_s[0]
    prompts, outputs = _even(row.input_tokens, row.requests), _even(row.output_tokens, row.requests)
    return [
        Arrival(float(at), UNKNOWN_SEGMENT, prompt, output)
        for at, prompt, output in zip(at_s, prompts, outputs, strict=True)
    ]


def scores(found: Sequence[Predicted]) -> dict[str, Any]:
    """Quantiles of the errors, and the regret of each choice of K."""
    errors = _row_errors(found)
    sizes = np.abs(list(errors.values()))
    choices = _choices(found)
    regrets = [choice["regret"] for choice in choices]
    median, p90 = (float(np.quantile(sizes, q)) for q in (0.5, 0.9))
    by_concurrency: dict[int, list[float]] = {}
    for (_, _, concurrency, _), error in errors.items():
        by_concurrency.setdefault(concurrency, []).append(error)
    return {
        "rows": len(errors),
        "median_error": median,
        "p90_error": p90,
        "max_error": float(sizes.max()),
        "bias_by_concurrency": {str(c): float(np.median(e)) for c, e in sorted(by_concurrency.items())},
        "worst": _worst(found),
        "choices": len(choices),
        "max_regret": max(regrets, default=0.0),
        "mean_regret": float(np.mean(regrets)) if regrets else 0.0,
        "regrets": [choice for choice in choices if choice["regret"] > 0.0],
        "passed": median <= LIMITS["median_error"]
        and p90 <= LIMITS["p90_error"]
        and max(regrets, default=0.0) <= LIMITS["regret"],
    }


def _row_errors(found: Sequence[Predicted]) -> dict[tuple[str, str, int, int], float]:
    """One for each measured row: the mean over the step costs that it was predicted with."""
    errors: dict[tuple[str, str, int, int], list[float]] = {}
    for one in found:
        errors.setdefault((*one.row.key, one.row.k), []).append(one.error)
    return {key: float(np.mean(values)) for key, values in errors.items()}


def _choices(found: Sequence[Predicted]) -> list[dict[str, Any]]:
    """For each data set, drafter and concurrency with several K: the simulated best and the measured one. Of
    those that tie, the smallest K is chosen, as `goodput` does."""
    groups: dict[Key, list[Predicted]] = {}
    for one in found:
        groups.setdefault((one.row.dataset, one.drafter, one.row.concurrency), []).append(one)
    out = []
    for (dataset, drafter, concurrency), ones in sorted(groups.items()):
        if len({one.row.k for one in ones}) < 2:
            continue
        enough = (1.0 - TIE) * max(one.tokens_per_s for one in ones)
        chosen = min((one.row for one in ones if one.tokens_per_s >= enough), key=lambda row: row.k)
        best = max(ones, key=lambda one: one.row.output_tokens_per_s).row
        out.append(
            {
                "dataset": dataset,
                "drafter": drafter,
                "concurrency": concurrency,
                "chosen_k": chosen.k,
                "best_k": best.k,
                "regret": 1.0 - chosen.output_tokens_per_s / best.output_tokens_per_s,
            }
        )
    return out


def _worst(found: Sequence[Predicted], count: int = 5) -> list[dict[str, Any]]:
    return [
        {
            "dataset": one.row.dataset,
            "drafter": one.row.drafter,
            "k": one.row.k,
            "concurrency": one.row.concurrency,
            "measured": one.row.output_tokens_per_s,
            "simulated": one.tokens_per_s,
        }
        for one in sorted(found, key=lambda one: -abs(one.error))[:count]
    ]


def _shape(engine: Shape, row: ServedRow) -> Shape:
    return replace(
        engine,
        max_batch=min(engine.max_batch, row.concurrency),
        kv_blocks=row.kv_tokens // engine.kv_block_tokens,
    )


def _even(total: int, count: int) -> list[int]:
    """`count` whole numbers that differ by at most 1 and sum up to `total`.

    >>> _even(7, 3)
    [2, 2, 3]
    """
    return [(index + 1) * total // count - index * total // count for index in range(count)]
