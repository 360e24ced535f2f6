"""From the logits of a step to the tokens that each request gets."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steersman_engine.decode import sampling
from steersman_engine.decode.request import Request


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verifying one request brought."""

    accepted: int
    """Drafts kept."""
    tokens: list[int]
    """The accepted drafts and the bonus token."""


@torch.inference_mode()
def judge(logits: Tensor, requests: Sequence[Request]) -> list[Verdict]:
    """A verdict per request; `logits` (sum of drafts + 1, vocab) in the order of the requests."""
    ends, total = [], 0
    for request in requests:
        total += len(request.drafts) + 1
        ends.append(total)
    verdicts: list[Verdict | None] = [None] * len(requests)
    sampled = [index for index, request in enumerate(requests) if not request.sampling.greedy]
    if len(sampled) < len(requests):
        choices: list[int] = logits.argmax(dim=-1).tolist()
        for index, request in enumerate(requests):
            if request.sampling.greedy:
                start = ends[index] - len(request.drafts) - 1
                verdicts[index] = _greedy(choices[start : ends[index]], request.drafts)
    if sampled:
        starts = [ends[index] - len(requests[index].drafts) - 1 for index in sampled]
        chosen = [requests[index] for index in sampled]
        for index, verdict in zip(sampled, _sampled(logits, chosen, starts), strict=True):
            verdicts[index] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def _greedy(choices: list[int], drafts: list[int]) -> Verdict:
    accepted = sampling.greedy_accepted(choices, drafts)
    return Verdict(accepted, [*drafts[:accepted], choices[accepted]])


def _sampled(logits: Tensor, requests: Sequence[Request], starts: Sequence[int]) -> list[Verdict]:
    """Verdicts by rejection sampling; the rows are padded to the longest proposal."""
    device, vocab = logits.device, logits.shape[1]
    longest = max(len(request.drafts) for request in requests)
    take, drafts, uniforms = [], [], []
    for request, start in zip(requests, starts, strict=True):
        count = len(request.drafts)
        padding = longest - count
        take += [*range(start, start + count + 1), *[start] * padding]
        drafts.append([*request.drafts, *[0] * padding])
        drawn = request.uniforms(count + 1)
        # The last one draws the token; padding in between is never looked at.
        uniforms.append([*drawn[:-1], *[0.0] * padding, drawn[-1]])
    width = longest + 1
    temperatures = torch.tensor([r.sampling.temperature for r in requests], device=device)
    top_ps = torch.tensor([r.sampling.top_p for r in requests], device=device)
    target_probs = sampling.target_probs_of(
        logits[torch.tensor(take, device=device)],
        temperatures.repeat_interleave(width),
        top_ps.repeat_interleave(width),
    ).view(len(requests), width, vocab)
    accepted, last = sampling.rejection_sample(
        target_probs,
        torch.tensor(drafts, dtype=torch.long, device=device).view(len(requests), longest),
        torch.tensor([len(r.drafts) for r in requests], device=device),
        torch.tensor(uniforms, dtype=torch.float64, device=device),
        _draft_probs(requests, longest, vocab, device),
    )
    return [
        Verdict(kept, [*request.drafts[:kept], token])
        for request, kept, token in zip(requests, accepted.tolist(), last.tolist(), strict=True)
    ]


def _draft_probs(
    requests: Sequence[Request], longest: int, vocab: int, device: torch.device
) -> Tensor | None:
    """(requests, longest, vocab), or None where every draft of every request was certain."""
    if all(request.draft_probs is None for request in requests):
        return None
    out = torch.zeros(len(requests), longest, vocab, device=device)
    for row, request in zip(out, requests, strict=True):
        count = len(request.drafts)
        if request.draft_probs is not None:
            row[:count] = request.draft_probs[:count]
        elif count:
            row[torch.arange(count), torch.tensor(request.drafts)] = 1.0
    return out
