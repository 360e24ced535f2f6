"""The wire: what is sent comes back, and what does not fit is refused with a reason."""

import math
import random

import msgspec
import pytest

from steersman_policies.codec import (
    MAX_FRAME_BYTES,
    SCHEMA,
    Envelope,
    Frame,
    WireError,
    decode,
    encode,
    fingerprint_digest,
)
from steersman_policies.messages import Fingerprint, Group, Hello, Lease, PlanAck, RequestReport, StepReport
from steersman_policies.plan import Dwell, Explore, Plan, Slo
from steersman_policies.segmenter import Segmenter, SegmentRule

FINGERPRINT = Fingerprint("e", "1", "target", "lookup", "1", "ngram", "none", "float32", "cpu", "eager")
HELLO = Hello(
    fingerprint=FINGERPRINT,
    k_max=4,
    reachable_k=(0, 1, 2, 3, 4),
    k_floor=0,
    launch_k=4,
    max_batch=16,
    per_request_k=True,
    draft_timing=True,
    confidence=False,
    drafter_state_survives_off=True,
    counters={"dropped": 3},
)
GROUP = Group(
    segment="code",
    context_bucket=1,
    requests=3,
    commanded_k=4,
    requests_drafted=2,
    outcomes=((4, 2, 1), (3, 3, 1)),
    not_drafted={"no_match": 1},
)
STEP = StepReport(
    step=7,
    started_s=12.5,
    draft_s=0.001,
    verify_s=0.1,
    other_s=0.002,
    decode_requests=3,
    prefill_tokens=0,
    target_tokens=10,
    context_tokens=900,
    drafting_depth=4,
    requests_drafting=3,
    waiting=2,
    kv_used_fraction=0.25,
    committed_tokens=8,
    plan_id=3,
    groups=(GROUP,),
    reason="table",
    commanded={"code": 4},
)
REQUEST = RequestReport(1, "code", 1.0, 20, 30, 0.1, 0.2, 0.05, 2.0, 12, 40, 18, "length")
PLAN = Plan(
    plan_id=3,
    policy="goodput",
    policy_version="1",
    fingerprint=fingerprint_digest(FINGERPRINT),
    mode="steer",
    batch_edges=(1, 4),
    context_edges=(256,),
    proposal_length={"unknown": ((4, 4), (2, 2), (0, 0))},
    fallback=(2, 1, 0),
    dwell=Dwell(steps=4, seconds=0.1),
    explore=Explore(seed=1, epsilon=0.1, k_set=(4,)),
    segmenter=Segmenter(version=1, rules=(SegmentRule("lora", "sql", "code"),)),
    slo={"code": Slo(ttft_s=1.0, tpot_s=0.1)},
)
RECORDS = [HELLO, STEP, REQUEST, PlanAck(3, False, "why"), PLAN, Lease(3, 1.0)]


def frames(body: object, **changes: object) -> list[bytes]:
    fields = {"schema": SCHEMA, "epoch": 9, "sender": "engine-0", "dropped": 0, "body": body} | changes
    return encode(b"t", 5, Envelope(**fields))


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_round_trip(record: object) -> None:
    """Every record survives the wire unchanged, with its envelope."""
    frame = decode(frames(record))
    assert frame == Frame(b"t", 5, Envelope(SCHEMA, 9, "engine-0", 0, record))


def refused(*message: bytes) -> str:
    with pytest.raises(WireError) as error:
        decode(list(message))
    return error.value.reason


def test_every_kind_of_bad_frame_has_its_reason() -> None:
    """The reasons are a closed set and each can be reached."""
    good = frames(STEP)
    assert refused(*good[:2]) == "frame_count"
    assert refused(good[0], b"123", good[2]) == "sequence"
    assert refused(good[0], b"\xff" * 8, good[2]) == "sequence"
    assert refused(good[0], good[1], b"\xc1") == "not_msgpack"
    assert refused(good[0], good[1], b"x" * (MAX_FRAME_BYTES + 1)) == "frame_size"
    assert refused(*frames(STEP, schema=SCHEMA + 2)) == "schema"
    assert refused(good[0], good[1], msgspec.msgpack.encode([SCHEMA, 1, "e", 0, ["step", "x"]])) == "contract"


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_a_neighbouring_version_is_understood(schema: int) -> None:
    """A peer one schema version away is read, with fields it appended ignored."""
    payload = msgspec.msgpack.decode(frames(Lease(1, 1.0), schema=schema)[2])
    payload[4].append("a field of the future")
    frame = decode([b"t", bytes(8), msgspec.msgpack.encode(payload)])
    assert frame.envelope.body == Lease(1, 1.0)


@pytest.mark.parametrize("field", ["draft_s", "verify_s", "kv_used_fraction"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, -math.inf])
def test_a_number_outside_its_range_is_refused(field: str, value: float) -> None:
    """NaN, the infinities and negative values never get past the decoder."""
    assert refused(*frames(msgspec.structs.replace(STEP, **{field: value}))) == "contract"


def test_prompt_text_does_not_fit_a_segment() -> None:
    """A segment is a short name: anything with a blank is refused."""
    group = msgspec.structs.replace(GROUP, segment="please write a poem")
    assert refused(*frames(msgspec.structs.replace(STEP, groups=(group,)))) == "contract"


def test_mutated_frames_never_raise_anything_else() -> None:
    """Of many mutated payloads each is decoded or refused with a reason."""
    rng = random.Random(0)
    payloads = [frames(record)[2] for record in RECORDS]
    seen = set()
    for _ in range(20_000):
        payload = bytearray(rng.choice(payloads))
        for _ in range(rng.randint(1, 4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        try:
            decode([b"t", bytes(8), bytes(payload[: rng.randint(1, len(payload))])])
            seen.add("decoded")
        except WireError as error:
            seen.add(error.reason)
    assert {"decoded", "not_msgpack", "contract", "schema"} <= seen


def test_the_digest_tells_engines_apart() -> None:
    """Any field of the fingerprint changes its digest."""
    for field in msgspec.structs.fields(Fingerprint):
        value = 2 if field.name.endswith("parallel") else "other"
        changed = msgspec.structs.replace(FINGERPRINT, **{field.name: value})
        assert fingerprint_digest(changed) != fingerprint_digest(FINGERPRINT), field.name
