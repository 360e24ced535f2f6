"""The goodput policy against brute force."""

import random
from collections.abc import Callable
from itertools import product

import msgspec
import pytest

from steersman_policies.conformance import example_view
from steersman_policies.plan import Plan
from steersman_policies.view import SegmentBelief, StepCost, View
from steersman_policies.zoo.goodput import Policy

EXACT = Policy(band=0.0, tie=0.0)
GRID = tuple(range(1, 401))
POWER = 0.7
"""Steps that get smaller."""


def belief(
    name: str,
    share: float,
    acceptance: tuple[float, ...],
    *,
    coverage: float = 1.0,
    offered: tuple[float, ...] | None = None,
    weight: float = 1000.0,
    low: tuple[float, ...] | None = None,
) -> SegmentBelief:
    """Known well unless said otherwise."""
    return SegmentBelief(
        segment=name,
        share=share,
        weight=weight,
        coverage=coverage,
        acceptance=acceptance,
        acceptance_low=low or acceptance,
        drafted_share=offered or (1.0,) * len(acceptance),
    )


def one_cell(
    segments: tuple[SegmentBelief, ...],
    batch: int,
    verify_s: Callable[[int], float],
    *,
    draft_s: Callable[[int], float] = lambda depth: 0.0,
    reachable: tuple[int, ...] | None = None,
    per_request_k: bool = True,
) -> View:
    """A view whose plans have a single cell."""
    k_max = len(segments[0].acceptance)
    reachable = reachable or tuple(range(k_max + 1))
    base = example_view(acceptance=0.5, weight=1.0, reachable_k=reachable, per_request_k=per_request_k)
    cost = StepCost(
        tokens_grid=GRID,
        context_grid_tokens=(0,),
        prefill_grid_tokens=(0,),
        verify_s=((tuple(map(verify_s, GRID)),),),
        requests_grid=(1,),
        draft_s=tuple((draft_s(depth),) for depth in range(k_max + 1)),
        other_s=(0.0,),
        relative_error=0.05,
    )
    hello = msgspec.structs.replace(base.hello, max_batch=batch)
    return msgspec.structs.replace(
        base, hello=hello, cost=cost, segments=segments, batch_edges=(), context_edges=(), prefill_tokens=0.0
    )


def chosen(policy: Policy, view: View) -> dict[str, int]:
    """K by segment in the single cell."""
    plan, _ = policy.plan(view, {}, 0.5)
    return {segment: table[0][0] for segment, table in plan.proposal_length.items()}


def goodput(view: View, lengths: dict[str, int]) -> float:
    """Written down from the definition, not from the policy."""
    batch, total = view.hello.max_batch, sum(s.share for s in view.segments)
    committed = tokens = float(batch)
    for s in view.segments:
        requests = batch * s.share / total
        survival = s.coverage
        for j in range(lengths[s.segment]):
            survival *= s.acceptance[j]
            committed += requests * survival * s.drafted_share[j]
            tokens += requests * s.coverage * s.drafted_share[j]
    depth = max(lengths.values())
    return committed / (view.cost.verify_at(tokens, 0.0) + view.cost.draft_s[depth][0])


def oracle(view: View) -> float:
    """Goodput of the best of all K vectors."""
    names = [s.segment for s in view.segments]
    return max(
        goodput(view, dict(zip(names, ks, strict=True)))
        for ks in product(view.hello.reachable_k, repeat=len(names))
    )


def falling(chance: random.Random, count: int) -> tuple[float, ...]:
    """Random acceptance by position."""
    return tuple(chance.uniform(0.1, 0.98) for _ in range(count))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("reachable", [(0, 1, 2, 3, 4, 5), (0, 1, 3, 5)])
def test_nothing_beats_it_where_seconds_are_linear(seed: int, reachable: tuple[int, ...]) -> None:
    """With any shares, coverages and offers it finds the best of all K vectors, draft time included."""
    chance = random.Random(seed)
    segments = tuple(
        belief(
            name,
            chance.uniform(0.1, 1.0),
            falling(chance, 5),
            coverage=chance.uniform(0.2, 1.0),
            offered=tuple(sorted((chance.uniform(0.3, 1.0) for _ in range(5)), reverse=True)),
        )
        for name in ("unknown", "a", "b")
    )
    slope, per_depth = chance.uniform(0.0001, 0.01), chance.uniform(0.0, 0.01)
    view = one_cell(
        segments,
        chance.choice((1, 4, 16)),
        lambda tokens: 0.02 + slope * tokens,
        draft_s=lambda depth: per_depth * depth,
        reachable=reachable,
    )
    assert goodput(view, chosen(EXACT, view)) == pytest.approx(oracle(view), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_beats_it_where_seconds_are_stepped(seed: int) -> None:
    """Stepped and not convex, equal segments sizes: still the best of all K vectors."""
    chance = random.Random(seed)
    segments = tuple(belief(name, 1.0, falling(chance, 5)) for name in ("unknown", "a", "b"))
    width, rise = chance.choice((8, 16, 24)), chance.uniform(0.001, 0.02)
    view = one_cell(
        segments,
        chance.choice((3, 6, 12)),
        lambda tokens: 0.02 + rise * (tokens // width) ** POWER,
        draft_s=lambda depth: 0.002 * depth,
    )
    assert goodput(view, chosen(EXACT, view)) == pytest.approx(oracle(view), rel=1e-9)


def test_every_reachable_k_is_scored() -> None:
    """K = 1 loses to 0, every K up to 6 loses, and 7 wins: it is found behind the losses."""
    view = one_cell((belief("unknown", 1.0, (0.95,) * 8),), 1, lambda tokens: 0.02 if tokens == 1 else 0.07)
    assert goodput(view, {"unknown": 1}) < goodput(view, {"unknown": 0})
    assert chosen(EXACT, view) == {"unknown": 8}
    view = one_cell(
        (belief("unknown", 1.0, (0.95,) * 8),),
        1,
        lambda tokens: 0.02 if tokens == 1 else 0.07 if tokens <= 8 else 1.0,
    )
    assert chosen(EXACT, view) == {"unknown": 7}


def test_a_reachable_set_with_holes() -> None:
    """Only reachable K are planned, also where the best K overall is not one of them."""
    segments = (belief("unknown", 0.5, (0.85,) * 7), belief("a", 0.5, (0.3,) * 7))
    view = one_cell(segments, 8, lambda tokens: 0.02 + 0.001 * tokens, reachable=(0, 1, 3, 7))
    lengths = chosen(EXACT, view)
    assert set(lengths.values()) <= {0, 1, 3, 7}
    assert goodput(view, lengths) == pytest.approx(oracle(view))


def test_an_engine_with_one_k_for_all() -> None:
    """Where requests cannot differ, all segments get the K that is best for the mix."""
    segments = (
        belief("unknown", 0.0, (0.5,) * 6),
        belief("a", 0.7, (0.9,) * 6),
        belief("b", 0.3, (0.2,) * 6),
    )
    view = one_cell(segments, 8, lambda tokens: 0.02 + 0.001 * tokens, per_request_k=False)
    lengths = chosen(EXACT, view)
    best = max(range(7), key=lambda k: goodput(view, dict.fromkeys(lengths, k)))
    assert lengths == dict.fromkeys(lengths, best)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_equal_survivals_reduce_it_to_smartspec(alpha: float, batch: int) -> None:
    """Equal segments get the single K that maximises (1 + sum alpha^j) / seconds."""
    segments = tuple(belief(name, 0.25, (alpha,) * 7) for name in ("unknown", "a", "b", "c"))
    view = one_cell(
        segments, batch, lambda tokens: 0.02 + 0.0005 * tokens, draft_s=lambda depth: 0.001 * depth
    )

    def smartspec(k: int) -> float:
        committed = (1.0 - alpha ** (k + 1)) / (1.0 - alpha)
        return batch * committed / (0.02 + 0.0005 * batch * (k + 1) + 0.001 * k)

    assert set(chosen(EXACT, view).values()) == {max(range(8), key=smartspec)}


def scaled(cost: StepCost, factor: float) -> StepCost:
    """All seconds times a factor."""
    return msgspec.structs.replace(
        cost,
        verify_s=tuple(tuple(tuple(s * factor for s in row) for row in plane) for plane in cost.verify_s),
        draft_s=tuple(tuple(s * factor for s in row) for row in cost.draft_s),
        other_s=tuple(s * factor for s in cost.other_s),
    )


@pytest.mark.parametrize("factor", [0.001, 100.0])
def test_only_ratios_of_seconds_matter(factor: float) -> None:
    """A machine that is slower in every phase gets the same K everywhere."""
    view = example_view(acceptance=0.8, weight=500.0)
    plan, _ = Policy().plan(view, {}, 0.5)
    other, _ = Policy().plan(msgspec.structs.replace(view, cost=scaled(view.cost, factor)), {}, 0.5)
    assert other == plan


def test_the_held_k_stays_within_the_band() -> None:
    """The K in force goes only when another promises more than the band above it."""
    view = one_cell((belief("unknown", 1.0, (0.7,) * 8),), 4, lambda tokens: 0.02 + 0.001 * tokens)
    scores = [goodput(view, {"unknown": k}) for k in range(9)]
    best = max(range(9), key=scores.__getitem__)
    plan, _ = EXACT.plan(view, {}, 0.5)
    assert plan.proposal_length["unknown"] == ((best,),)
    for k in range(9):
        held = msgspec.structs.replace(plan, proposal_length={"unknown": ((k,),)})
        again = msgspec.structs.replace(view, previous=held)
        stays = scores[k] * 1.03 >= scores[best]
        assert chosen(Policy(band=0.03, tie=0.0), again) == {"unknown": k if stays else best}
    assert any(scores[k] * 1.03 >= scores[best] for k in range(9) if k != best), "the band holds something"


def test_the_plan_of_another_policy_is_not_held() -> None:
    """What `fixed` left behind has no claim to stay."""
    view = one_cell((belief("unknown", 1.0, (0.7,) * 8),), 4, lambda tokens: 0.02 + 0.001 * tokens)
    plan, _ = EXACT.plan(view, {}, 0.5)
    foreign = msgspec.structs.replace(plan, policy="fixed", proposal_length={"unknown": ((5,),)})
    assert chosen(Policy(band=1.0, tie=0.0), msgspec.structs.replace(view, previous=foreign)) != {
        "unknown": 5
    }


def test_a_new_segment_was_served_as_unknown() -> None:
    """A segment that the previous plan did not name holds the K of `unknown`."""
    segments = (belief("unknown", 0.5, (0.7,) * 8), belief("new", 0.5, (0.7,) * 8))
    view = one_cell(segments, 4, lambda tokens: 0.02 + 0.001 * tokens)
    plan, _ = EXACT.plan(view, {}, 0.5)
    held: Plan = msgspec.structs.replace(plan, proposal_length={"unknown": ((2,),)})
    again = msgspec.structs.replace(view, previous=held)
    assert chosen(Policy(band=1.0), again) == {"unknown": 2, "new": 2}


def test_ties_go_to_the_fewest_draft_tokens() -> None:
    """Where drafting more changes next to nothing, less is drafted."""
    view = one_cell((belief("unknown", 1.0, (0.9, 0.02, 0.02, 0.02)),), 1, lambda tokens: 0.02)
    assert chosen(EXACT, view) == {"unknown": 4}
    assert chosen(Policy(tie=0.03), view) == {"unknown": 1}


def test_a_segment_that_is_hardly_known_has_to_earn_it() -> None:
    """Below `known_weight` the lower bound decides, above it the mean."""
    for weight, k in ((39.0, 0), (40.0, 4)):
        unsure = belief("unknown", 1.0, (0.9,) * 4, low=(0.0,) * 4, weight=weight)
        assert chosen(Policy(), one_cell((unsure,), 1, lambda tokens: 0.02 + 0.001 * tokens)) == {
            "unknown": k
        }


def test_the_fallback_trusts_lower_bounds_only() -> None:
    """What runs unattended is planned from the lower bound of the mix."""
    segments = (belief("unknown", 1.0, (0.9,) * 4, low=(0.01,) * 4),)
    plan, _ = Policy().plan(one_cell(segments, 4, lambda tokens: 0.02 + 0.001 * tokens), {}, 0.5)
    assert plan.proposal_length["unknown"] == ((4,),)
    assert plan.fallback == (0,)


def test_prefill_has_its_own_table() -> None:
    """In a step that is busy with prefill anyway, draft tokens cost what they cost there."""
    view = example_view(acceptance=0.8, weight=500.0, verify_s=lambda n: 0.05 + 0.01 * max(n - 64, 0))
    plan, _ = Policy().plan(view, {}, 0.5)
    for segment, table in plan.prefill_proposal_length.items():
        assert table[-1][0] < plan.proposal_length[segment][0][0]
    without, _ = Policy().plan(msgspec.structs.replace(view, prefill_tokens=0.0), {}, 0.5)
    assert without.prefill_proposal_length == {}


def test_it_explores_more_while_something_is_unknown() -> None:
    """A live segment without evidence raises the share of probes; one that is not live does not."""
    known, unknown = belief("unknown", 1.0, (0.5,) * 4), belief("new", 1.0, (0.5,) * 4, weight=0.0)
    for share, epsilon in ((0.5, 0.2), (0.0, 0.02)):
        segments = (known, msgspec.structs.replace(unknown, share=share))
        plan, _ = Policy().plan(one_cell(segments, 4, lambda tokens: 0.02), {}, 0.5)
        assert plan.explore is not None
        assert (plan.explore.epsilon, plan.explore.k_set) == (epsilon, (4,))


def test_a_probe_is_affordable() -> None:
    """The longest K is tried where drafting is cheap, a short one where tokens are what costs."""
    segments = (belief("unknown", 0.5, (0.5,) * 8), belief("a", 0.5, (0.3,) * 8))
    for slope, longest in ((0.0001, True), (0.1, False)):
        view = one_cell(segments, 16, lambda tokens, slope=slope: 0.02 + slope * tokens)
        plan, _ = Policy().plan(view, {}, 0.5)
        assert plan.explore is not None
        (k,) = plan.explore.k_set
        best = chosen(EXACT, view)
        seconds = view.cost.verify_at(16.0 * (1 + sum(0.5 * n for n in best.values())), 0.0)
        probe = view.cost.verify_at(16.0 * (1 + 0.5 * k + 0.5 * best["unknown"]), 0.0)
        assert (k == 8) == longest
        assert probe / seconds < 1.7
