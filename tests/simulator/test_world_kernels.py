"""The compiled passes over rows against the same in plain Python."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman_policies.messages import CONTEXT_EDGES_TOKENS, Group
from steersman_simulator.world import kernels
from steersman_simulator.world.groups import Groups

SEGMENTS = ("chat", "edit")
NOTHING = {kernels.NO_MATCH: "no_match", kernels.LENGTH_LIMIT: "length_limit"}

verified = st.integers(1, 8).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))
rows_of_a_step = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from([0, 3, 8]),
        st.sampled_from([1, *CONTEXT_EDGES_TOKENS, *(edge + 1 for edge in CONTEXT_EDGES_TOKENS)]),
        st.booleans(),
        verified
        | st.sampled_from([kernels.DRAFTED_FOR, kernels.NO_MATCH, kernels.LENGTH_LIMIT, kernels.EMPTY]),
    ),
    max_size=24,
)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(rows_of_a_step, min_size=1, max_size=3))
def test_groups_are_what_the_rows_add_up_to(steps):
    """In the order of their first row, outcomes too; a step knows nothing of the one before."""
    groups = Groups(24)
    for step in steps:
        rows = kernels.empty_rows(24)
        wanted: dict[tuple[str, int, int], list] = {}
        for row, (segment, k, cached, skipped, outcome) in enumerate(step):
            new = 1 + (outcome[1] if isinstance(outcome, tuple) else 0)
            rows[kernels.SEGMENT, row], rows[kernels.K, row], rows[kernels.SKIPPED, row] = segment, k, skipped
            rows[kernels.CONTEXT, row], rows[kernels.NEW, row] = cached + 1 + new, new
            code = outcome[0] * kernels.WIDTH + outcome[1] if isinstance(outcome, tuple) else outcome
            rows[kernels.OUTCOME, row] = code
            if not skipped:
                bucket = int(np.searchsorted(CONTEXT_EDGES_TOKENS, cached))
                wanted.setdefault((SEGMENTS[segment], bucket, k), []).append(outcome)
        assert groups.of(rows, len(step), SEGMENTS) == tuple(
            Group(
                segment,
                bucket,
                len(outcomes),
                k,
                sum(isinstance(outcome, tuple) for outcome in outcomes),
                tuple(
                    (*outcome, outcomes.count(outcome))
                    for outcome in dict.fromkeys(outcomes)
                    if isinstance(outcome, tuple)
                ),
                outcomes.count(kernels.EMPTY),
                {why: outcomes.count(code) for code, why in NOTHING.items() if code in outcomes},
            )
            for (segment, bucket, k), outcomes in wanted.items()
        )


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 20), chosen=st.sets(st.integers(0, 19), min_size=1))
def test_rows_that_stay_move_up(count, chosen):
    """All fields and the moment of the last delivery, in order."""
    leaving = sorted(row for row in chosen if row < count) or [count - 1]
    rows = np.arange(kernels.FIELDS * 20).reshape(kernels.FIELDS, 20)
    delivered_s = np.arange(20.0)
    stay = [row for row in range(count) if row not in leaving]
    wanted, wanted_s = rows[:, stay].copy(), delivered_s[stay].copy()
    kernels.remove(rows, count, delivered_s, np.array(leaving))
    assert (rows[:, : len(stay)] == wanted).all()
    assert (delivered_s[: len(stay)] == wanted_s).all()
