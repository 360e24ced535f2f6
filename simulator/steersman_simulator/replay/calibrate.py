"""How well what a replay learns elsewhere predicts what was measured: `observe -> replay -> calibrate`.

Under the recorded K nothing is counterfactual, so what is estimated can be held against what happened. Each
stretch of the recording is predicted from what was learned in the others alone: without its own outcomes,
and without its own residuals.
"""

from typing import Any

import numpy as np
from scipy.stats import t

from steersman_simulator.replay.evidence import Evidence, by_block
from steersman_simulator.replay.resample import resampled
from steersman_simulator.world.chance import generator

_NORMAL = 1.96


def calibration(evidence: Evidence, draws: int, seed: int) -> list[dict[str, Any]]:
    """By stretch: goodput estimated against measured, with a 95 % interval of their quotient that allows for
    the chance within the stretch, and for what the other stretches were off by."""
    logged = evidence.logged
    nothing = np.zeros_like(logged.k)
    learned = evidence.accepted.beyond(logged.k, nothing, evidence.row_block, logged.segment)
    pairs = len(logged.under)
    kept = np.bincount(logged.at, logged.accepted[:, 1:].sum(axis=1, dtype=np.float64), pairs)
    committed = evidence.work.committed_tokens
    expected = committed + np.bincount(logged.at, learned, pairs) - kept
    fitted = np.sum(by_block(evidence, evidence.work), axis=0)
    actual = evidence.actual.draft_s + evidence.actual.verify_s + evidence.actual.other_s
    columns = np.column_stack([expected, fitted, committed, actual])
    stretches = [np.flatnonzero(evidence.block == number) for number in range(int(evidence.block.max()) + 1)]
    errors = np.array([_log_error(columns[rows].sum(axis=0)) for rows in stretches])
    out = []
    for number, rows in enumerate(stretches):
        sums = resampled(
            columns[rows], min(evidence.run_steps, len(rows) / 4), draws, generator(seed, 4, number)
        )
        chance = float(np.std(_log_error(sums.T)))
        beside = np.delete(errors, number)
        between = float(np.std(beside, ddof=1)) * np.sqrt(1.0 + 1.0 / len(beside))
        half = max(_NORMAL * chance, float(t.ppf(0.975, len(beside) - 1)) * between)
        total = columns[rows].sum(axis=0)
        ratio = float(np.exp(errors[number]))
        out.append(
            {
                "from_s": float(logged.pair["ended_s"][rows[0]]),
                "to_s": float(logged.pair["ended_s"][rows[-1]]),
                "measured": float(total[2] / total[3]),
                "estimated": float(total[0] / total[1]),
                "ratio": ratio,
                "low": float(ratio / np.exp(half)),
                "high": float(ratio * np.exp(half)),
                "inside": bool(abs(errors[number]) <= half),
            }
        )
    return out


def _log_error(sums: "np.ndarray[Any, np.dtype[np.float64]]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    expected, fitted, committed, actual = sums
    found: np.ndarray[Any, np.dtype[np.float64]] = np.log(expected * actual / (fitted * committed))
    return found
