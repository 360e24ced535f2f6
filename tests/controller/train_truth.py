"""Step times of a machine that is none of our models: a roofline in tiles, a drafter with a floor."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
KS = (0, 1, 2, 3, 4, 5)


def true_ms(batch: float, k: float, context: float = 0.0) -> float:
    """The longer of reading and computing, the latter in tiles of 32 tokens; each draft pass has a floor."""
    tokens = batch * (k + 1)
    tiles = 32.0 * np.ceil(tokens / 32.0)
    forward = (18.0**4 + (0.06 * tiles) ** 4) ** 0.25 + 2.0e-5 * context
    return float(forward + k * max(0.9, 0.02 * batch) + (0.4 if k else 0.0))


def tokens_per_step(k: int, acceptance: float = 0.7) -> float:
    """Committed tokens of a request in a step."""
    return float(sum(acceptance**j for j in range(k + 1)))


def rows(
    *,
    noise: float = 0.01,
    repeats: int = 1,
    seed: int = 0,
    batches: tuple[int, ...] = BATCHES,
    ceiling: float = 1e9,
) -> list[dict[str, Any]]:
    """One dict per measured step, in our columns."""
    rng = np.random.default_rng(seed)
    return [
        {
            "batch_size": batch,
            "num_draft_tokens": k,
            "step_ms": round(
                true_ms(min(batch, ceiling), k) * float(np.exp(noise * rng.standard_normal())), 5
            ),
        }
        for batch in batches
        for k in KS
        for _ in range(repeats)
    ]


def write(path: Path, table: list[dict[str, Any]]) -> Path:
    """As the suffix says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
    elif ".jsonl" in path.name:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in table)
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    return path
