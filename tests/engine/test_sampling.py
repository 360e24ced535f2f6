import pytest
import torch

from steersman_engine.bench.chisquare import goodness_p, two_sample_p
from steersman_engine.bench.sampled import position_p
from steersman_engine.decode import sampling

ROWS = 60_000


def uniforms(columns: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(ROWS, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dice(rows: int, seed: int, vocab: int = 6) -> torch.Tensor:
    return torch.softmax(torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)), dim=-1)


@pytest.mark.parametrize(
    ("choices", "drafts", "accepted"),
    [([1, 2, 3], [1, 2], 2), ([1, 2, 3], [1, 9], 1), ([1, 2, 3], [9, 2], 0), ([1], [], 0)],
)
def test_greedy_keeps_the_leading_agreement(choices: list[int], drafts: list[int], accepted: int) -> None:
    """Drafts behind the first wrong one are lost, right or not."""
    assert sampling.greedy_accepted(choices, drafts) == accepted


@pytest.mark.parametrize("certain", [True, False])
def test_rejection_sampling_follows_the_target(certain: bool) -> None:
    """At every position, tokens are distributed as the target says, whatever the drafter says."""
    target_probs, draft_probs = dice(4, 1), dice(3, 2)
    drawn = uniforms(3, seed=3)
    drafts = torch.stack(
        [sampling.inverse_cdf(draft_probs[j].expand(ROWS, -1), drawn[:, j]) for j in range(3)], dim=1
    )
    lengths = torch.arange(ROWS) % 4
    claimed = None if certain else draft_probs.expand(ROWS, -1, -1)
    p_values = position_p(target_probs, drafts, lengths, uniforms(4), claimed)
    assert min(p_values) > 1e-3


def test_a_wrong_residual_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: drawing anew from the target after a rejection is wrong."""
    monkeypatch.setattr(sampling, "residual", lambda target_probs, _: target_probs)
    drafts = torch.zeros(ROWS, 1, dtype=torch.long)
    p_values = position_p(dice(2, 1), drafts, torch.ones(ROWS), uniforms(2), None)
    assert p_values[0] < 1e-6


def test_a_likely_draft_is_accepted_as_often_as_the_target_takes_it() -> None:
    """Acceptance of a certain drafter is the target's probability of its token."""
    target_probs = torch.tensor([[0.8, 0.2], [0.5, 0.5]])
    drafts = torch.zeros(ROWS, 1, dtype=torch.long)
    accepted, _ = sampling.rejection_sample(
        target_probs.expand(ROWS, -1, -1), drafts, torch.ones(ROWS), uniforms(2)
    )
    assert float(accepted.double().mean()) == pytest.approx(0.8, abs=0.01)


def test_a_drafter_like_the_target_is_never_rejected() -> None:
    """Equal distributions: everything is accepted."""
    probs = dice(1, 4)
    drafts = sampling.inverse_cdf(probs.expand(ROWS, -1), uniforms(1, seed=5)[:, 0]).unsqueeze(1)
    accepted, _ = sampling.rejection_sample(
        probs.expand(ROWS, 2, -1), drafts, torch.ones(ROWS), uniforms(2), probs.expand(ROWS, 1, -1)
    )
    assert bool((accepted == 1).all())


def test_without_drafts_only_the_target_speaks() -> None:
    """No proposal: one token from the first distribution."""
    probs = dice(1, 6)
    empty = torch.zeros(ROWS, 0, dtype=torch.long)
    accepted, last = sampling.rejection_sample(
        probs.expand(ROWS, 1, -1), empty, torch.zeros(ROWS), uniforms(1)
    )
    assert not accepted.any()
    assert goodness_p(torch.bincount(last, minlength=6), probs[0]) > 1e-3


def test_nucleus_keeps_the_smallest_set_that_holds_top_p() -> None:
    """The token that crosses the limit is in, the next one is not, and one is always left."""
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.97, 0.01, 0.01, 0.01]])
    kept = sampling.nucleus(probs, torch.tensor([0.6, 0.05]))
    assert (kept > 0).tolist() == [[False, True, True, False], [True, False, False, False]]
    assert torch.allclose(kept.sum(dim=-1), torch.ones(2))


def test_nucleus_looks_further_where_the_first_candidates_do_not_suffice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shortcut never changes the result."""
    probs = dice(5, 7, vocab=64)
    full = sampling.nucleus(probs, torch.full((5,), 0.9))
    monkeypatch.setattr(sampling, "NUCLEUS_CANDIDATES", 3)
    assert torch.allclose(sampling.nucleus(probs, torch.full((5,), 0.9)), full)


def test_temperature_sharpens_each_row_by_its_own() -> None:
    """Rows do not share their settings."""
    logits = torch.tensor([[1.0, 0.0]]).expand(2, -1)
    probs = sampling.target_probs_of(logits, torch.tensor([1.0, 0.1]), torch.ones(2))
    assert probs[:, 0].tolist() == pytest.approx([0.7311, 0.99995], abs=1e-4)


def test_inverse_cdf_never_gives_an_impossible_token() -> None:
    """Not even for numbers at the very end."""
    probs = torch.tensor([[0.0, 1.0, 0.0]]).expand(3, -1)
    drawn = torch.tensor([0.0, 0.5, 1.0 - 1e-16], dtype=torch.float64)
    assert sampling.inverse_cdf(probs, drawn).tolist() == [1, 1, 1]


def test_chi_square_tells_samples_apart() -> None:
    """Equal distributions pass, a total variation of 0.02 does not."""
    probs = dice(1, 8)[0]
    shifted = probs.clone()
    shifted[0] += 0.02
    shifted[1:] *= (1 - shifted[0]) / shifted[1:].sum()
    samples = [
        sampling.inverse_cdf(p.expand(ROWS, -1), uniforms(1, seed)[:, 0])
        for seed, p in ((1, probs), (2, probs), (3, shifted))
    ]
    first, second, third = (torch.bincount(s, minlength=6) for s in samples)
    assert two_sample_p(first, second) > 1e-3
    assert goodness_p(first, probs) > 1e-3
    assert two_sample_p(first, third) < 1e-6
    assert goodness_p(third, probs) < 1e-6
