"""Reports are read out of their encoding as they are, and believed by the same rules as in plain Python."""

import math
import random
import struct
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pytest
import traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman_controller.belief import encoded_reports
from steersman_controller.belief.columns import CONTEXTS, NOT_ASKED, Columns, columns
from steersman_policies.messages import Group, StepReport


def read(data: bytes) -> tuple[list[float], list[int], int]:
    """Numbers and members of all values in it, and where it ends."""
    values, (members, starts) = np.empty(len(data) + 4), np.empty((2, len(data) + 4), np.int64)
    end = encoded_reports.tokens(np.frombuffer(data, np.uint8), 0, values, members, starts)
    return values.tolist(), members.tolist(), end


def number(data: bytes) -> tuple[float, int]:
    values, _, end = read(data)
    return values[0], end


WIDTHS = [
    *(("B", 0xCC), ("H", 0xCD), ("I", 0xCE), ("Q", 0xCF)),
    *(("b", 0xD0), ("h", 0xD1), ("i", 0xD2), ("q", 0xD3)),
]


@pytest.mark.parametrize(("kind", "head"), WIDTHS)
@settings(deadline=None)
@given(data=st.data())
def test_whole_numbers_of_all_widths(kind: str, head: int, data: Any) -> None:
    """Each is read as what Python says that it is, and ends where it ends."""
    bits, unsigned = 8 * struct.calcsize(kind), kind.isupper()
    least, most = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    value = data.draw(st.integers(least, most) | st.sampled_from([least, most]))
    encoded = bytes([head]) + struct.pack(f">{kind}", value)
    assert number(encoded) == (float(value), len(encoded))


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False), st.floats(allow_nan=False), st.integers(-32, 127), st.booleans())
def test_other_numbers(single: float, double: float, small: int, truth: bool) -> None:
    """Floats of both widths, numbers of a single byte, and truth values."""
    assert number(b"\xca" + struct.pack(">f", single)) == (single, 5)
    assert number(b"\xcb" + struct.pack(">d", double)) == (double, 9)
    assert number(msgspec.msgpack.encode(small)) == (small, 1)
    assert number(msgspec.msgpack.encode(truth)) == (truth, 1)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=30,
)


def flat(value: Any) -> list[tuple[float, int]]:
    """Number and members of a value and of all in it, in plain Python."""
    if isinstance(value, list):
        return [(math.nan, len(value)), *chain.from_iterable(map(flat, value))]
    if isinstance(value, dict):
        inside = chain.from_iterable(map(flat, chain.from_iterable(value.items())))
        return [(math.nan, -2 - len(value)), *inside]
    return [(float(value) if isinstance(value, int | float) else math.nan, -1)]


@settings(deadline=None)
@given(ANYTHING)
def test_values_in_values(value: Any) -> None:
    """All that is in a value comes behind it, and it ends where its encoding ends."""
    encoded = msgspec.msgpack.encode(value)
    values, members, end = read(encoded)
    wanted = flat(value)
    assert end == len(encoded)
    assert members[: len(wanted) + 4] == [inside for _, inside in wanted] + [-1] * 4
    np.testing.assert_array_equal(
        values[: len(wanted) + 4], [number for number, _ in wanted] + [math.nan] * 4
    )


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 70_000])
def test_long_values(size: int) -> None:
    """Their lengths take up to five bytes."""
    for value in (["a"] * size, {str(n): n for n in range(size)}, "a" * size, b"a" * size):
        encoded = msgspec.msgpack.encode([value, 7])
        values, members, end = read(encoded)
        wanted = flat([value, 7])
        assert end == len(encoded)
        assert members[: len(wanted)] == [inside for _, inside in wanted]
        assert values[len(wanted) - 1] == 7.0


SECONDS = ("draft_s", "verify_s", "other_s")
NUMBERS = (
    *SECONDS,
    "started_s",
    "decode_requests",
    "prefill_tokens",
    "target_tokens",
    "context_tokens",
    "drafting_depth",
    "requests_drafting",
    "committed_tokens",
)
GROUP_NUMBERS = ("context_bucket", "requests", "commanded_k", "requests_drafted", "requests_empty")
FLAGS = ("warm_up", "graph_capture", "preemption", "first_after_switch")


def possible_group(group: Group, k_max: int) -> bool:
    not_asked = sum(group.not_drafted.get(reason, 0) for reason in NOT_ASKED)
    with_draft = sum(count * (drafted > 0) for drafted, _, count in group.outcomes)
    return (
        all(0 <= getattr(group, name) <= 1e15 for name in GROUP_NUMBERS)
        and group.commanded_k <= k_max
        and group.context_bucket < CONTEXTS
        and 0 <= not_asked <= group.requests - group.requests_drafted
        and all(0 <= a <= d <= group.commanded_k and n >= 0 for d, a, n in group.outcomes)
        and with_draft == group.requests_drafted
    )


def possible(report: StepReport, k_max: int) -> bool:
    """The rules, one after the other."""
    most = 2 * ((k_max + 1) * report.decode_requests + report.prefill_tokens) + 1024
    drafts = sum(d * n for group in report.groups for d, _, n in group.outcomes)
    return (
        all(0 <= getattr(report, name) <= 1e15 for name in NUMBERS)
        and all(possible_group(group, k_max) for group in report.groups)
        and report.drafting_depth <= k_max
        and (max(report.draft_s, report.verify_s, report.other_s) >= 1e-9 or report.target_tokens == 0)
        and report.prefill_tokens <= 2**24
        and report.context_tokens <= 2**24 * report.decode_requests
        and report.target_tokens <= most
        and report.committed_tokens <= most
        and sum(group.requests for group in report.groups) <= report.decode_requests
        and report.decode_requests + drafts <= report.target_tokens
    )


def expected(reports: list[StepReport]) -> dict[str, list[Any]]:
    """What the columns hold, from the reports themselves."""
    by_group = [(step, report, group) for step, report in enumerate(reports) for group in report.groups]
    teaches = [float(report.trains and group.commanded_k > 0) for _, report, group in by_group]
    groups = [group for _, _, group in by_group]
    asked = [g.requests - sum(g.not_drafted.get(reason, 0) for reason in NOT_ASKED) for g in groups]
    outcomes = list(chain.from_iterable(group.outcomes for group in groups))
    found: dict[str, list[Any]] = {
        name: [getattr(r, name) for r in reports] for name in NUMBERS if name != "drafting_depth"
    }
    return found | {
        "depth": [report.drafting_depth for report in reports],
        "busy_s": [report.busy_s for report in reports],
        "trains": [report.trains for report in reports],
        "after_switch": [report.first_after_switch for report in reports],
        "groups_before": [0, *np.cumsum([len(report.groups) for report in reports]).tolist()],
        "names": [group.segment for group in groups],
        "step": [step for step, _, _ in by_group],
        "bucket": [int(group.context_bucket) for group in groups],
        "k": [int(group.commanded_k) for group in groups],
        "requests": [group.requests for group in groups],
        "teaches": teaches,
        "asked": [number * one for number, one in zip(asked, teaches, strict=True)],
        "with_draft": [group.requests_drafted * one for group, one in zip(groups, teaches, strict=True)],
        "invalid": [
            g.not_drafted.get("invalid_state", 0) * one for g, one in zip(groups, teaches, strict=True)
        ],
        "outcomes_before": [0, *np.cumsum([len(group.outcomes) for group in groups]).tolist()],
        "offered": [int(d) for d, _, _ in outcomes],
        "reached": [min(int(d), int(a) + 1) for d, a, _ in outcomes],
        "accepted": [int(a) for _, a, _ in outcomes],
        "verified": [n for _, _, n in outcomes],
    }


ABSURD = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        -1,
        -0.5,
        0.5,
        1.0,
        1e-320,
        1e14,
        2**63,
        2**64 - 1,
        -(2**63),
        127,
        128,
        255,
        256,
        65536,
        2**32,
        True,
        False,
        1e300,
    ]
)
COUNT = st.integers(0, 6) | st.sampled_from([120, 127, 128, 255, 300, 70_000])


@st.composite
def some_reports(draw: st.DrawFn) -> list[StepReport]:
    """Steps as they come, some of them with a number changed to another or to something absurd."""
    out = []
    for step in range(draw(st.integers(1, 4))):
        groups = []
        for index in range(draw(st.integers(0, 4))):
            k = draw(st.integers(0, traffic.K_MAX))
            accepted = draw(st.lists(st.integers(0, k), max_size=5)) * draw(st.sampled_from([1, 1, 40]))
            one = traffic.group(f"s{index}", k, accepted, bucket=index, undrafted=draw(COUNT))
            reasons = draw(
                st.dictionaries(st.sampled_from([*NOT_ASKED, "no_match"]), st.integers(0, 2), max_size=2)
            )
            if draw(st.booleans()):
                one = msgspec.structs.replace(
                    one, requests=one.requests + sum(reasons.values()), not_drafted=reasons
                )
            if draw(st.integers(0, 9)) == 0:
                one = msgspec.structs.replace(
                    one, **{draw(st.sampled_from(GROUP_NUMBERS)): draw(COUNT | ABSURD)}
                )
            if one.outcomes and draw(st.integers(0, 9)) == 0:
                wrong = list(one.outcomes[0])
                wrong[draw(st.integers(0, 2))] = draw(COUNT | ABSURD)
                one = msgspec.structs.replace(one, outcomes=(tuple(wrong), *one.outcomes[1:]))
            groups.append(one)
        flags = {name: draw(st.booleans()) for name in FLAGS if draw(st.integers(0, 4)) == 0}
        report = traffic.report(step, groups, prefill_tokens=0, **flags)
        if draw(st.integers(0, 4)) == 0:
            report = msgspec.structs.replace(report, **{draw(st.sampled_from(NUMBERS)): draw(COUNT | ABSURD)})
        out.append(report)
    return out


@settings(max_examples=300, deadline=None)
@given(some_reports())
def test_columns_are_what_plain_python_says(reports: list[StepReport]) -> None:
    """The same reports are believed, and all that they say is there, in their order."""
    found, kept = columns(reports, traffic.K_MAX)
    assert list(kept) == [report for report in reports if possible(report, traffic.K_MAX)]
    for name, values in expected(list(kept)).items():
        assert list(getattr(found, name)) == values, name


def test_cut_columns_are_those_of_the_steps_alone() -> None:
    """A cut counts from 0 again."""
    chance = random.Random(0)
    reports = []
    for step in range(9):
        groups = [
            traffic.group(f"s{n}", 4, chance.choices(range(5), k=3)) for n in range(chance.randrange(4))
        ]
        reports.append(traffic.report(step, groups))
    whole = columns(reports, traffic.K_MAX)[0].cut(2, 7)
    alone = columns(reports[2:7], traffic.K_MAX)[0]
    for name in Columns.__struct_fields__:
        if name != "signals":
            assert list(getattr(whole, name)) == list(getattr(alone, name)), name


@pytest.mark.parametrize("wrong", [10**30, "7", None, (1,), {1: 1}, b"7"])
@pytest.mark.parametrize(
    "where",
    [
        "verify_s",
        "target_tokens",
        "warm_up",
        "groups",
        "requests",
        "outcomes",
        "not_drafted",
        "in outcomes",
        "in reasons",
    ],
)
def test_what_is_no_number_is_refused_alone(wrong: object, where: str) -> None:
    """A report that holds one is left out, whatever comes after it; the others stay."""
    group = traffic.group("s1", 4, [2, 4], undrafted=1)
    if where in StepReport.__struct_fields__:
        bad = msgspec.structs.replace(traffic.report(1, [group]), **{where: wrong})
    else:
        fields = {
            "in outcomes": {"outcomes": ((4, wrong, 1),)},
            "in reasons": {"not_drafted": {"grammar": wrong}},
        }
        bad = traffic.report(1, [traffic.group("s0", 4, [1])])
        bad = msgspec.structs.replace(
            bad, groups=(msgspec.structs.replace(group, **fields.get(where, {where: wrong})), *bad.groups)
        )
    good = [traffic.report(step, [group]) for step in (0, 2)]
    found, kept = columns([good[0], bad, good[1]], traffic.K_MAX)
    assert [report.step for report in kept] == [0, 2]
    assert found.names == ["s1", "s1"]


def test_numbers_of_numpy_are_numbers() -> None:
    """A simulator may count in arrays."""
    group = traffic.group("s1", 4, [2, 4])
    usual = traffic.report(0, [group])
    other = msgspec.structs.replace(
        usual, verify_s=np.float64(usual.verify_s), target_tokens=np.int64(usual.target_tokens)
    )
    found, kept = columns([usual, other], traffic.K_MAX)
    assert len(kept) == 2
    assert found.target_tokens[0] == found.target_tokens[1]
