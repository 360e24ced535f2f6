"""`bench lossless`: drafting changes how fast the target's output comes, never what it is."""

from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any

from steersman_engine.bench.greedy import GreedyRun, check_greedy
from steersman_engine.bench.prompts import PROMPTS
from steersman_engine.bench.sampled import PLANTED_TV, check_sampled
from steersman_engine.decode.model import load_target
from steersman_policies.machine import machine, version

MIN_P_VALUE = 1e-3
MIN_REJECTED = 1_000
"""Fewer rejected drafts would prove little."""

SAMPLES = 12_000


def run(
    *,
    model: str | None = None,
    prompts: int = len(PROMPTS),
    max_tokens: int = 24,
    samples: int = SAMPLES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The result as one JSON-like object; `passed` says whether all held."""
    started_s = perf_counter()
    target, tokenizer = load_target(model)
    encoded = [tokenizer.encode(text) for text in PROMPTS[:prompts]]
    runs = check_greedy(target, encoded, max_tokens=max_tokens, seed=seed, progress=progress)
    sampled = check_sampled(samples=samples, seed=seed, progress=progress)
    return {
        **verdict(runs, sampled),
        "prompts": prompts,
        "max_tokens": max_tokens,
        "samples": samples,
        "greedy": [asdict(run) for run in runs],
        **sampled,
        "tv_planted": PLANTED_TV,
        "model": target.name,
        "seed": seed,
        "took_s": round(perf_counter() - started_s, 1),
        "machine": machine(),
        "version": version(),
    }


def verdict(runs: list[GreedyRun], sampled: dict[str, Any]) -> dict[str, Any]:
    """The figures that decide, and whether they are good enough."""
    drafted = sum(run.drafted for run in runs)
    accepted = sum(run.accepted for run in runs)
    divergences = sum(run.divergences for run in runs)
    planted_found = all(p < MIN_P_VALUE for p in sampled["planted_p_values"].values())
    demands = {
        "divergences must be 0": divergences == 0,
        f"rejected must be at least {MIN_REJECTED}": drafted - accepted >= MIN_REJECTED,
        f"p_value must be at least {MIN_P_VALUE}": sampled["p_value"] >= MIN_P_VALUE,
        f"p_value of planted faults must be below {MIN_P_VALUE}": planted_found,
    }
    return {
        "passed": all(demands.values()),
        "failed": [demand for demand, met in demands.items() if not met],
        "divergences": divergences,
        "ties": sum(run.ties for run in runs),
        "drafted": drafted,
        "accepted": accepted,
        "rejected": drafted - accepted,
        "p_value": sampled["p_value"],
        "tv_planted_found": planted_found,
    }
