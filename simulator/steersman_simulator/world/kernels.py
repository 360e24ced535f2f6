"""The loops over decode rows, compiled.

Numba compiles each once per process, at its first call. Its cache on disk is not used: the index of that
cache is a pickle. All arrays are int64 but for the seconds and the tables of drafts, so that one
compiled form serves all calls. Nothing in here draws chance or reads a clock.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from steersman_policies.messages import CONTEXT_EDGES_TOKENS
from steersman_simulator.acceptance.draft_table import MAX_DRAFT_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

(
    SEGMENT,
    CONTEXT,
    COMMITTED,
    OUTPUT,
    STOPS,
    TABLE,
    K,
    PENDING,
    ACCEPTABLE,
    WHY,
    STEPS,
    DRAFTED,
    ACCEPTED,
    REACHED,
    STEPS_DRAFTED,
    BLOCKS,
    MISSED,
    NEW,
    DONE,
    SKIPPED,
    FILLING,
    OUTCOME,
    FIELDS,
) = range(23)
"""Fields of a row. CONTEXT is prompt and output so far; the cache holds one token less before a step.
TABLE is where the row's drafts begin, -1 where nothing is known of them. PENDING draft tokens, made under K,
wait for the next forward, which accepts at most ACCEPTABLE of them; WHY there are none is one of the codes
below. MISSED tokens are unknown to the drafter. NEW tokens came in the last commit. DONE rows are finished
and have not left; SKIPPED ones found no budget in the next forward; FILLING tokens
fill up a short draft (async). OUTCOME is the code of what the last commit verified."""

DRAFTED_FOR, NO_MATCH, LENGTH_LIMIT, EMPTY = range(4)
"""Codes of WHY, and of outcomes without a draft."""

WIDTH = MAX_DRAFT_TOKENS + 1
OUTCOMES = WIDTH * WIDTH
"""Codes of outcomes: drafted x WIDTH + accepted, or one of the codes above where nothing was drafted."""

BUCKETS = len(CONTEXT_EDGES_TOKENS) + 1
EDGES = np.array(CONTEXT_EDGES_TOKENS, dtype=np.int64)

GAP_BINS = 2048
GAP_BINS_PER_E = 100.0
GAP_LEAST_S = 1e-5
"""Bins of gaps are equally wide on a log scale; the first one holds all below the least."""

_LOGS = np.log(np.maximum(np.arange(WIDTH + 1), 1.0)) * GAP_BINS_PER_E
"""Bins between a gap and its equal share for each of so many tokens."""

STATELESS, WARM, COLD = range(3)
"""What becomes of the drafter's state while K is 0."""


def empty_rows(capacity: int) -> Ints:
    """Rows by field: shape [FIELDS, capacity]."""
    return np.zeros((FIELDS, capacity), dtype=np.int64)


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def commit(
    rows: Ints,
    count: int,
    now_s: float,
    lingers: bool,
    delivered_s: Floats,
    gaps: Ints,
    outcomes: Ints,
    ends: Ints,
) -> tuple[int, int, int, int]:
    """Accept drafts and hand out tokens, in `count` rows.

    `lingers`: whether a finished request takes part in one more step. `ends` becomes the indices of the rows
    that are done now [0] and of those that leave now [1]; `outcomes` [segment, code] and `gaps` [per delivery
    or token, bin] are added to. Returned: rows done, rows that leave, tokens, context of the rows that go on.
    """
    done = leave = tokens = context = 0
    gap_s = place = -1.0
    for row in range(count):
        rows[NEW, row] = 0
        if rows[DONE, row]:
            rows[OUTCOME, row] = EMPTY
            ends[1, leave] = row
            leave += 1
        elif rows[SKIPPED, row]:
            context += rows[CONTEXT, row]
        else:
            pending = rows[PENDING, row]
            accepted = min(pending, rows[ACCEPTABLE, row])
            code = pending * WIDTH + accepted if pending else rows[WHY, row]
            new = min(accepted + 1, rows[OUTPUT, row] - rows[COMMITTED, row])
            rows[STEPS, row] += 1
            rows[DRAFTED, row] += pending
            rows[ACCEPTED, row] += accepted
            rows[REACHED, row] += min(pending, accepted + 1)
            rows[STEPS_DRAFTED, row] += pending > 0
            rows[COMMITTED, row] += new
            rows[CONTEXT, row] += new
            rows[NEW, row], rows[OUTCOME, row] = new, code
            tokens += new
            if now_s - delivered_s[row] != gap_s:  # nearly all rows have the gap of the one before
                gap_s = now_s - delivered_s[row]
                place = math.log(max(gap_s / GAP_LEAST_S, 1e-9)) * GAP_BINS_PER_E
            delivered_s[row] = now_s
            gaps[0, min(max(int(place) + 1, 0), GAP_BINS - 1)] += 1
            gaps[1, min(max(int(place - _LOGS[new]) + 1, 0), GAP_BINS - 1)] += new
            outcomes[rows[SEGMENT, row], code] += 1
            if rows[COMMITTED, row] < rows[OUTPUT, row]:
                context += rows[CONTEXT, row]
                continue
            rows[DONE, row], ends[0, done] = 1, row
            done += 1
            if not lingers:
                ends[1, leave] = row
                leave += 1
    return done, leave, tokens, context


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def remove(rows: Ints, count: int, delivered_s: Floats, leaving: Ints) -> None:
    """Let rows go, at least one and ascending; those behind them move up."""
    to = leaving[0]
    for at in range(leaving.shape[0]):
        behind = leaving[at + 1] if at + 1 < leaving.shape[0] else count
        for row in range(leaving[at] + 1, behind):
            for field in range(FIELDS):
                rows[field, to] = rows[field, row]
            delivered_s[to] = delivered_s[row]
            to += 1


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def draft(
    rows: Ints,
    count: int,
    k_of: Ints,
    offered: NDArray[np.uint8],
    accepted: NDArray[np.uint8],
    budget: int,
    state: int,
    fills: bool,
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Drafts for the next forward, K by segment in `k_of`, and what the decode requests bring to it.

    `budget` is the most tokens of a forward or 0, `state` what becomes of the drafter's (a code above),
    `fills` whether short drafts are filled up. Returned: requests asked, their context, stale tokens, whether
    a table was missing; decode rows, draft tokens, cached tokens, ragged rows, filling.
    """
    asked = asked_context = stale = missing = 0
    decode = drafts = cached = longest = at_longest = filling = used = 0
    for row in range(count):
        k = k_of[rows[SEGMENT, row]]
        rows[K, row] = k
        left = rows[OUTPUT, row] - rows[COMMITTED, row]
        # The last token of a request is the bonus token of its last step, if its length is known.
        room = k if rows[STOPS, row] or rows[DONE, row] else min(k, left - 1)
        pending, why = 0, LENGTH_LIMIT if k else DRAFTED_FOR
        if room > 0:
            asked += 1
            asked_context += rows[CONTEXT, row]
            stale += rows[MISSED, row]
            rows[MISSED, row] = 0
            pending, why = room, NO_MATCH
            if not rows[DONE, row]:
                missing |= rows[TABLE, row] < 0
                at = max(rows[TABLE, row], 0) + rows[COMMITTED, row]
                pending = min(room, offered[at])
                rows[ACCEPTABLE, row] = accepted[at]
        elif state == WARM:
            stale += rows[NEW, row]
        elif state == COLD:
            rows[MISSED, row] += rows[NEW, row]
        if budget:
            room = max(0, min(room, budget - used - 1))
            why = LENGTH_LIMIT if pending > room else why
            pending = min(pending, room)
        rows[SKIPPED, row] = budget > 0 and used >= budget
        rows[PENDING, row] = pending
        rows[WHY, row] = DRAFTED_FOR if pending else why
        rows[FILLING, row] = room - pending if fills else 0
        if not rows[SKIPPED, row]:
            used += 1 + pending + rows[FILLING, row]
            filling += rows[FILLING, row]
            decode += 1
            drafts += pending
            cached += rows[CONTEXT, row] - 1
            at_longest = at_longest + (pending == longest) if pending <= longest else 1
            longest = max(longest, pending)
    return asked, asked_context, stale, missing, decode, drafts, cached, decode - at_longest, filling


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def reserve(rows: Ints, count: int, block_tokens: int, reserved_tokens: int, available: int) -> int:
    """KV blocks that the rows of the next forward want; they get them where so many are available."""
    wanted = 0
    for row in range(count):
        if not rows[SKIPPED, row]:
            need = -((rows[CONTEXT, row] + reserved_tokens) // -block_tokens)
            wanted += max(0, need - rows[BLOCKS, row])
    if wanted <= available:
        for row in range(count):
            if not rows[SKIPPED, row]:
                need = -((rows[CONTEXT, row] + reserved_tokens) // -block_tokens)
                rows[BLOCKS, row] = max(rows[BLOCKS, row], need)
    return wanted
