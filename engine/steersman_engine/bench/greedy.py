"""Greedy output with drafting against greedy output without: token by token the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from steersman_engine.decode.attention import Chunk
from steersman_engine.decode.engine import Engine
from steersman_engine.decode.model import TargetModel
from steersman_engine.decode.request import Request, Sampling
from steersman_engine.decode.slots import SlotCache
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.steering import Launch, Steering
from steersman_policies.executor import Decision, Load, mix

K_MAX = 8
TIE_GAP = 1e-3
"""Where both tokens are this close to the best logit, rounding decides, and either is right."""

RANDOM_RUNS = 2


class RandomK(Launch):
    """Another K for every request in every step. Needs a segment per request."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def decide(self, load: Load) -> Decision:
        """K by hash of seed, step and segment's place."""
        lengths = {
            segment: mix(self.seed, load.step, place) % (K_MAX + 1)
            for place, segment in enumerate(load.decode_requests)
        }
        return Decision(lengths, 0, "random", False)


@dataclass(frozen=True, slots=True)
class GreedyRun:
    """One pass over all prompts against the pass at K=0."""

    name: str
    divergences: int
    ties: int
    drafted: int
    accepted: int
    steps: int


def check_greedy(
    target: TargetModel,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    seed: int,
    progress: Callable[[str], None],
) -> list[GreedyRun]:
    """A run for each K from 1 to 8, and some in which K is random per request and step."""
    plain = [request.output for request in generate(target, prompts, max_tokens, Launch(0))]
    steerings: list[tuple[str, Steering]] = [(f"K={k}", Launch(k)) for k in range(1, K_MAX + 1)]
    steerings += [(f"random {number}", RandomK(seed + number)) for number in range(RANDOM_RUNS)]
    runs = []
    for name, steering in steerings:
        requests = generate(target, prompts, max_tokens, steering)
        run = compare(name, target, requests, plain)
        progress(f"greedy {name}: {run.divergences} divergences, {run.accepted} of {run.drafted} accepted")
        runs.append(run)
    return runs


def generate(
    target: TargetModel, prompts: Sequence[list[int]], max_tokens: int, steering: Steering
) -> list[Request]:
    """Finished greedy requests, one per prompt, decoded together."""
    longest = max(map(len, prompts))
    engine = Engine(
        target,
        steering=steering,
        # Single-token matches: more drafts, and most of them wrong.
        drafter=PromptLookup(max_ngram=3, min_ngram=1),
        clock=perf_counter,
        max_batch=len(prompts),
        # Room for a cache that is never rolled back: then the fault shows in the tokens.
        max_len=longest + (K_MAX + 1) * max_tokens,
        k_max=K_MAX,
    )
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    requests = [
        engine.submit(prompt, sampling, on_tokens=lambda *_: None, segment=f"prompt-{number}")
        for number, prompt in enumerate(prompts)
    ]
    while engine.busy:
        engine.step()
    return requests


def compare(
    name: str, target: TargetModel, requests: Sequence[Request], plain: Sequence[list[int]]
) -> GreedyRun:
    """Where the outputs of `requests` leave those at K=0, and whether rounding may have done it."""
    divergences = ties = 0
    for request, expected in zip(requests, plain, strict=True):
        if request.output == expected:
            continue
        pairs = list(zip(request.output, expected, strict=False))
        same = next((at for at, (got, want) in enumerate(pairs) if got != want), len(pairs))
        prefix = request.prompt + expected[:same]
        # What follows a tie may differ in everything: each text is the target's own.
        if same < len(pairs) and _gap(target, prefix, pairs[same]) <= TIE_GAP:
            ties += 1
        else:
            divergences += 1
    return GreedyRun(
        name=name,
        divergences=divergences,
        ties=ties,
        drafted=sum(request.drafted for request in requests),
        accepted=sum(request.accepted for request in requests),
        steps=max(request.steps for request in requests),
    )


def _gap(target: TargetModel, tokens: list[int], candidates: tuple[int, int]) -> float:
    """How far behind the best next token the worse of two candidates is, in logits."""
    slots = SlotCache(max_batch=1, max_len=len(tokens))
    chunk = Chunk(slots.append(), tokens, False)
    logits = target.logits(slots, [chunk], [len(tokens) - 1])[0].float()
    return float(logits.max() - logits[list(candidates)].min())
