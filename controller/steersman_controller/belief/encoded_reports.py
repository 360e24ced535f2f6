"""Reports in msgpack, read into arrays; those left out that contradict themselves.

To walk through the tuples of a report in Python takes longer than all that is learned from it. So reports
are encoded, which an encoder in C does at once, and walked through here in compiled loops.

- A report is believed as a whole or not at all: one that claims the impossible in one group is no witness
  for the seconds it took either.
- Everything is checked here although the wire checks ranges: a record may come from this process. Only the
  encoding itself is trusted.
- A number may be encoded in any way that there is. What is none reads as NaN, which is impossible. Whoever
  goes on behind it lags behind, but stays within the data.
"""

import math

import numpy as np

from steersman_controller.belief.arrays import Array, Bytes, Counts, Mask
from steersman_controller.compiled import compiled, inlined

LARGEST = 1e15

MOST_TOKENS = float(1 << 24)
"""No forward reads more of prompts, and no request has a longer context."""

LEAST_S = 1e-9
"""No forward is faster."""

PADDING_TOKENS = 1024.0
"""A captured graph fills a forward up to twice its tokens and so many more, at most."""

(
    DRAFT_S,
    VERIFY_S,
    OTHER_S,
    STARTED_S,
    DECODE_REQUESTS,
    PREFILL_TOKENS,
    TARGET_TOKENS,
    CONTEXT_TOKENS,
    DRAFTING_DEPTH,
    REQUESTS_DRAFTING,
    COMMITTED_TOKENS,
    BUSY_S,
    WARM_UP,
    GRAPH_CAPTURE,
    PREEMPTION,
    FIRST_AFTER_SWITCH,
    TRAINS,
    STEP_ROWS,
) = range(18)
"""Rows of what is known of steps; flags are 0 or 1."""

CONTEXT_BUCKET, COMMANDED_K, REQUESTS_DRAFTED, REQUESTS_EMPTY, REQUESTS = range(5)
ASKED, WITH_DRAFT, INVALID, TEACHES, GROUP_ROWS = range(5, 10)
"""Rows of what is known of groups. Behind what they say themselves: requests that the drafter could have
served, those of them with a draft, those without a valid drafter state, and whether the group says anything
about the drafter. The first three are 0 where it does not."""

STEP, BUCKET, K, PLACE_ROWS = range(4)
"""Rows of where groups belong."""

OFFERED, REACHED, ACCEPTED, OUTCOME_ROWS = range(4)
"""Rows of outcomes: up to which position drafts were offered, reached and accepted."""

IGNORED, GROUPS, OUTCOMES, NOT_DRAFTED, SIGNALS = range(-1, -6, -1)
"""What to do with a field that is no number of a step or group."""

_MAP, _ARRAY, _TEXT, _NIL, _FALSE, _TRUE, _NEGATIVE = 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xC3, 0xE0
_BYTES_8, _EXTENSION_8, _FLOAT, _DOUBLE, _UNSIGNED, _SIGNED = 0xC4, 0xC7, 0xCA, 0xCB, 0xCC, 0xD0
_TEXT_8, _ARRAY_16, _MAP_16 = 0xD9, 0xDC, 0xDE
"""First bytes of values in msgpack (github.com/msgpack/msgpack, spec.md)."""

_SIZES = np.array(
    [0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, 1, 2, 4, 2, 4, 2, 4]
)
"""Bytes behind a first byte from 0xC0 on: of the value, or of its length."""


@inlined
def _number(head: int, bits: int, size: int) -> float:
    """The number that a first byte and so many behind it mean; a truth value is 0 or 1, all else NaN."""
    value = math.nan
    if head >= _NEGATIVE:
        value = float(head - 256)
    elif _FALSE <= head <= _TRUE:
        value = float(head - _FALSE)
    elif head == _DOUBLE:
        value = float(np.int64(bits).view(np.float64))
    elif head == _FLOAT:
        value = float(np.int32(bits).view(np.float32))
    elif _UNSIGNED <= head < _SIGNED:
        value = float(bits) + 2.0**64 * (bits < 0)
    elif _SIGNED <= head < _SIGNED + 4:
        value = float((bits << (64 - 8 * size)) >> (64 - 8 * size))
    return value


@inlined
def _members(head: int, bits: int) -> int:
    """Of an array the members; of a map -2 less the pairs; else -1."""
    if _MAP <= head < _ARRAY or _MAP_16 <= head < _NEGATIVE:
        return -2 - (head - _MAP if head < _ARRAY else bits)
    if _ARRAY <= head < _TEXT or _ARRAY_16 <= head < _MAP_16:
        return head - _ARRAY if head < _TEXT else bits
    return -1


@inlined
def _text_bytes(head: int, bits: int) -> int:
    """How many bytes of text, or of what else we do not read, come behind the length."""
    if _TEXT <= head < _NIL:
        return head - _TEXT
    if _BYTES_8 <= head < _EXTENSION_8 or _TEXT_8 <= head < _ARRAY_16:
        return bits
    return bits + 1 if _EXTENSION_8 <= head < _FLOAT else 0


@compiled
def tokens(data: Bytes, at: int, values: Array, members: Counts, starts: Counts) -> int:
    """Write the value at this byte, and behind it all that is in it, one after the other; where it ends.

    Of each what `_number` and `_members` say, and its first byte. Four more are nothing.
    """
    number, left = 0, 1
    while left > 0:
        head = int(np.int64(data[at]))  # with no sign, it would make floats of what it is added to
        starts[number], values[number], members[number] = at, float(head), -1
        number, left, at = number + 1, left - 1, at + 1
        if head < _MAP:  # nearly all of them
            continue
        size = int(_SIZES[head - _NIL]) if _NIL <= head < _NEGATIVE else 0
        bits = 0
        for byte in range(at, at + min(size, 8)):
            bits = (bits << 8) | int(np.int64(data[byte]))
        at += size + _text_bytes(head, bits)
        inside = _members(head, bits)
        values[number - 1], members[number - 1] = _number(head, bits, size), inside
        left += max(inside, -4 - 2 * inside, 0)
    values[number : number + 4], members[number : number + 4] = math.nan, -1
    return at


@inlined
def _after(members: Counts, at: int) -> int:
    """Where the value that follows the one at `at` is."""
    left = 1
    while left > 0:
        inside = members[at]
        left += max(inside, -4 - 2 * inside, 0) - 1
        at += 1
    return at


@inlined
def _outcomes(
    values: Array, members: Counts, at: int, row: int, outcomes: Counts, verified: Array
) -> tuple[int, int, float, float, float]:
    """Read the outcomes of a group into the rows from `row` on.

    Returns what comes behind them, the row behind the last; the longest draft, infinite where anything is
    impossible; requests with a draft, and draft tokens.
    """
    longest = 0.0 if members[at] >= 0 else math.inf
    with_draft = tokens = 0.0
    for place in range(at + 1, at + 1 + 4 * members[at], 4):
        drafted, accepted, times = values[place + 1], values[place + 2], values[place + 3]
        if not (members[place] == 3 and 0.0 <= accepted <= drafted <= LARGEST and times >= 0.0):
            return at, row, math.inf, 0.0, 0.0
        longest = max(longest, drafted)
        with_draft += times * (drafted > 0.0)
        tokens += times * drafted
        outcomes[OFFERED, row], outcomes[ACCEPTED, row], verified[row] = int(drafted), int(accepted), times
        outcomes[REACHED, row] = min(outcomes[OFFERED, row], outcomes[ACCEPTED, row] + 1)
        row += 1
    return at + 1 + 4 * max(members[at], 0), row, longest, with_draft, tokens


@inlined
def _reasons(
    data: Bytes, values: Array, members: Counts, starts: Counts, at: int, words: Bytes
) -> tuple[float, float]:
    """Requests left out for one of these words, NaN where there are no reasons; and those for the first one.

    `words`: each a row, filled up with zeros.
    """
    total, first = 0.0 if members[at] <= -2 else math.nan, 0.0
    for pair in range(at + 1, at - 3 - 2 * members[at], 2):
        if members[pair + 1] != -1:
            return math.nan, 0.0
        text = starts[pair]
        size = int(np.int64(data[text])) - _TEXT
        if not 0 <= size < words.shape[1]:
            continue
        for word in range(words.shape[0]):
            byte = 0
            while byte < size and words[word, byte] == data[text + 1 + byte]:
                byte += 1
            if byte == size and words[word, size] == 0:
                total += values[pair + 1]
                first += values[pair + 1] * (word == 0)
    return total, first


@inlined
def _group(
    data: Bytes,
    values: Array,
    members: Counts,
    starts: Counts,
    at: int,
    layout: Counts,
    words: Bytes,
    limits: Counts,
    group: int,
    row: int,
    groups: Array,
    outcomes: Counts,
    verified: Array,
) -> tuple[int, int, float, bool]:
    """Read a group, its outcomes into the rows from `row` on.

    Returns what comes behind it, the row behind its last outcome, its draft tokens, -1 where it is
    impossible; and whether it has signals.
    """
    fields, at = min(members[at], len(layout)), at + 1
    longest, with_draft, drafts, not_asked, invalid, signals = math.inf, 0.0, 0.0, math.nan, 0.0, False
    for field in range(fields):
        what = layout[field]
        if what >= 0:
            groups[what, group] = values[at]
        elif what == OUTCOMES:
            at, row, longest, with_draft, drafts = _outcomes(values, members, at, row, outcomes, verified)
            if longest == math.inf:
                return at, row, -1.0, False
            continue
        elif what == NOT_DRAFTED:
            not_asked, invalid = _reasons(data, values, members, starts, at, words)
        elif what == SIGNALS:
            signals = members[at] > 0
        at = at + 1 if members[at] == -1 else _after(members, at)
    requests, drafted, k = (
        groups[REQUESTS, group],
        groups[REQUESTS_DRAFTED, group],
        groups[COMMANDED_K, group],
    )
    possible = longest <= k <= limits[0] and groups[CONTEXT_BUCKET, group] < limits[1]
    for what in range(ASKED):
        possible = possible and 0.0 <= groups[what, group] <= LARGEST
    possible = possible and not_asked >= 0.0 and drafted + not_asked <= requests and with_draft == drafted
    groups[ASKED, group] = requests - not_asked
    groups[WITH_DRAFT, group] = drafted
    groups[INVALID, group] = invalid
    return at, row, drafts if possible else -1.0, signals


@inlined
def _is_possible(steps: Array, step: int, k_max: int, requests: float, draft_tokens: float) -> bool:
    """Whether a step may be believed, that has so many requests and draft tokens in its groups."""
    steps[BUSY_S, step] = steps[DRAFT_S, step] + steps[VERIFY_S, step] + steps[OTHER_S, step]
    for what in range(TRAINS):
        if not 0.0 <= steps[what, step] <= LARGEST:
            return False
    decode, prefill, tokens = (
        steps[DECODE_REQUESTS, step],
        steps[PREFILL_TOKENS, step],
        steps[TARGET_TOKENS, step],
    )
    longest_s = max(steps[DRAFT_S, step], steps[VERIFY_S, step], steps[OTHER_S, step])
    most = 2.0 * ((k_max + 1.0) * decode + prefill) + PADDING_TOKENS
    return bool(
        steps[DRAFTING_DEPTH, step] <= k_max
        and (longest_s >= LEAST_S or tokens == 0.0)  # no forward takes no time
        and prefill <= MOST_TOKENS
        and steps[CONTEXT_TOKENS, step] <= MOST_TOKENS * decode
        and tokens <= most
        and steps[COMMITTED_TOKENS, step] <= most
        and requests <= decode
        and decode + draft_tokens <= tokens
    )


@inlined
def _finish(step: int, steps: Array, first: int, last: int, groups: Array, places: Counts) -> None:
    """Work out what follows from what a step and its groups say."""
    special = steps[WARM_UP, step] > 0.0 or steps[GRAPH_CAPTURE, step] > 0.0 or steps[PREEMPTION, step] > 0.0
    worked = steps[COMMITTED_TOKENS, step] > 0.0 or steps[PREFILL_TOKENS, step] > 0.0
    trains = worked and not special
    steps[TRAINS, step] = trains
    for group in range(first, last):
        teaches = trains and groups[COMMANDED_K, group] > 0.0
        groups[TEACHES, group] = teaches
        for what in range(ASKED, TEACHES):
            groups[what, group] *= teaches
        places[STEP, group] = step
        places[BUCKET, group] = int(groups[CONTEXT_BUCKET, group])
        places[K, group] = int(groups[COMMANDED_K, group])


@compiled
def read(
    data: Bytes,
    values: Array,
    members: Counts,
    starts: Counts,
    layouts: Counts,
    words: Bytes,
    limits: Counts,
    steps: Array,
    groups_before: Counts,
    groups: Array,
    places: Counts,
    outcomes_before: Counts,
    outcomes: Counts,
    verified: Array,
    sane: Mask,
) -> bool:
    """Read an array of reports; whether a sane one has signals.

    `values`, `members`, `starts`: room for the `tokens` of the longest of them. `layouts`: of a report and of
    a group, what to do with each field. `words`: see `_reasons`. `limits`: K_max and the number of context
    buckets. All others are filled: what is known of steps, groups and outcomes, and how many groups come
    before each step and outcomes before each group. Nothing is left of a report that is not sane.
    """
    step, end, signals = 0, 1, False
    if data[0] >= _ARRAY_16:
        end = 3 if data[0] == _ARRAY_16 else 5
    groups_before[0] = outcomes_before[0] = 0
    for report in range(len(sane)):
        end = tokens(data, end, values, members, starts)
        first, now, has_signals = groups_before[step], 1, False
        last, requests, drafts = first, math.nan, 0.0
        for field in range(members[0]):
            what = layouts[0, field]
            if what == GROUPS and members[now] >= 0:
                count, now, requests = members[now], now + 1, 0.0
                for last in range(first + 1, first + 1 + count):
                    now, outcomes_before[last], more, one_has = _group(
                        data,
                        values,
                        members,
                        starts,
                        now,
                        layouts[1],
                        words,
                        limits,
                        last - 1,
                        outcomes_before[last - 1],
                        groups,
                        outcomes,
                        verified,
                    )
                    requests += groups[REQUESTS, last - 1]
                    drafts += more
                    has_signals |= one_has
                    if more < 0.0:
                        requests = math.nan
                        break
                if math.isnan(requests):
                    break
                continue
            if what >= 0:
                steps[what, step] = values[now]
            now = now + 1 if members[now] == -1 else _after(members, now)
        sane[report] = requests >= 0.0 and _is_possible(steps, step, limits[0], requests, drafts)
        if sane[report]:
            _finish(step, steps, first, last, groups, places)
            signals |= has_signals
            step += 1
            groups_before[step] = last
    return signals
