"""What an exact acceptance trace holds."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from steersman_policies.acceptance_trace import read_trace
from steersman_policies.acceptance_walk import WalkTally

WALKED_K = (1, 3, 5, 7)


def acceptance_summary(path: Path) -> dict[str, Any]:
    """Counts, and what each of a few K would have brought, in all and by segment; in one pass.

    Raises FileNotFoundError, or ValueError naming file and line.
    """
    requests: Counter[str] = Counter()
    drafters: Counter[str] = Counter()
    tallies: dict[str, dict[int, WalkTally]] = {"": {k: WalkTally(k) for k in WALKED_K}}
    tokens = 0
    for record in read_trace(path):
        requests[record.segment] += 1
        drafters[" ".join(filter(None, (record.method, record.drafter, record.drafter_version)))] += 1
        tokens += record.output_tokens
        own = tallies.setdefault(record.segment, {k: WalkTally(k) for k in WALKED_K})
        for tally in (*tallies[""].values(), *own.values()):
            tally.add(record)
    return {
        "path": str(path),
        "requests": sum(requests.values()),
        "output_tokens": tokens,
        "requests_by_segment": dict(sorted(requests.items())),
        "requests_by_drafter": dict(sorted(drafters.items())),
        "at_k": [msgspec.to_builtins(tally.facts()) for tally in tallies.pop("").values()],
        "at_k_by_segment": {
            segment: [msgspec.to_builtins(tally.facts()) for tally in found.values()]
            for segment, found in sorted(tallies.items())
        },
    }


def acceptance_lines(found: dict[str, Any]) -> list[str]:
    """The summary for people."""
    by_drafter = found["requests_by_drafter"].items()
    lines = [
        f"{found['path']}: acceptance trace",
        f"requests: {found['requests']}, with {found['output_tokens']} output tokens",
        "drafters: " + ", ".join(f"{name or 'not told'} ({count})" for name, count in by_drafter),
    ]
    for name, rows in (("all", found["at_k"]), *found["at_k_by_segment"].items()):
        steps = ", ".join(f"{row['tokens_per_step']:.3f} at K={row['k']}" for row in rows)
        spread = rows[1]
        lines.append(
            f"{name}: tokens per step {steps}; at K={spread['k']} lag-1 autocorrelation "
            f"{spread['autocorrelation'][0]:.2f}, between requests {spread['between_request_share']:.2f}"
        )
    return lines
