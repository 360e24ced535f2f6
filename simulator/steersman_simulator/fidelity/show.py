"""The result of a comparison as lines for people."""

from collections.abc import Iterator
from typing import Any


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A table of either kind, and the verdict."""
    yield from _runs(result) if result["kind"] == "runs" else _table(result)
    limits = ", ".join(f"{name} {limit:.0%}" for name, limit in result["limits"].items())
    yield f"{'within' if result['passed'] else 'NOT within'} the limits: {limits}"


def _runs(result: dict[str, Any]) -> Iterator[str]:
    for name, found in result["overheads"].items():
        low, high = (f"{1e3 * x:.2f}" for x in found["quartiles_s"])
        yield (
            f"{name}: {1e3 * found['seconds']:.2f} ms of overhead a step, the median of {found['steps']} "
            f"steps without prompts (quartiles {low} and {high})"
        )
    yield f"{'fitted on':18}{'predicted':18}{'ms':>6}{'TTFT':>8}{'TPOT':>8}{'E2E':>8}{'tokens/s':>10}"
    for pair in result["pairs"]:
        shown = "".join(f"{pair[name]:8.1%}" for name in ("ttft", "tpot", "e2e"))
        note = "" if pair["is_score"] else "  (the fitted run itself: no score)"
        yield (
            f"{pair['fitted_on']:18}{pair['predicted']:18}{1e3 * pair['overhead_s']:6.2f}{shown}"
            f"{pair['throughput']:+10.1%}{note}"
        )


def _table(result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{result['rows']} rows predicted: tokens/s off by {result['median_error']:.1%} (median), "
        f"{result['p90_error']:.1%} (p90), {result['max_error']:.1%} (max)"
    )
    biases = ", ".join(f"{c}: {bias:+.1%}" for c, bias in result["bias_by_concurrency"].items())
    yield f"median error with its sign, by concurrency: {biases}"
    yield (
        f"{result['choices']} choices of K: regret {result['mean_regret']:.1%} on average, "
        f"{result['max_regret']:.1%} at most"
    )
    for one in sorted(result["regrets"], key=lambda choice: -choice["regret"])[:5]:
        yield (
            f"  {one['regret']:.1%}: K = {one['chosen_k']} instead of {one['best_k']}, {one['drafter']}, "
            f"{one['dataset']}, concurrency {one['concurrency']}"
        )
