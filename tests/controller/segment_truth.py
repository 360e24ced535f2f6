"""A made-up engine whose requests are of two kinds, and what it would have recorded of them."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from steersman_controller.events import ControllerConfig, Event, Received, Started
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_policies.messages import Group, Hello, RequestReport, StepReport
from steersman_policies.prompt_statistics import rounded_statistics

K = 4


def requests(
    count: int,
    *,
    easy: float = 0.9,
    hard: float = 0.4,
    seed: int = 0,
    tags: Sequence[str] = ("unknown",),
    by_tag: bool = False,
    between_sd: float = 0.0,
) -> list[RequestReport]:
    """Requests that repeat themselves are `easy`, the others `hard`; or so by their tag alone."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        tag = tags[number % len(tags)]
        repeated = rng.choice((0.1, 0.6))
        is_easy = tag == tags[0] if by_tag else repeated > 0.3
        share = min(max((easy if is_easy else hard) + rng.gauss(0.0, between_sd), 0.02), 0.98)
        accepted = reached = tokens = steps = 0
        while tokens < 60:
            kept = next((j for j in range(K) if rng.random() >= share), K)
            accepted += kept
            reached += min(kept + 1, K)
            tokens += kept + 1
            steps += 1
        made.append(
            RequestReport(
                number,
                tag,
                0.1 * number,
                100,
                tokens,
                0.0,
                0.1,
                0.02,
                2.0,
                steps,
                K * steps,
                accepted,
                "stop",
                reached,
                steps,
                rounded_statistics(
                    prompt_tokens=rng.choice((30, 100, 400, 1500)),
                    max_output_tokens=60,
                    distinct_fraction=1.0 - repeated * rng.random(),
                    repeated_fraction=repeated,
                    temperature=rng.choice((0.0, 1.0)),
                    structured=False,
                ),
            )
        )
    return made


def record(path: Path, hello: Hello, step: StepReport, found: Sequence[RequestReport]) -> Path:
    """A journal of steps in all shapes and of these requests. A step at K > 0 takes its tokens' time."""
    started = Started(0.0, 1, "0", 1, ControllerConfig(), "fixed", {})
    events: list[Event] = [started]

    def received(body: Hello | StepReport | RequestReport) -> None:
        events.append(Received(0.01 * len(events), "gpu0", 1, len(events) - 1, 0, body))

    received(hello)
    number = 0
    for batch in (1, 4, 16, 32):
        for k in range(K + 1):
            for _ in range(5):
                tokens = batch * (k + 1)
                group = Group("unknown", 0, batch, k, batch if k else 0, ((k, k // 2, batch),) if k else ())
                received(
                    msgspec.structs.replace(
                        step,
                        step=number,
                        started_s=0.1 * number,
                        decode_requests=batch,
                        target_tokens=tokens,
                        drafting_depth=k,
                        requests_drafting=batch if k else 0,
                        draft_s=0.0,
                        verify_s=0.004 + 0.0004 * tokens,
                        other_s=0.001,
                        groups=(group,),
                    )
                )
                number += 1
    for report in found:
        received(report)
    journal = JournalWriter(path)
    for event in events:
        journal.append(encode_event(event))
    journal.close()
    return path
