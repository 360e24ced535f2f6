"""The acceptance belief: unbiased under censoring, whatever K was commanded."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from steersman_controller.belief.belief import Belief
from steersman_policies.messages import Fingerprint, Group, Hello, StepReport
from steersman_policies.units import MAX_SEGMENTS
from steersman_policies.view import SegmentBelief

K_MAX = 8

ChooseK = Callable[[random.Random, int], int]
"""(chance, tokens accepted last) -> K."""


class Acceptance:
    """The acceptance belief, fed with one group per step as a controller feeds it."""

    def __init__(self, k_max: int) -> None:
        self.belief = Belief(
            Hello(FINGERPRINT, k_max, tuple(range(k_max + 1)), 0, 4, 16, True, True, False, True)
        )

    def observe(self, segment: str, group: Group, step: int) -> None:
        self.belief.observe(report(step, group))

    def beliefs(self, contexts: tuple[float, ...], segment: str) -> SegmentBelief:
        acceptance = self.belief.acceptance
        row = self.belief.load.rows.get(segment, 0)
        presence = np.zeros((MAX_SEGMENTS, len(contexts)))
        presence[row] = contexts
        found = acceptance.beliefs({segment: row}, np.ones(MAX_SEGMENTS), presence, np.ones(MAX_SEGMENTS))
        return found[0]

    @property
    def alarms(self) -> int:
        self.belief.fold()
        return self.belief.alarms["acceptance"]


FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "ngram", "none", "float32", "cpu", "eager")


def report(step: int, *groups: Group) -> StepReport:
    """A step of 10 ms that verified these groups."""
    requests = sum(one.requests for one in groups)
    return StepReport(
        step=step,
        started_s=0.01 * step,
        draft_s=0.001,
        verify_s=0.008,
        other_s=0.001,
        decode_requests=requests,
        prefill_tokens=0,
        target_tokens=requests + sum(d * n for one in groups for d, _, n in one.outcomes),
        context_tokens=100 * requests,
        drafting_depth=4,
        requests_drafting=requests,
        waiting=0,
        kv_used_fraction=0.1,
        committed_tokens=requests,
        plan_id=0,
        groups=groups,
    )


def draw(alpha: float, k: int, chance: random.Random) -> int:
    """Tokens accepted of `k`."""
    accepted = 0
    while accepted < k and chance.random() < alpha:
        accepted += 1
    return accepted


def group(
    k: int, outcomes: list[tuple[int, int]], segment: str = "code", *, bucket: int = 0, **more: object
) -> Group:
    """What requests verified: (drafted, accepted) of each, (0, 0) where there was no draft."""
    counts = {pair: outcomes.count(pair) for pair in outcomes if pair[0]}
    sparse = tuple((d, a, n) for (d, a), n in counts.items())
    return Group(segment, bucket, len(outcomes), k, sum(counts.values()), sparse, **more)  # type: ignore[arg-type]


def learned(alpha: float, choose: ChooseK, *, steps: int = 4000, seed: int = 1) -> Acceptance:
    """A model after steps of 8 requests."""
    chance, model, last = random.Random(seed), Acceptance(K_MAX), 0
    for step in range(steps):
        k = choose(chance, last)
        outcomes = [(k, draw(alpha, k, chance)) for _ in range(8)]
        last = outcomes[0][1]
        model.observe("code", group(k, outcomes), step)
    return model


def belief(
    model: Acceptance, segment: str = "code", contexts: tuple[float, ...] = (1.0, 0, 0, 0, 0)
) -> SegmentBelief:
    """What is believed of a segment."""
    return model.beliefs(contexts, segment)


CHOICES: dict[str, ChooseK] = {
    "1": lambda chance, last: 1,
    "3": lambda chance, last: 3,
    "5": lambda chance, last: 5,
    "7": lambda chance, last: 7,
    "random": lambda chance, last: chance.randint(0, 8),
    "follows the last outcome": lambda chance, last: min(last + 1, 8),
}


@pytest.mark.parametrize("alpha", [0.5, 0.66, 0.8])
@pytest.mark.parametrize("choice", CHOICES)
def test_the_ratio_trap(alpha: float, choice: str) -> None:
    """Position acceptance is alpha under every way to choose K, while accepted / drafted is far below."""
    model = learned(alpha, CHOICES[choice])
    believed = belief(model)
    # Some 1,600 drafts are remembered; position 3 is reached by alpha^2 of them.
    assert believed.acceptance[0] == pytest.approx(alpha, abs=0.045)
    if choice not in ("1", "follows the last outcome"):
        assert believed.acceptance[2] == pytest.approx(alpha, abs=0.08)
    assert believed.acceptance_low[0] <= believed.acceptance[0]


@pytest.mark.parametrize(
    ("alpha", "k", "ratio"),
    [(0.5, 1, 0.5), (0.5, 7, 0.142), (0.66, 3, 0.461), (0.66, 5, 0.34), (0.8, 3, 0.651), (0.8, 7, 0.452)],
)
def test_the_ratio_is_what_the_trap_says(alpha: float, k: int, ratio: float) -> None:
    """The same drafts give accepted / drafted = (1/K) sum alpha^i, so the trap is really laid."""
    chance = random.Random(1)
    accepted = sum(draw(alpha, k, chance) for _ in range(40_000))
    assert accepted / (40_000 * k) == pytest.approx(ratio, abs=0.01)


def test_positions_of_their_own() -> None:
    """Acceptance that falls by position is recovered, not averaged."""
    truth, chance, model = (0.9, 0.6, 0.3, 0.8), random.Random(1), Acceptance(K_MAX)
    for step in range(4000):
        outcomes = []
        for _ in range(8):
            accepted = 0
            while accepted < 4 and chance.random() < truth[accepted]:
                accepted += 1
            outcomes.append((4, accepted))
        model.observe("code", group(4, outcomes), step)
    assert belief(model).acceptance[:4] == pytest.approx(truth, abs=0.09)


def test_unverified_positions_are_missing_not_zero() -> None:
    """K = 2 throughout leaves positions 3 to 8 near the segment's own acceptance, and uncertain."""
    believed = belief(learned(0.8, lambda chance, last: 2))
    assert believed.acceptance[5] == pytest.approx(0.8, abs=0.05)
    assert believed.acceptance_low[5] < 0.6 < believed.acceptance_low[0]


def test_coverage_leaves_out_requests_that_could_not_be_served() -> None:
    """No match lowers coverage; grammar, length limit and invalid state do not."""
    model, chance = Acceptance(K_MAX), random.Random(1)
    for step in range(1000):
        pairs = [(4, draw(0.7, 4, chance)) for _ in range(3)] + [(0, 0)] * 5
        reasons = {"no_match": 1, "grammar": 2, "length_limit": 1, "invalid_state": 1}
        model.observe("code", group(4, pairs, not_drafted=reasons), step)
    assert belief(model).coverage == pytest.approx(0.75, abs=0.01)


def test_a_drafter_that_falls_short() -> None:
    """Shares of offered positions are measured among requests that were asked for that many."""
    model, chance = Acceptance(K_MAX), random.Random(1)
    for step in range(2000):
        k = chance.choice((2, 8))
        pairs = [(d, draw(0.7, d, chance)) for d in (min(k, chance.choice((2, 4))) for _ in range(8))]
        model.observe("code", group(k, pairs), step)
    share = belief(model).drafted_share
    assert share[:2] == pytest.approx((1.0, 1.0), abs=0.01)
    assert share[2:4] == pytest.approx((0.5, 0.5), abs=0.05)
    assert max(share[4:]) < 0.02


def test_a_cold_start_has_a_lower_bound_of_zero() -> None:
    """Before any evidence nothing says that speculation helps."""
    believed = belief(Acceptance(K_MAX), "unknown")
    assert believed.weight == 0.0
    assert believed.acceptance == (0.5,) * K_MAX
    assert believed.acceptance_low == (0.0,) * K_MAX


def test_a_new_segment_leans_on_its_engine() -> None:
    """A segment without evidence is expected near the engine's mean, with a wide interval."""
    model = learned(0.9, CHOICES["5"])
    believed = belief(model, "new")
    assert believed.weight == 0.0
    assert believed.acceptance[0] == pytest.approx(0.9, abs=0.03)
    assert believed.acceptance_low[0] < 0.65


def test_contexts_count_by_their_presence() -> None:
    """A segment whose acceptance differs by context is believed as it is present now."""
    model, chance = Acceptance(K_MAX), random.Random(1)
    for step in range(3000):
        model.observe("code", group(4, [(4, draw(0.9, 4, chance)) for _ in range(4)]), step)
        model.observe("code", group(4, [(4, draw(0.4, 4, chance)) for _ in range(4)], bucket=3), step)
    short, long = belief(model), belief(model, contexts=(0, 0, 0, 1.0, 0))
    assert short.acceptance[0] == pytest.approx(0.9, abs=0.05)
    assert long.acceptance[0] == pytest.approx(0.4, abs=0.06)
    half = belief(model, contexts=(1.0, 0, 0, 1.0, 0))
    assert half.acceptance[0] == pytest.approx((short.acceptance[0] + long.acceptance[0]) / 2)


def test_a_change_is_followed() -> None:
    """A drop from 0.9 to 0.3 is believed within 30 steps, far sooner than forgetting alone would."""
    model, chance = learned(0.9, CHOICES["5"], steps=1000), random.Random(2)
    for step in range(1000, 1030):
        model.observe("code", group(5, [(5, draw(0.3, 5, chance)) for _ in range(8)]), step)
    assert belief(model).acceptance[0] < 0.42


def test_no_surprise_without_a_change() -> None:
    """Steady acceptance is contradicted less than once in 2,000 steps."""
    for alpha in (0.3, 0.7, 0.95):
        model = learned(alpha, CHOICES["random"], steps=4000)
        assert model.alarms == 0


def test_old_beliefs_become_uncertain() -> None:
    """A segment that is live but never asked loses the weight behind its belief, not the belief."""
    model = learned(0.8, CHOICES["5"], steps=500)
    before = belief(model)
    for step in range(500, 3500):
        model.observe("code", group(0, [(0, 0)] * 8), step)
    after = belief(model)
    assert after.weight < 0.3 * before.weight
    assert after.acceptance[0] == pytest.approx(before.acceptance[0], abs=0.02)


def test_memory_is_bounded() -> None:
    """Ten thousand steps of 8 drafts are remembered as at most 1,600."""
    assert belief(learned(0.8, CHOICES["5"], steps=10_000)).weight < 1601.0


def falling(chance: random.Random, k: int) -> int:
    """A drafter that gets worse at every position when asked for more."""
    return draw(0.9 - 0.06 * k, k, chance)


def test_acceptance_is_told_apart_where_it_depends_on_k() -> None:
    """What is expected of a K is what was seen under that K, within 0.15 tokens; pooled it is far off."""
    chance, model = random.Random(1), Acceptance(K_MAX)
    for step in range(3000):
        k = chance.choice((1, 2, 4, 8))
        model.observe("code", group(k, [(k, falling(chance, k)) for _ in range(8)]), step)
    believed = belief(model)
    assert set(believed.by_k) == {1, 2, 4, 8}
    for k in (1, 2, 4, 8):
        alpha = 0.9 - 0.06 * k
        assert believed.gains()[k] == pytest.approx(sum(alpha**j for j in range(1, k + 1)), abs=0.15)
    pooled = sum(believed.survival()[:8])
    assert pooled > believed.gains()[8] + 0.3


@pytest.mark.parametrize("choice", ["random", "follows the last outcome"])
def test_equal_acceptance_stays_pooled(choice: str) -> None:
    """While acceptance is the same under every K, it is believed from all of them at every moment."""
    chance, model, last = random.Random(3), Acceptance(K_MAX), 0
    for step in range(6000):
        k = CHOICES[choice](chance, last)
        outcomes = [(k, draw(0.7, k, chance)) for _ in range(8)]
        last = outcomes[0][1]
        model.observe("code", group(k, outcomes), step)
        if step % 100 == 99:
            assert belief(model).by_k == {}, step


def test_a_gap_in_drafter_state_is_a_class_of_its_own() -> None:
    """Requests without valid state lower neither coverage nor acceptance, and their share is known."""
    model, chance = Acceptance(K_MAX), random.Random(1)
    for step in range(1000):
        pairs = [(4, draw(0.7, 4, chance)) for _ in range(6)] + [(0, 0)] * 2
        model.observe("code", group(4, pairs, not_drafted={"invalid_state": 2}), step)
    believed = belief(model)
    assert believed.coverage == pytest.approx(1.0, abs=0.01)
    assert believed.invalid_state_share == pytest.approx(0.25, abs=0.01)
    assert believed.acceptance[0] == pytest.approx(0.7, abs=0.04)
