"""What it costs to sort a request when it is admitted: statistics of its prompt, then rules, then a tree."""

import random
import time

from steersman_policies.prompt_statistics import FEATURES, statistics_of
from steersman_policies.segment_tree import LEAF, MAX_DEPTH, SegmentTree
from steersman_policies.segmenter import Segmenter, SegmentRule

PROMPT_TOKENS = (64, 1_024, 32_768)
RULES = 8
VOCABULARY = 50_000


def admission(rng: random.Random, calls: int) -> dict[str, dict[str, float]]:
    """Microseconds per request by prompt length: p50, p99 and mean over `calls`, for the deepest tree."""
    rules = tuple(SegmentRule("tenant", f"t{n}", "vip") for n in range(RULES))
    segmenter = Segmenter(1, rules, _tree())
    attributes = {"tenant": "another", "route": "chat", "sampling": "sampled"}
    out = {}
    for length in PROMPT_TOKENS:
        # Half of the tokens are frequent ones, as in text.
        prompts = [
            [rng.randrange(VOCABULARY if rng.random() < 0.5 else 200) for _ in range(length)]
            for _ in range(4)
        ]
        took_us = []
        for call in range(calls):
            prompt = prompts[call % len(prompts)]
            started_ns = time.perf_counter_ns()
            segmenter.segment_of(
                "", attributes, statistics_of(prompt, max_output_tokens=256, temperature=0.7)
            )
            took_us.append((time.perf_counter_ns() - started_ns) / 1e3)
        took_us.sort()
        out[str(length)] = {
            "p50_us": round(took_us[calls // 2], 2),
            "p99_us": round(took_us[calls * 99 // 100], 2),
            "mean_us": round(sum(took_us) / calls, 2),
        }
    return out


def _tree() -> SegmentTree:
    """As deep as one gets; every request goes down to the end, since nothing is below zero."""
    nodes = range(2 * MAX_DEPTH + 1)
    asks = [node % 2 == 0 and node < 2 * MAX_DEPTH for node in nodes]
    return SegmentTree(
        features=tuple(node // 2 % len(FEATURES) if asks[node] else LEAF for node in nodes),
        thresholds=(-1.0,) * len(nodes),
        left=tuple(node + 1 if asks[node] else LEAF for node in nodes),
        right=tuple(node + 2 if asks[node] else LEAF for node in nodes),
        segments=tuple("" if asks[node] else f"tree/{node}" for node in nodes),
    )
