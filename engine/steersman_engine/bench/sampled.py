"""Sampled output with drafting against the target's exact distribution, and against output without.

The model is so small that the probability of every output can be written down.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from steersman_engine.bench.chisquare import goodness_p, two_sample_p
from steersman_engine.bench.greedy import RandomK
from steersman_engine.decode.attention import Chunk
from steersman_engine.decode.engine import Engine
from steersman_engine.decode.model import TargetModel
from steersman_engine.decode.request import Request, Sampling
from steersman_engine.decode.sampling import inverse_cdf, rejection_sample, target_probs_of
from steersman_engine.decode.slots import SlotCache
from steersman_engine.drafters.drafter import Drafter, Proposal
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.steering import Launch, Steering

VOCAB = 6
LENGTH = 4
"""Output tokens per sample: VOCAB ** LENGTH = 1296 possible outputs."""

PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
PLANTED_TV = 0.02
BATCH = 400


class RandomDrafter:
    """Draws each token from a fixed distribution, and says so."""

    name = "random"
    version = "1"
    survives_off = True
    confident = False

    def __init__(self, probs: Tensor, generator: torch.Generator) -> None:
        self.probs = probs  # (vocab)
        self.generator = generator

    def admit(self, request: Request) -> None:
        """Nothing to keep."""

    def release(self, request: Request) -> None:
        """Nothing was kept."""

    def commit(self, request: Request, accepted: int) -> None:
        """Nothing to learn."""

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
        """Independent draws."""
        drawn = torch.multinomial(
            self.probs, sum(limits), replacement=True, generator=self.generator
        ).tolist()
        proposals, start = [], 0
        for limit in limits:
            proposals.append(Proposal(drawn[start : start + limit], self.probs.expand(limit, -1)))
            start += limit
        return proposals


class LyingDrafter(RandomDrafter):
    """Always proposes the same token, but claims to have been less certain by `doubt_fraction`.

    Then that token is accepted with target probability / (1 - doubt): the planted fault.
    """

    name = "lying"

    def __init__(self, token: int, doubt_fraction: float) -> None:
        self.token = token
        self.claimed = torch.full((VOCAB,), doubt_fraction / (VOCAB - 1))
        self.claimed[token] = 1.0 - doubt_fraction

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
        """The token, again and again."""
        return [Proposal([self.token] * limit, self.claimed.expand(limit, -1)) for limit in limits]


def tiny_target(seed: int, vocab: int = VOCAB) -> TargetModel:
    """A random model of two layers; its weights are large, so that its choices are uneven."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            initializer_range=0.25,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        return TargetModel(LlamaForCausalLM(config), "tiny")


def check_sampled(*, samples: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """p-values of every comparison, and whether the planted faults were found."""
    p_values = _function_p(samples * 5, seed)
    target = tiny_target(seed)
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.9)):
        exact = exact_probs(target, LENGTH, temperature, top_p)
        sample = partial(
            sample_counts, target, samples=samples, length=LENGTH, temperature=temperature, top_p=top_p
        )
        plain = sample(Launch(0), None, seed=seed)
        p_values[f"plain, temperature {temperature}, top_p {top_p}"] = goodness_p(plain, exact)
        for number, (steering, drafter) in enumerate(_arms(seed)):
            counts = sample(steering, drafter, seed=seed + (number + 1) * samples)
            name = f"{drafter.name}, temperature {temperature}, top_p {top_p}"
            p_values[name] = goodness_p(counts, exact)
            p_values[f"{name}, two samples"] = two_sample_p(counts, plain)
            progress(f"sampled {name}: p {p_values[name]:.3f}")
    planted = {
        "function": _planted_function_p(samples * 5, seed),
        "engine": planted_engine_p(target, samples, seed),
    }
    progress(f"planted total variation of {PLANTED_TV}: p {planted}")
    return {
        "p_values": p_values,
        # Bonferroni: the smallest of many is small by chance.
        "p_value": min(1.0, min(p_values.values()) * len(p_values)),
        "planted_p_values": planted,
    }


def _arms(seed: int) -> list[tuple[Steering, Drafter]]:
    probs = torch.softmax(torch.linspace(0.0, 1.5, VOCAB), dim=0)
    generator = torch.Generator().manual_seed(seed)
    return [
        (Launch(3), PromptLookup(max_ngram=2, min_ngram=1)),
        (RandomK(seed), RandomDrafter(probs, generator)),
    ]


def sample_counts(
    target: TargetModel,
    steering: Steering,
    drafter: Drafter | None,
    *,
    samples: int,
    length: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> Tensor:
    """How often each output was sampled through the whole engine, (VOCAB ** length)."""
    engine = Engine(
        target,
        steering=steering,
        drafter=drafter,
        clock=perf_counter,
        max_batch=BATCH,
        max_len=len(PROMPT) + length,
        prefill_tokens=BATCH * len(PROMPT),
    )
    requests = [
        engine.submit(
            PROMPT,
            Sampling(max_tokens=length, temperature=temperature, top_p=top_p, seed=seed + number),
            on_tokens=lambda *_: None,
            segment=f"request-{number % 7}",
        )
        for number in range(samples)
    ]
    while engine.busy:
        engine.step()
    outputs = torch.tensor([request.output for request in requests])  # (samples, length)
    places = VOCAB ** torch.arange(length - 1, -1, -1)
    return torch.bincount((outputs * places).sum(dim=1), minlength=VOCAB**length)


@torch.inference_mode()
def exact_probs(target: TargetModel, length: int, temperature: float, top_p: float) -> Tensor:
    """The probability of every output of `length` tokens, (VOCAB ** length)."""
    prefixes: list[list[int]] = [[]]
    probs = torch.ones(1, dtype=torch.float64)
    for _ in range(length):
        slots = SlotCache(len(prefixes), len(PROMPT) + length)
        chunks = [Chunk(slots.append(), PROMPT + prefix, True) for prefix in prefixes]
        size = len(chunks[0].tokens)
        logits = target.logits(slots, chunks, range(size - 1, size * len(chunks), size))
        rows = torch.ones(len(prefixes))
        following = target_probs_of(logits, rows * temperature, rows * top_p).double()
        probs = (probs.unsqueeze(1) * following).flatten()
        prefixes = [[*prefix, token] for prefix in prefixes for token in range(VOCAB)]
    return probs


def planted_engine_p(target: TargetModel, samples: int, seed: int) -> float:
    """The p-value of pairs of tokens whose second one is off by the planted total variation."""
    exact = exact_probs(target, 2, 1.0, 1.0)
    token = int(exact.view(VOCAB, VOCAB).sum(dim=0).argmax())
    # Off by doubt / (1 - doubt) of the token's own probability.
    odds = PLANTED_TV / float(exact.view(VOCAB, VOCAB)[:, token].sum())
    drafter = LyingDrafter(token, odds / (1.0 + odds))
    # Three tokens, since the last one is never drafted; the first two are looked at.
    counts = sample_counts(
        target, Launch(1), drafter, samples=4 * samples, length=3, temperature=1.0, top_p=1.0, seed=seed
    )
    return goodness_p(counts.view(-1, VOCAB).sum(dim=1), exact)


def _function_p(rows: int, seed: int) -> dict[str, float]:
    """p-values of the acceptance rule alone, by kind of drafter and position."""
    generator = torch.Generator().manual_seed(seed)
    target_probs = torch.softmax(torch.randn(4, VOCAB, generator=generator) * 1.5, dim=-1)
    draft_probs = torch.softmax(torch.randn(3, VOCAB, generator=generator), dim=-1)
    drawn = torch.rand(rows, 3, generator=generator, dtype=torch.float64)
    drafts = torch.stack([inverse_cdf(draft_probs[j].expand(rows, -1), drawn[:, j]) for j in range(3)], dim=1)
    lengths = torch.randint(0, 4, (rows,), generator=generator)
    p_values = {}
    for name, claimed in (("certain", None), ("drawn", draft_probs.expand(rows, -1, -1))):
        uniforms = torch.rand(rows, 4, generator=generator, dtype=torch.float64)
        for position, p_value in enumerate(position_p(target_probs, drafts, lengths, uniforms, claimed)):
            p_values[f"rule, {name} drafts, position {position}"] = p_value
    return p_values


def _planted_function_p(rows: int, seed: int) -> float:
    """The p-value of the first position where a draft is accepted too often by the planted variation."""
    generator = torch.Generator().manual_seed(seed)
    target_probs = torch.softmax(torch.randn(4, VOCAB, generator=generator), dim=-1)
    uniforms = torch.rand(rows, 4, generator=generator, dtype=torch.float64)
    uniforms[:, :3] = (uniforms[:, :3] - PLANTED_TV).clamp(min=0.0)
    drafts = torch.zeros(rows, 3, dtype=torch.long)
    return position_p(target_probs, drafts, torch.full((rows,), 3), uniforms, None)[0]


def position_p(
    target_probs: Tensor, drafts: Tensor, lengths: Tensor, uniforms: Tensor, draft_probs: Tensor | None
) -> list[float]:
    """p-value per position of the tokens that came out there, against `target_probs` (K + 1, vocab)."""
    rows, longest = drafts.shape
    spread = target_probs.expand(rows, -1, -1)
    accepted, last = rejection_sample(spread, drafts, lengths, uniforms, draft_probs)
    p_values = []
    for position in range(longest + 1):
        tokens = last[accepted == position]
        if position < longest:
            tokens = torch.cat([tokens, drafts[accepted > position, position]])
        # A position is only reached behind accepted drafts, which says nothing about its own token.
        p_values.append(goodness_p(torch.bincount(tokens, minlength=VOCAB), target_probs[position]))
    return p_values
