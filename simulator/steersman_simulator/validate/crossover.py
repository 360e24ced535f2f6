"""V8, exploratory: where speculation stops paying as batches grow, from the two ends of a published table.

EAGLE-3's table 5 tells neither tokens per step nor step times. Taken from elsewhere: acceptance of the same
drafter on chat (papers 5.1), proposals of two tokens, a drafted token that costs the weights it reads (one
layer and a head of 32 k tokens, 0.37 of 7.5 billion parameters), a knee where the card's data sheet puts it.
Fitted on batches 2 and 56: what a token adds to a step below the knee, and what it adds more above it. The
batches between are predicted.
"""

import numpy as np
from msgspec import Struct

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.by_position import by_position
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.validate.check import Asked, Check, Figure
from steersman_simulator.validate.serving import closed, serve
from steersman_simulator.validate.walk import HAZARDS
from steersman_simulator.world.chance import Chance

SPEEDUPS = {2: 1.75, 4: 1.68, 8: 1.58, 16: 1.49, 24: 1.42, 32: 1.36, 48: 1.21, 56: 1.01}
"""By batch: EAGLE-3, Llama-3.1-8B, vLLM, RTX 3090 (arXiv 2503.01840, table 5; papers 4.1 A)."""

K = 2
KNEE_TOKENS = 76.0
"""71 TFLOPS of float16 against 936 GB/s (papers 1.6)."""

DRAFT_TOKEN = 0.374 / 7.505
"""Of an empty forward of the target."""

OUTPUT_TOKENS, WAVES, FEWEST_REQUESTS = 250, 4, 160


class HingedSteps(Struct, frozen=True):
    """Forwards of a second, and what tokens add below and above the knee."""

    per_token_s: float
    per_token_above_s: float

    def sampler(self, chance: Chance) -> "HingedSteps":
        """No chance in it."""
        del chance
        return self

    def verify_s(self, work: VerifyWork) -> float:
        """Linear on both sides of the knee."""
        tokens = work.decode_requests + work.draft_tokens
        return 1.0 + self.per_token_s * tokens + self.per_token_above_s * max(tokens - KNEE_TOKENS, 0.0)

    def draft_s(self, work: DraftWork) -> float:
        """By depth."""
        return DRAFT_TOKEN * work.depth if work.requests else 0.0

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Nothing."""
        del decode_requests, committed_tokens
        return 0.0


def figures(asked: Asked) -> list[Figure]:
    """How far the batches between are off, on average; and the shape."""
    truth = fitted()
    found = {batch: speedup(batch, truth, asked) for batch in SPEEDUPS}
    first, *between, last = SPEEDUPS
    off = [abs(found[batch] / SPEEDUPS[batch] - 1.0) for batch in between]
    rises = [
        later - earlier
        for earlier, later in zip(list(found.values()), list(found.values())[1:], strict=False)
    ]
    return [
        *(Figure(f"fitted, batch {b}", SPEEDUPS[b], found[b], 0.02 * SPEEDUPS[b]) for b in (first, last)),
        Figure(f"mean error of batches {between[0]} to {between[-1]}", 0.0, float(np.mean(off)), 0.05),
        Figure("largest rise from one batch to the next", 0.0, max(rises), 0.0, "at_most"),
        Figure("speed-up at batch 48: still pays", 1.0, found[between[-1]], 0.0, "at_least"),
    ]


def fitted() -> HingedSteps:
    """The two costs with which the first and the last batch come out as published.

    Speed-up is E T(B) / (T((K + 1) B) + K c), T linear in both costs: two linear equations.
    """
    tokens = 1.0 + float(np.sum(np.cumprod(HAZARDS["sharegpt"][:K])))
    ends = [(batch, SPEEDUPS[batch]) for batch in (min(SPEEDUPS), max(SPEEDUPS))]
    rows, right = [], []
    for batch, published in ends:
        plain, wide = batch, (K + 1) * batch
        above = [max(n - KNEE_TOKENS, 0.0) for n in (plain, wide)]
        rows.append([tokens * plain - published * wide, tokens * above[0] - published * above[1]])
        right.append(published * (1.0 + K * DRAFT_TOKEN) - tokens)
    below_s, above_s = np.linalg.solve(np.array(rows), np.array(right)).tolist()
    return HingedSteps(below_s, above_s)


def speedup(batch: int, truth: HingedSteps, asked: Asked) -> float:
    """Tokens per busy second of decode steps of a full batch, with drafts over without."""
    goodput = []
    for k in (0, K):
        requests = closed(max(WAVES * batch, FEWEST_REQUESTS), asked.count(OUTPUT_TOKENS))
        drafts = by_position({UNKNOWN_SEGMENT: HAZARDS["sharegpt"]})
        served = serve(requests, truth=truth, acceptance=drafts, k=k, max_batch=batch, seed=asked.seed)
        full = [step for step in served.steps if step.decode_requests == batch]
        goodput.append(sum(step.committed_tokens for step in full) / sum(step.busy_s for step in full))
    return goodput[1] / goodput[0]


CHECK = Check(
    "V8",
    "crossover",
    "EAGLE-3 by batch, predicted between batches 2 and 56 from two costs fitted there (exploratory)",
    "mean error 5 %",
    figures,
)
