"""What a step takes beyond its forward, from the stamps of a measured run.

The moments at which requests got a first or last token are ends of steps. Where two neighbouring ones are
one step apart and no prompt was being read, that step held the requests that were decoding, and nothing
else; what it took beyond the truth's seconds is overhead. Steps with prompts say less: whether a prompt's
beginning was in the prefix cache is not in such a file.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from steersman_simulator.fidelity.measured_run import MeasuredRequest
from steersman_simulator.truths.step_work import StepSeconds, VerifyWork

LEAST_STEPS = 10
_SHORTEST, _LONGEST = 0.5, 1.8
"""Of the truth's seconds: less is no step, twice as much is two."""

_SAME_S = 1e-5


class Overhead(Struct, frozen=True):
    """Seconds a step, and what they are the median of."""

    seconds: float
    steps: int
    quartiles_s: tuple[float, float]


def overhead_of(requests: Sequence[MeasuredRequest], seconds: StepSeconds) -> Overhead:
    """At least 0. Raises ValueError where too few steps stand alone."""
    beyond_s = []
    for start_s, end_s, live in decode_steps(requests):
        context = sum(request.context_tokens(start_s) for request in live)
        forward_s = seconds.verify_s(VerifyWork(len(live), 0, round(context)))
        if _SHORTEST * forward_s < end_s - start_s < _LONGEST * forward_s:
            beyond_s.append(end_s - start_s - forward_s)
    if len(beyond_s) < LEAST_STEPS:
        raise ValueError(
            f"fidelity: {len(beyond_s)} steps without prompts can be told apart, {LEAST_STEPS} are needed; "
            "does the truth fit the run?"
        )
    low, middle, high = (float(x) for x in np.quantile(beyond_s, (0.25, 0.5, 0.75)))
    return Overhead(max(middle, 0.0), len(beyond_s), (low, high))


def decode_steps(
    requests: Sequence[MeasuredRequest],
) -> list[tuple[float, float, list[MeasuredRequest]]]:
    """Neighbouring ends of steps without a prompt in between, and who was decoding."""
    ends = sorted({r.first_token_s for r in requests} | {r.last_token_s for r in requests})
    out = []
    for start_s, end_s in pairwise(ends):
        if any(r.scheduled_s < end_s - _SAME_S and r.first_token_s > start_s + _SAME_S for r in requests):
            continue
        live = [r for r in requests if r.first_token_s <= start_s + _SAME_S < r.last_token_s]
        if live:
            out.append((start_s, end_s, live))
    return out
