"""V4: tokens per step on the public traces, every request walked through the world under a fixed K."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_simulator.acceptance.exact import ExactAcceptance
from steersman_simulator.acceptance.specdec_bench import Drafter
from steersman_simulator.report.summary import speculation
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.validate.check import Asked, Check, Figure
from steersman_simulator.validate.public_traces import OFFERED_TOKENS, arrivals, folder_of, records
from steersman_simulator.validate.serving import Served, serve

WALKED: dict[Drafter, dict[str, dict[int, float]]] = {
    "eagle3": {
        "gsm8k": {1: 1.699, 3: 2.391, 5: 2.666, 7: 2.765, OFFERED_TOKENS: 2.799},
        "instructcoder": {1: 1.681, 3: 2.348, 5: 2.625, 7: 2.760, OFFERED_TOKENS: 2.828},
        "sharegpt": {1: 1.661, 3: 2.254, 5: 2.478, 7: 2.582, OFFERED_TOKENS: 2.639},
        "cnn": {1: 1.674, 3: 2.329, 5: 2.578, 7: 2.694, OFFERED_TOKENS: 2.754},
    },
    "ngram": {
        "gsm8k": {3: 1.164, 7: 1.183},
        "instructcoder": {3: 2.028, 7: 2.448},
        "sharegpt": {3: 1.395, 7: 1.479},
        "cnn": {3: 1.334, 7: 1.398},
    },
}
"""Tokens per step by drafter, data set and K; the last K is beyond every trace (papers 5.1)."""

HAZARDS = {
    "gsm8k": (0.667, 0.646, 0.636, 0.659, 0.629),
    "instructcoder": (0.608, 0.641, 0.692, 0.749, 0.769),
    "sharegpt": (0.605, 0.596, 0.647, 0.695, 0.729),
    "cnn": (0.635, 0.627, 0.644, 0.664, 0.685),
}
"""Acceptance by position, conditional, walked with EAGLE-3 at K = 5 (papers 5.1)."""

SLOTS = 128


def figures(asked: Asked) -> list[Figure]:
    """The table, cell by cell."""
    folder = folder_of(asked)
    found: list[Figure] = []
    for drafter, sets in WALKED.items():
        for name, row in sets.items():
            traces = records(folder, name, drafter)
            for k, tokens in row.items():
                found += _cell(f"{name}, {drafter}", _walked(traces, k), k, tokens)
    return found


def _cell(name: str, served: Served, k: int, tokens: float) -> Iterator[Figure]:
    metrics = speculation(served.steps)
    yield Figure(f"{name}, K = {k}: tokens per step", tokens, metrics["tokens_per_step"], 1e-3)
    data_set, _, drafter = name.partition(", ")
    if drafter == "eagle3" and k == len(HAZARDS[data_set]):
        (segment,) = metrics["segments"].values()
        by_position = segment["position_acceptance"]
        for j, (expected, at) in enumerate(
            zip_longest(HAZARDS[data_set], by_position, fillvalue=0.0), start=1
        ):
            yield Figure(f"{name}, K = {k}: acceptance of position {j}", expected, at, 1e-3)


def _walked(traces: Sequence[AcceptanceRecord], k: int) -> Served:
    drafts = ExactAcceptance(traces)
    return serve(arrivals(traces), truth=ConstantSteps(0.01), acceptance=drafts, k=k, max_batch=SLOTS, seed=0)


CHECK = Check(
    "V4",
    "walks of public traces",
    "tokens per step and acceptance by position, EAGLE-3 and n-gram, four data sets, K = 1 to uncapped",
    "1e-3",
    figures,
)
