"""TPOT of a whole deployment, from seconds of a forward; and a check against measured deployments.

Steady state of continuous batching: a request that leaves is replaced at once, so a batch of b requests
with o output tokens each begins b / o prompts a step. Up to one prompt a step that is a share of steps
with one prompt in them; beyond, every step carries several.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from scipy.optimize import nnls

from steersman_controller.train.cells import Floats
from steersman_controller.train.roofline import Forward
from steersman_controller.train.table_file import TableFile, database, identifier, known, literal

COLUMNS = ("batch_size", "input_tokens", "output_tokens", "tpot_ms", "tensor_parallel")


class Deployment(Struct, frozen=True):
    """One measured row."""

    batch: float
    input_tokens: float
    output_tokens: float
    tpot_s: float
    tensor_parallel: int


class Fidelity(Struct, frozen=True):
    """Predicted against measured TPOT."""

    rows: int
    mape: float
    bias: float
    """Mean of (predicted - measured) / measured."""
    max_error: float


class Comparison(Struct, frozen=True):
    """Of one way of predicting forwards."""

    all: Fidelity
    by_tensor_parallel: dict[str, Fidelity]
    unseen_batch_sizes: Fidelity
    """After a correction that was fitted on the other batch sizes."""
    unseen_batch_sizes_by_tensor_parallel: dict[str, Fidelity]


def tpot_parts_s(forward: Forward, row: Deployment) -> tuple[float, float]:
    """Mean seconds of a step that decodes only, and what the prompts add to it on average."""
    context = row.batch * (row.input_tokens + row.output_tokens / 2.0)
    prompts = row.batch / row.output_tokens
    prefill = max(prompts, 1.0) * row.input_tokens

    def step_s(tokens: float) -> float:
        return forward.seconds(
            tokens=row.batch + tokens, sequences=row.batch, context_tokens=context, prefill_tokens=tokens
        )

    decode_s = step_s(0.0)
    return decode_s, min(prompts, 1.0) * max(step_s(prefill) - decode_s, 0.0)


def read_deployments(path: Path, columns: Mapping[str, str], where: Mapping[str, str]) -> list[Deployment]:
    """Rows of a file of measured deployments. Raises ValueError in one line."""
    file = TableFile(path)
    for ours in columns:
        known(COLUMNS, ours, "--measured-columns")
    optional = {"tensor_parallel"}
    names = {
        ours: file.column(columns.get(ours, ours), f"--measured-columns {ours}=...")
        for ours in COLUMNS
        if ours not in optional or ours in columns or ours in file.names
    }
    shown = ", ".join(f"try_cast({identifier(name)} as double)" for name in names.values())
    tests = [
        f"cast({identifier(file.column(k, '--measured-where'))} as varchar) = {literal(v)}"
        for k, v in where.items()
    ]
    with database() as connection:
        condition = " where " + " and ".join(tests) if tests else ""
        file.run(
            connection,
            f"create temp table found as select row, {shown} "
            f"from (select row_number() over () as row, * from {file.scan}){condition}",
        )
        rows = connection.execute("select * from found order by 1").fetchall()
    out = []
    for number, *values in rows:
        if any(value is None or not np.isfinite(value) or value <= 0.0 for value in values):
            raise ValueError(
                f"{path}: row {number}: {dict(zip(names, values, strict=True))}, allowed are numbers above 0"
            )
        found = dict(zip(names, values, strict=True))
        out.append(
            Deployment(
                found["batch_size"],
                found["input_tokens"],
                found["output_tokens"],
                found["tpot_ms"] / 1e3,
                int(found.get("tensor_parallel", 1)),
            )
        )
    if not out:
        raise ValueError(f"{path}: no row passes --measured-where")
    return out


def fidelity(rows: list[Deployment], predicted_s: Floats) -> Fidelity:
    """How far predictions are from what was measured."""
    errors = predicted_s / np.array([row.tpot_s for row in rows]) - 1.0
    return Fidelity(
        len(rows), float(np.abs(errors).mean()), float(errors.mean()), float(np.abs(errors).max())
    )


def compare(rows: list[Deployment], forward_of: Callable[[int], Forward]) -> Comparison:
    """Fidelity of `forward_of(tensor_parallel)`: as it is, and corrected on the other batch sizes.

    The correction has four non-negative factors per degree of parallelism: on the decoding step, on what
    prompts add, and for the host's work per request and per prompt. The batch size that is scored is never
    among those that the factors were fitted on.
    """
    plain, corrected = np.zeros(len(rows)), np.zeros(len(rows))
    ways = np.array([row.tensor_parallel for row in rows])
    for degree in np.unique(ways):
        mine = np.flatnonzero(ways == degree)
        parts = np.array([tpot_parts_s(forward_of(int(degree)), rows[i]) for i in mine])
        plain[mine] = parts.sum(axis=1)
        corrected[mine] = _corrected(parts, [rows[i] for i in mine])

    def by_degree(predicted_s: Floats) -> dict[str, Fidelity]:
        return {
            str(degree): fidelity(
                [rows[i] for i in np.flatnonzero(ways == degree)], predicted_s[ways == degree]
            )
            for degree in np.unique(ways)
        }

    return Comparison(
        fidelity(rows, plain), by_degree(plain), fidelity(rows, corrected), by_degree(corrected)
    )


def _corrected(parts: Floats, rows: list[Deployment]) -> Floats:
    batch, measured = np.array([row.batch for row in rows]), np.array([row.tpot_s for row in rows])
    prompts = batch / np.array([row.output_tokens for row in rows])
    design = np.column_stack([parts, batch, prompts])
    out: Floats = parts.sum(axis=1)
    for size in np.unique(batch):
        unseen = batch == size
        if unseen.all():
            continue
        weight = 1.0 / measured[~unseen]
        factors, _ = nnls(design[~unseen] * weight[:, None], np.ones(len(weight)))
        out[unseen] = design[unseen] @ factors
    return out
