"""Which draft tokens are kept, and which token comes next: exact for greedy and for sampled decoding.

Pure functions of probabilities and uniform numbers. Padding: position j of a row is a draft only for
j < num_drafts[row]; what stands behind it is ignored.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

NUCLEUS_CANDIDATES = 1024
"""Top-p looks at this many tokens first: sorting a whole vocabulary costs more than a step."""


def greedy_accepted(choices: Sequence[int], drafts: Sequence[int]) -> int:
    """How many leading drafts equal the target's own choices.

    >>> greedy_accepted([5, 6, 9, 1], [5, 6, 7])
    2
    """
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
        accepted += 1
    return accepted


def target_probs_of(logits: Tensor, temperatures: Tensor, top_ps: Tensor) -> Tensor:
    """Probabilities (rows, vocab) under each row's temperature (> 0) and top-p (0 to 1]."""
    probs = torch.softmax(logits.float() / temperatures.unsqueeze(1), dim=-1)
    cut = top_ps < 1.0
    if bool(cut.any()):
        probs[cut] = nucleus(probs[cut], top_ps[cut])
    return probs


def nucleus(probs: Tensor, top_ps: Tensor) -> Tensor:
    """The smallest set of likeliest tokens that holds `top_ps` of each row, renormalised.

    >>> nucleus(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([0.6])).tolist()
    [[0.625, 0.375, 0.0]]
    """
    vocab = probs.shape[1]
    best, index = torch.topk(probs, min(NUCLEUS_CANDIDATES, vocab), dim=-1)
    if best.shape[1] < vocab and bool((best.sum(dim=-1) < top_ps).any()):
        best, index = torch.sort(probs, dim=-1, descending=True)
    # A token is in while the mass before it is below top-p: the first one always is.
    before = best.cumsum(dim=-1) - best
    best = torch.where(before < top_ps.unsqueeze(1), best, 0.0)
    kept = torch.zeros_like(probs).scatter_(1, index, best)
    return kept / kept.sum(dim=-1, keepdim=True)


def rejection_sample(
    target_probs: Tensor,
    drafts: Tensor,
    num_drafts: Tensor,
    uniforms: Tensor,
    draft_probs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Number of accepted drafts and the token behind them, both (rows): distributed as the target.

    `target_probs` (rows, K + 1, vocab), `drafts` (rows, K), `uniforms` (rows, K + 1) independent in
    [0, 1), `draft_probs` (rows, K, vocab) the distributions that the drafts were drawn from, None
    where each was certain. Leviathan et al. 2023, algorithm 1.
    """
    rows, longest = drafts.shape
    likely = target_probs[:, :longest].gather(2, drafts.unsqueeze(2)).squeeze(2)  # (rows, K)
    if draft_probs is None:
        drawn = torch.ones_like(likely)
    else:
        drawn = draft_probs.gather(2, drafts.unsqueeze(2)).squeeze(2)
    is_draft = torch.arange(longest, device=drafts.device) < num_drafts.unsqueeze(1)
    kept = (uniforms[:, :longest] * drawn < likely) & is_draft
    accepted = kept.long().cumprod(dim=1).sum(dim=1)  # (rows)
    row = torch.arange(rows, device=drafts.device)
    last = target_probs[row, accepted]  # (rows, vocab)
    rejected = accepted < num_drafts
    if bool(rejected.any()):
        at = accepted[rejected]
        if draft_probs is None:
            certain = drafts[rejected, at].unsqueeze(1)
            proposed = torch.zeros_like(last[rejected]).scatter_(1, certain, 1.0)
        else:
            proposed = draft_probs[rejected, at]
        last[rejected] = residual(last[rejected], proposed)
    return accepted, inverse_cdf(last, uniforms[:, longest])


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """What to draw from after a rejection, (rows, vocab): the target's excess over the draft.

    >>> residual(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[1.0, 0.0, 0.0]])).tolist()
    [[0.0, 0.5, 0.5]]
    """
    excess = (target_probs - draft_probs).clamp(min=0.0)
    total = excess.sum(dim=-1, keepdim=True)
    # Rounding may reject a draft although both distributions are equal; then nothing is in excess.
    return torch.where(total > 0.0, excess / total, target_probs)


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The token (rows) whose stretch of the cumulated probabilities holds the uniform number.

    >>> inverse_cdf(torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]), torch.tensor([0.4, 0.5])).tolist()
    [0, 2]
    """
    cumulated = probs.double().cumsum(dim=-1)
    at = uniforms.double().unsqueeze(1) * cumulated[:, -1:]
    index = torch.searchsorted(cumulated, at, right=True).squeeze(1)
    # Rounding may point behind the last token that has any probability.
    last = probs.shape[1] - 1 - (probs.flip(-1) > 0).long().argmax(dim=-1)
    return torch.minimum(index, last)
