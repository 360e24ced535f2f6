"""What a policy may know: belief as small tables, with its uncertainty. Nothing here learns."""

from bisect import bisect_left
from itertools import accumulate
from typing import Literal, TypeAlias

from msgspec import Struct

from steersman_policies.messages import Hello, Signal
from steersman_policies.plan import Plan, Slo
from steersman_policies.segmenter import Segmenter
from steersman_policies.units import Count, Fraction, Name, ProposalLength, Seconds, Segment

Row: TypeAlias = tuple[Seconds, ...]


class StepCost(Struct, frozen=True):
    """Seconds of a step, compiled from the cost model.

    ``verify_s[prefill][context][tokens]`` over the three grids; context is the sum over the batch.
    ``draft_s[depth][requests]`` is charged per request that is asked; depth 0 costs nothing here.
    """

    tokens_grid: tuple[Count, ...]
    context_grid_tokens: tuple[Count, ...]
    prefill_grid_tokens: tuple[Count, ...]
    verify_s: tuple[tuple[Row, ...], ...]
    requests_grid: tuple[Count, ...]
    draft_s: tuple[Row, ...]
    other_s: Row
    """Host time by `requests_grid`."""
    relative_error: Fraction
    """Typical |predicted - actual| / actual of recent steps; 1.0 before there is any evidence."""
    first_after_switch_s: Seconds = 0.0
    """What the first step after a switch of K takes longer, on average."""
    half_interval: Row = ()
    """Half the width of the 90 % interval of a step's seconds, relative to them, by `tokens_grid`; empty
    where it is not known."""

    def verify_row(self, context_tokens: float, prefill_tokens: float) -> Row:
        """Seconds by `tokens_grid`, at the nearest grid point of the other two axes."""
        planes = self.verify_s[_nearest(self.prefill_grid_tokens, prefill_tokens)]
        return planes[_nearest(self.context_grid_tokens, context_tokens)]

    def verify_at(self, tokens: float, context_tokens: float, prefill_tokens: float = 0.0) -> float:
        """Seconds of the target's forward over `tokens` (prefill included)."""
        return interpolate(self.tokens_grid, self.verify_row(context_tokens, prefill_tokens), tokens)

    def draft_at(self, depth: int, requests: float) -> float:
        """Seconds of drafting `depth` tokens for `requests`."""
        return interpolate(self.requests_grid, self.draft_s[depth], requests)

    def other_at(self, requests: float) -> float:
        """Seconds of everything else in a step."""
        return interpolate(self.requests_grid, self.other_s, requests)


class SignalBelief(Struct, frozen=True):
    """What one signal, known before a draft is verified, says about it in one segment."""

    share: tuple[Fraction, ...]
    """Of the drafts, by bin; for confidence, of their first tokens."""
    survival: tuple[tuple[Fraction, ...], ...]
    """P(accepted up to position j | the drafter offers j): by bin and position."""
    gain_nats: float
    """By how much a verified position is predicted better than from the segment alone, on average, before it
    is learned from."""
    gain_error_nats: float
    """Standard error of that."""


class SegmentBelief(Struct, frozen=True):
    """Acceptance of one segment, and how present it is."""

    segment: Segment
    share: Fraction
    """Of the live decode requests, recently."""
    weight: float
    """Effective number of drafts behind the numbers; 0 means: only the prior speaks."""
    coverage: Fraction
    """Share of request-steps asked for a draft in which the drafter had one (m of the formulas)."""
    acceptance: tuple[Fraction, ...]
    """Position acceptance for positions 1 to K_max: accepted / reached."""
    acceptance_low: tuple[Fraction, ...]
    """Lower bound of the 90 % interval."""
    drafted_share: tuple[Fraction, ...]
    """P(the drafter offers position j | it has a draft, K >= j): a drafter may fall short of K."""
    acceptance_high: tuple[Fraction, ...] = ()
    """Upper bound of the 90 % interval."""
    invalid_state_share: Fraction = 0.0
    """Of the requests under a K above 0, those that the drafter has no valid state for: they are not drafted
    for, and `coverage` does not count them."""
    by_k: dict[ProposalLength, tuple[Fraction, ...]] = {}
    """Position acceptance by commanded K, for the K that have enough evidence of their own, where it differs
    from K to K; empty where `acceptance` holds for every K."""
    by_signal: dict[Signal, SignalBelief] = {}
    """Only the signals that pay in this segment."""

    def survival(self, *, low: bool = False) -> tuple[float, ...]:
        """P(position j is accepted | asked for at least j), coverage included.

        >>> belief = SegmentBelief("chat", 1.0, 9.0, 0.5, (0.8, 0.5), (0.7, 0.4), (1.0, 0.5))
        >>> [round(p, 3) for p in belief.survival()]
        [0.4, 0.1]
        """
        return self._chain(self.acceptance_low if low else self.acceptance)

    def gains(self, *, low: bool = False) -> tuple[float, ...]:
        """Expected accepted tokens by K, from 0: the sums of the survival; by what is known of that very K
        where acceptance differs from K to K.

        >>> numbers = ((0.8, 0.5), (0.7, 0.4), (1.0, 1.0))
        >>> belief = SegmentBelief("chat", 1.0, 9.0, 1.0, *numbers, by_k={2: (0.5, 0.5)})
        >>> [round(tokens, 2) for tokens in belief.gains()], [round(n, 2) for n in belief.gains(low=True)]
        ([0.0, 0.8, 0.75], [0.0, 0.7, 0.98])
        """
        found = [0.0, *accumulate(self.survival(low=low))]
        for k, acceptance in {} if low else self.by_k.items():
            found[k] = sum(self._chain(acceptance)[:k])
        return tuple(found)

    def offered(self) -> tuple[float, ...]:
        """Expected draft tokens at position j for a request asked for at least j."""
        return tuple([self.coverage * share for share in self.drafted_share])

    def _chain(self, acceptance: tuple[float, ...]) -> tuple[float, ...]:
        chain, out = self.coverage, []
        for accepted, offered in zip(acceptance, self.drafted_share, strict=True):
            chain *= accepted
            out.append(chain * offered)
        return tuple(out)


class View(Struct, frozen=True):
    """Everything a planner may read."""

    now_s: Seconds
    hello: Hello
    fingerprint: Name
    mode: Literal["shadow", "steer"]
    next_plan_id: Count
    seed: Count
    cost: StepCost
    segments: tuple[SegmentBelief, ...]
    """Always holds `unknown`."""
    mean_context_tokens: float
    """Of a live request, recently."""
    prefill_tokens: float
    """Mean over the recent steps that carried prefill."""
    batch_edges: tuple[Count, ...]
    context_edges: tuple[Count, ...]
    previous: Plan | None = None
    mean_requests: float = 0.0
    """Live decode requests, recently."""
    afresh: bool = False
    """Whether what was decided before is in doubt everywhere: at the first plan, after a change of policy or
    mode, after a restart from a snapshot, after an alarm."""
    segmenter: Segmenter = Segmenter()
    slo: dict[Segment, Slo] = {}


def interpolate(grid: tuple[int, ...], values: Row, at: float) -> float:
    """Piecewise linear over an ascending grid, extended by its last slope, flat below its start.

    >>> interpolate((1, 3), (1.0, 2.0), 2), interpolate((1, 3), (1.0, 2.0), 5)
    (1.5, 3.0)
    >>> interpolate((1, 3), (1.0, 2.0), 0), interpolate((4,), (7.0,), 9)
    (1.0, 7.0)
    """
    if at <= grid[0] or len(grid) == 1:
        return values[0]
    right = min(bisect_left(grid, at), len(grid) - 1)
    left = right - 1
    fraction = (at - grid[left]) / (grid[right] - grid[left])
    return values[left] + fraction * (values[right] - values[left])


def _nearest(grid: tuple[int, ...], at: float) -> int:
    right = bisect_left(grid, at)
    if right == 0:
        return 0
    if right == len(grid):
        return right - 1
    return right if grid[right] - at < at - grid[right - 1] else right - 1
