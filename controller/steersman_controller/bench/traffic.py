"""Reports as an engine under the reference load sends them: 200 steps/s, 64 requests, 16 segments."""

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from steersman_policies.messages import Fingerprint, Group, Hello, StepReport
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT

STEPS_PER_S = 200
REQUESTS = 64
SEGMENTS = (UNKNOWN_SEGMENT, *(f"segment-{index}" for index in range(1, MAX_SEGMENTS)))
K_MAX = 8
COVERAGE = 0.8

FINGERPRINT = Fingerprint("bench", "1", "none", "none", "1", "ngram", "none", "none", "none", "none")
HELLO = Hello(
    fingerprint=FINGERPRINT,
    k_max=K_MAX,
    reachable_k=tuple(range(K_MAX + 1)),
    k_floor=0,
    launch_k=4,
    max_batch=REQUESTS,
    per_request_k=True,
    draft_timing=True,
    confidence=False,
    drafter_state_survives_off=True,
)


def patterns(rng: random.Random, number: int = 256) -> list[StepReport]:
    """Different steps; K, batch and context wander a little, acceptance differs by segment."""
    return [_report(step, rng) for step in range(number)]


def stream(known: list[StepReport], steps: int) -> Iterator[StepReport]:
    """So many reports in a row, made of known ones."""
    for step in range(steps):
        yield msgspec.structs.replace(known[step % len(known)], step=step, started_s=step / STEPS_PER_S)


def _report(step: int, rng: random.Random) -> StepReport:
    members = [*SEGMENTS, *rng.choices(SEGMENTS, k=REQUESTS - len(SEGMENTS) - rng.randrange(8))]
    k = {segment: rng.choice((2, 4, 4, 8)) for segment in SEGMENTS}
    groups = tuple(_group(s, members.count(s), k[s], 0.3 + 0.04 * i, rng) for i, s in enumerate(SEGMENTS))
    drafted = sum(d * n for group in groups for d, _, n in group.outcomes)
    accepted = sum(a * n for group in groups for _, a, n in group.outcomes)
    tokens = len(members) + drafted
    return StepReport(
        step=step,
        started_s=0.0,
        draft_s=0.0002 * rng.lognormvariate(0.0, 0.1),
        verify_s=(0.003 + 4e-6 * tokens) * rng.lognormvariate(0.0, 0.05),
        other_s=0.0004 * rng.lognormvariate(0.0, 0.1),
        decode_requests=len(members),
        prefill_tokens=256 if step % 16 == 0 else 0,
        target_tokens=tokens,
        context_tokens=1_000 * len(members) + rng.randrange(10_000),
        drafting_depth=K_MAX,
        requests_drafting=len(members),
        waiting=0,
        kv_used_fraction=0.5,
        committed_tokens=len(members) + accepted,
        plan_id=1,
        groups=groups,
        reason="table",
        commanded=k,
    )


def _group(segment: str, requests: int, k: int, alpha: float, rng: random.Random) -> Group:
    outcomes: Counter[tuple[int, int]] = Counter()
    for _ in range(requests):
        if rng.random() < COVERAGE:
            accepted = 0
            while accepted < k and rng.random() < alpha:
                accepted += 1
            outcomes[k, accepted] += 1
    drafted = outcomes.total()
    missing = requests - drafted
    return Group(
        segment,
        2,
        requests,
        k,
        drafted,
        tuple((d, a, n) for (d, a), n in outcomes.items()),
        not_drafted={"no_match": missing} if missing else {},
    )
