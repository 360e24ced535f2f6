"""V1: the formulas that everything else stands on, as our own code evaluates them."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points

import numpy as np

from steersman_policies.candidates import Menu
from steersman_policies.executor import Load, table_lookup
from steersman_policies.policy import load
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import SegmentBelief, StepCost, View
from steersman_simulator.acceptance.segments import expected_tokens
from steersman_simulator.validate.check import Asked, Check, Figure
from steersman_simulator.world.chance import generator
from steersman_simulator.world.hello import plain_hello

TOKENS = {
    0.5: {1: 1.5, 2: 1.75, 3: 1.875, 4: 1.9375, 5: 1.9688, 7: 1.9922, 10: 1.9990},
    0.6: {1: 1.6, 2: 1.96, 3: 2.176, 4: 2.3056, 5: 2.3834, 7: 2.4580, 10: 2.4909},
    0.7: {1: 1.7, 2: 2.19, 3: 2.533, 4: 2.7731, 5: 2.9412, 7: 3.1412, 10: 3.2674},
    0.8: {1: 1.8, 2: 2.44, 3: 2.952, 4: 3.3616, 5: 3.6893, 7: 4.1611, 10: 4.5705},
    0.9: {1: 1.9, 2: 2.71, 3: 3.439, 4: 4.0951, 5: 4.6856, 7: 5.6953, 10: 6.8619},
}
"""E[N] by acceptance and K (Leviathan et al. 2023, eq. 1; papers 1.2)."""

BEST = {
    0.01: {0.5: (5, 1.875), 0.6: (7, 2.297), 0.7: (9, 2.972), 0.8: (14, 4.232), 0.9: (24, 7.486)},
    0.02: {0.5: (4, 1.794), 0.6: (6, 2.170), 0.7: (8, 2.758), 0.8: (11, 3.817), 0.9: (19, 6.365)},
    0.05: {0.5: (3, 1.630), 0.6: (4, 1.921), 0.7: (6, 2.353), 0.8: (8, 3.092), 0.9: (13, 4.674)},
    0.10: {0.5: (2, 1.458), 0.6: (3, 1.674), 0.7: (4, 1.981), 0.8: (6, 2.470), 0.9: (10, 3.431)},
    0.20: {0.5: (1, 1.250), 0.6: (2, 1.400), 0.7: (3, 1.583), 0.8: (4, 1.868), 0.9: (7, 2.373)},
    0.40: {0.5: (1, 1.071), 0.6: (1, 1.143), 0.7: (2, 1.217), 0.8: (2, 1.356), 0.9: (4, 1.575)},
}
"""(best K, its speed-up) by draft cost and acceptance (Leviathan et al. 2023, theorem 3.8; papers 1.3)."""

LONGEST = 32
SLOTS = 24
"""More than the table's longest, so that a K cut short is seen."""

TARGET_PROBS, DRAFT_PROBS = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
OVERLAP, RESIDUAL = 0.7, (1.0, 0.0, 0.0)
"""sum min(p, q), and (p - q)+ normalised (papers 1.1)."""

RULES = "steersman.rules"
"""Entry-point group through which the engine, which this part may not import, offers its rejection rule."""

Numbers = Sequence[float]
Rule = Callable[[Numbers, Numbers, Sequence[int], Numbers, Numbers], list[tuple[int, int]]]
STRATA, DRAWS = 300, 20
"""Even numbers to accept by, each with even numbers to draw the next token by: no boundary falls on one."""


def figures(asked: Asked) -> list[Figure]:
    """All of them; exact, so the seed only picks the cases of the allocation."""
    rule = rejection_rule()
    found = [*token_figures(), *optimum_figures(), *allocation_figures(asked)]
    return found if rule is None else [*found, *rejection_figures(rule)]


def token_figures() -> Iterator[Figure]:
    """E[N] as the acceptance truth has it, and as a policy sums it from a belief."""
    for alpha, row in TOKENS.items():
        gains = _belief(alpha).gains()
        for k, tokens in row.items():
            yield Figure(f"E[N] of the truth, {alpha:g}, K = {k}", tokens, expected_tokens(alpha, k), 1e-4)
            yield Figure(f"E[N] of the planner, {alpha:g}, K = {k}", tokens, 1.0 + gains[k], 1e-4)


def optimum_figures() -> Iterator[Figure]:
    """The K that the planner puts into its table, and what it promises, where drafting costs c per token."""
    for c, row in BEST.items():
        for alpha, (k, speedup) in row.items():
            chosen, promised = planned(alpha, c)
            yield Figure(f"best K at acceptance {alpha:g}, c = {c:g}", k, chosen, 0.0)
            yield Figure(f"speed-up there, {alpha:g}, c = {c:g}", speedup, promised, 6e-4)
    # Corollary 3.9: some K helps if and only if acceptance is above c, and then by (1 + alpha) / (1 + c).
    for c in (0.3, 0.5, 0.7):
        yield Figure(f"K just below break-even, c = {c:g}", 0, planned(c - 0.01, c)[0], 0.0)
        chosen, promised = planned(c + 0.01, c)
        yield Figure(f"K just above break-even, c = {c:g}", 1, chosen, 0.0)
        yield Figure(f"speed-up there, c = {c:g}", (1.01 + c) / (1.0 + c), promised, 1e-9)


def allocation_figures(asked: Asked) -> Iterator[Figure]:
    """n draft tokens, wherever the allocator puts them, bring the n largest survivals of all positions.

    Survival falls with position, so a free choice of positions is closed under prefixes by itself.
    """
    chance = generator(asked.seed, 1)
    for case in range(asked.count(20)):
        acceptance = chance.uniform(0.05, 1.0, (4, 6))
        beliefs = [_segment(f"s{i}", row.tolist(), 0.25) for i, row in enumerate(acceptance)]
        menu = Menu(_view(beliefs, draft_s=lambda depth: 0.01 * depth, k_max=6), beliefs, 0.0)
        free = np.sort(np.cumprod(acceptance, axis=1).ravel())[::-1]
        worst = 0.0
        for ladder in menu.ladders[-1:]:
            for tokens, drafted in zip(ladder.tokens, ladder.drafted, strict=True):
                best = 1.0 + 0.25 * float(free[: round(4 * drafted)].sum())
                worst = max(worst, abs(tokens - best))
        yield Figure(f"case {case}: tokens short of a free choice of positions", 0.0, worst, 1e-9)


def rejection_rule() -> Rule | None:
    """The engine's rule; None where no engine is installed."""
    for point in entry_points(group=RULES, name="rejection"):
        rule: Rule = point.load()
        return rule
    return None


def rejection_figures(rule: Rule) -> Iterator[Figure]:
    """Acceptance, residual and output of one draft, over evenly spread uniform numbers: no chance in it."""
    to_accept = ((np.arange(STRATA) + 0.5) / STRATA).repeat(DRAWS).tolist()
    to_draw = ((np.arange(DRAWS) + 0.5) / DRAWS).tolist() * STRATA
    share = 1.0 / len(to_draw)
    output, overlap, rejected = np.zeros(3), 0.0, np.zeros(3)
    for draft, drawn in enumerate(DRAFT_PROBS):
        rows = rule(TARGET_PROBS, DRAFT_PROBS, [draft] * len(to_draw), to_accept, to_draw)
        for accepted, token in rows:
            output[draft if accepted else token] += drawn * share
            overlap += drawn * share * accepted
            rejected[token] += 0.0 if accepted else drawn * share
    yield Figure("share of drafts accepted: sum min(p, q)", OVERLAP, overlap, 1e-4)
    for token in range(3):
        drawn_then = float(rejected[token] / rejected.sum())
        yield Figure(f"residual of token {token}", RESIDUAL[token], drawn_then, 1e-4)
        yield Figure(f"output of token {token}", TARGET_PROBS[token], float(output[token]), 1e-4)


def planned(alpha: float, c: float) -> tuple[int, float]:
    """What the policy `goodput` plans for a batch of one, and the speed-up that it expects of that."""
    belief = _belief(alpha)
    view = _view([belief], draft_s=lambda depth: c * depth, k_max=LONGEST)
    plan, _ = load("goodput", {"tie": 0.0}).plan(view, {}, 0.0)
    lengths, _ = table_lookup(plan, Load(0, {UNKNOWN_SEGMENT: 1}, view.mean_context_tokens, 0, 0))
    k = lengths[UNKNOWN_SEGMENT]
    seconds = [
        view.cost.verify_at(1 + n, 1.0) + view.cost.draft_at(n, 1.0) + view.cost.other_at(1.0) for n in (0, k)
    ]
    return k, (1.0 + belief.gains()[k]) * seconds[0] / seconds[1]


def _belief(alpha: float) -> SegmentBelief:
    return _segment(UNKNOWN_SEGMENT, [alpha] * LONGEST, 1.0)


def _segment(name: str, acceptance: list[float], share: float) -> SegmentBelief:
    known = tuple(acceptance)
    return SegmentBelief(name, share, 1e6, 1.0, known, known, (1.0,) * len(known))


def _view(beliefs: Sequence[SegmentBelief], *, draft_s: Callable[[int], float], k_max: int) -> View:
    """An idle target: its forward takes one second whatever it verifies."""
    cost = StepCost(
        tokens_grid=(1, SLOTS * (k_max + 1)),
        context_grid_tokens=(1,),
        prefill_grid_tokens=(0,),
        verify_s=(((1.0, 1.0),),),
        requests_grid=(1,),
        draft_s=tuple((draft_s(depth),) for depth in range(k_max + 1)),
        other_s=(0.0,),
        relative_error=0.0,
    )
    return View(
        now_s=0.0,
        hello=plain_hello(k_max, SLOTS),
        fingerprint="",
        mode="steer",
        next_plan_id=1,
        seed=0,
        cost=cost,
        segments=tuple(beliefs),
        mean_context_tokens=100.0,
        prefill_tokens=0.0,
        batch_edges=(1,),
        context_edges=(),
        mean_requests=1.0,
    )


CHECK = Check(
    "V1",
    "formulas",
    "E[N] and the best K of 1.2 and 1.3 through truth and planner; prefix closure; rejection rule",
    "exact or 1e-4; speed-ups published to 3 digits: 6e-4",
    figures,
    lambda: "" if rejection_rule() else "no engine is installed, so no rejection rule was checked",
)
