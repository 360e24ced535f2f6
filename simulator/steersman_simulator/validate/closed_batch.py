"""V5 and V6: speed-up of a closed batch over no speculation, by batch and K, on the published step cost.

V5: batches of identical copies of one request, as the published experiment has them. Copies take every
step alike, so one request is served whose steps cost what those of its copies do; that this is the same
is a figure of its own. V6: acceptance by position instead of traces, against what was measured.
"""

import random
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.acceptance.by_position import by_position
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.acceptance.exact import ExactAcceptance
from steersman_simulator.report.summary import summary
from steersman_simulator.validate.check import Asked, Check, Figure
from steersman_simulator.validate.public_traces import (
    OFFERED_TOKENS,
    H100Steps,
    arrivals,
    folder_of,
    records,
)
from steersman_simulator.validate.serving import SEGMENT, Served, serve
from steersman_simulator.validate.walk import HAZARDS
from steersman_simulator.workload.arrival import Arrival

BATCHES = (1, 8, 16, 32, 64, 128, 256)

ORACLE = 0
"""Instead of a K: the drafter knows how much will be accepted."""

SPEEDUPS = {
    "gsm8k": {
        1: (1.294, 1.277, 1.261, 1.232, 1.190, 1.136, 1.082),
        3: (1.810, 1.726, 1.646, 1.521, 1.357, 1.182, 1.034),
        5: (2.010, 1.861, 1.726, 1.530, 1.295, 1.070, 0.897),
        7: (2.078, 1.871, 1.694, 1.452, 1.181, 0.942, 0.768),
        ORACLE: (2.129, 2.056, 1.984, 1.869, 1.713, 1.538, 1.383),
    },
    "sharegpt": {
        3: (1.736, 1.666, 1.600, 1.498, 1.367, 1.226, 1.105),
        7: (2.017, 1.829, 1.670, 1.456, 1.219, 1.006, 0.849),
        ORACLE: (2.099, 2.035, 1.975, 1.884, 1.767, 1.640, 1.528),
    },
    "instructcoder": {
        3: (2.029, 1.910, 1.803, 1.648, 1.462, 1.283, 1.142),
        ORACLE: (2.731, 2.525, 2.351, 2.115, 1.849, 1.607, 1.425),
    },
    "cnn": {3: (1.757, 1.647, 1.557, 1.440, 1.315, 1.207, 1.131)},
}
"""Over no speculation, by data set, K and `BATCHES` (papers 5.1)."""

SAMPLED, SAMPLE_SEED = 300, 42
"""The published experiment takes these many requests of a data set, with this seed of Python's generator."""

MEASURED = {1: 1.73, 128: 1.21}
"""GSM8K, K = 3, by batch, on the H100 itself (arXiv 2601.11580, figure 1; papers 4.1 B)."""

WAVES = 8
"""Times that the batch is filled: its end, when it empties, weighs little."""

MEASURED_PROMPT_TOKENS, MEASURED_OUTPUT_TOKENS = 94, 166
"""Means of the data set."""


def figures(asked: Asked) -> list[Figure]:
    """V5."""
    folder = folder_of(asked)
    found: list[Figure] = []
    for name, row in SPEEDUPS.items():
        traces = _sample(records(folder, name, "eagle3"))
        found += _copies_are_one(name, traces[:3])
        for number, copies in enumerate(BATCHES):
            off = _tokens_per_s(traces, 0, copies)
            for k, speedups in row.items():
                drafted = _offered_as_accepted(traces) if k == ORACLE else traces
                on = _tokens_per_s(drafted, k or OFFERED_TOKENS, copies)
                what = f"{name}, {f'K = {k}' if k else 'oracle'}, batch {copies}"
                found.append(Figure(what, speedups[number], on / off, 0.01 * speedups[number]))
    return found


def measured_figures(asked: Asked) -> list[Figure]:
    """V6."""
    found = []
    for batch, speedup in MEASURED.items():
        off, on = (_measured_goodput(k, batch, asked) for k in (0, 3))
        found.append(Figure(f"GSM8K, K = 3, batch {batch}", speedup, on / off, 0.06 * speedup))
    return found


def _measured_goodput(k: int, batch: int, asked: Asked) -> float:
    """Tokens per busy second of a batch that is kept full."""
    arrival = Arrival(0.0, SEGMENT, MEASURED_PROMPT_TOKENS, MEASURED_OUTPUT_TOKENS, stops=True)
    requests = [arrival] * max(WAVES * batch, asked.count(120))
    drafts = by_position({UNKNOWN_SEGMENT: HAZARDS["gsm8k"]})
    served = serve(requests, truth=H100Steps(), acceptance=drafts, k=k, max_batch=batch, seed=asked.seed)
    found: float = summary([], served.steps, duration_s=1.0)["goodput_tokens_per_busy_s"]
    return found


def _copies_are_one(name: str, traces: Sequence[AcceptanceRecord]) -> Iterator[Figure]:
    """Eight copies of a request take as long as one whose steps cost eight times as many tokens."""
    for number, record in enumerate(traces):
        one = _serve([record], 3, H100Steps(copies=8), 1)
        eight = _serve([record] * 8, 3, H100Steps(), 8)
        times = [max(s.report.e2e_s for s in run.outcome.served) for run in (one, eight)]
        yield Figure(f"{name}, request {number}: eight copies against one", times[0], times[1], 1e-9)


def _tokens_per_s(traces: Sequence[AcceptanceRecord], k: int, copies: int) -> float:
    """Mean over requests of tokens per second; one after the other, prefill included."""
    served = _serve(traces, k, H100Steps(copies=copies), 1)
    reports = (s.report for s in served.outcome.served)
    return float(np.mean([r.output_tokens * copies / (r.e2e_s - r.queue_s) for r in reports]))


def _serve(traces: Sequence[AcceptanceRecord], k: int, truth: H100Steps, slots: int) -> Served:
    drafts: Acceptance = ExactAcceptance(traces)
    return serve(arrivals(traces), truth=truth, acceptance=drafts, k=k, max_batch=slots, seed=0)


def _sample(traces: Sequence[AcceptanceRecord]) -> list[AcceptanceRecord]:
    """As the published experiment draws; its requests end a token earlier than the walk of V4."""
    chosen = random.Random(SAMPLE_SEED).sample(list(traces), min(SAMPLED, len(traces)))  # noqa: S311
    return [
        replace(r, output_tokens=r.output_tokens - 1, accepted_by_position=r.accepted_by_position[:-1])
        for r in chosen
    ]


def _offered_as_accepted(traces: Sequence[AcceptanceRecord]) -> list[AcceptanceRecord]:
    return [replace(r, offered_by_position=r.accepted_by_position) for r in traces]


V5 = Check(
    "V5",
    "closed batch",
    "speed-up of batches of identical copies on public traces and the published step cost, B = 1 to 256",
    "1 %",
    figures,
)
V6 = Check(
    "V6",
    "measured speed-up",
    "GSM8K at K = 3 on an H100, batches 1 and 128, from published acceptance by position and step cost",
    "6 %",
    measured_figures,
)
