"""The engine's rejection rule in plain numbers, for parts of the house that do not know torch.

Found through the entry-point group ``steersman.rules``: `steersman validate` holds it against theory.
"""

from collections.abc import Sequence

import torch

from steersman_engine.decode.sampling import rejection_sample


def outcomes(
    target_probs: Sequence[float],
    draft_probs: Sequence[float],
    drafts: Sequence[int],
    to_accept: Sequence[float],
    to_draw: Sequence[float],
) -> list[tuple[int, int]]:
    """For each draft of one token, drawn from `draft_probs`: whether it is accepted, and the token behind it.

    After an acceptance the token is the bonus token, from the same `target_probs`. The uniform numbers of
    [0, 1) decide about acceptance and token.

    >>> outcomes([0.5, 0.5], [1.0, 0.0], [0, 0], [0.4, 0.6], [0.1, 0.1])
    [(1, 0), (0, 1)]
    """
    rows = len(drafts)
    target = torch.tensor([target_probs], dtype=torch.float64).expand(rows, 2, -1).contiguous()
    draft = torch.tensor([draft_probs], dtype=torch.float64).expand(rows, 1, -1).contiguous()
    uniforms = torch.tensor([to_accept, to_draw], dtype=torch.float64).T.contiguous()
    tokens = torch.tensor(drafts).unsqueeze(1)
    accepted, token = rejection_sample(target, tokens, torch.ones(rows, dtype=torch.long), uniforms, draft)
    return list(zip(accepted.tolist(), token.tolist(), strict=True))
