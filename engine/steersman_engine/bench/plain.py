"""`steersman bench engine`: what K = 0 costs beside an engine without a drafter, and what steps cost."""

import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from msgspec import to_builtins

from steersman_engine.bench.driven import paired
from steersman_engine.bench.hook import Difference, difference
from steersman_engine.bench.prompts import PROMPTS
from steersman_engine.decode.attention import Chunk
from steersman_engine.decode.engine import Engine
from steersman_engine.decode.model import TargetModel, load_target
from steersman_engine.decode.request import Sampling
from steersman_engine.decode.slots import SlotCache
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.steering import Launch
from steersman_policies.machine import machine, version

MARK_FRACTION = 0.02
BLOCK_STEPS = 3
CONTEXT_TOKENS = 200
REPEATS = 7


def run(
    *,
    model: str | None = None,
    batches: Sequence[int] = (1, 8),
    groups: int = 20,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """One JSON-like object; `passed` where K = 0 costs at most 2 % more at every batch size."""
    target, tokenizer = load_target(model)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    extra = {}
    for batch in batches:
        progress(f"K=0 against no drafter, batch {batch}")
        extra[str(batch)] = k0_extra(target, list(islice(cycle(prompts), batch)), groups)
    progress("step times")
    missed = [f"batch {b}: {d.fraction}" for b, d in extra.items() if not d.fraction <= MARK_FRACTION]
    return {
        "machine": machine(),
        "version": version(),
        "model": target.name,
        "k0_extra_fraction_by_batch": {batch: to_builtins(d) for batch, d in extra.items()},
        "step_ms_by_batch_and_tokens": step_table(target),
        "context_tokens": CONTEXT_TOKENS,
        "marks": {"k0_extra_fraction": MARK_FRACTION},
        "passed": not missed,
        "missed": missed,
    }


def k0_extra(target: TargetModel, prompts: Sequence[list[int]], groups: int) -> Difference:
    """Relative extra duration of a step at K = 0 with a drafter, paired in ABBA blocks."""
    steps = 2 * groups * BLOCK_STEPS
    engines = {
        False: _engine(target, prompts, None, steps),
        True: _engine(target, prompts, PromptLookup(), steps),
    }
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for with_drafter in paired(4 * groups):
        started_s = perf_counter()
        for _ in range(BLOCK_STEPS):
            engines[with_drafter].step()
        seconds[with_drafter].append((perf_counter() - started_s) / BLOCK_STEPS)
    return difference(seconds[False], seconds[True])


def step_table(target: TargetModel, most: int = 16) -> dict[str, dict[str, float]]:
    """Median milliseconds of a forward by batch and by tokens per request."""
    slots = SlotCache(most, CONTEXT_TOKENS + 16)
    for _ in range(most):
        chunk = Chunk(slots.append(), [0] * CONTEXT_TOKENS, False)
        target.logits(slots, [chunk], [CONTEXT_TOKENS - 1])
    return {
        str(batch): {str(tokens): _forward_ms(target, slots, batch, tokens) for tokens in (1, 2, 5, 9)}
        for batch in (1, 4, most)
    }


def _forward_ms(target: TargetModel, slots: SlotCache, batch: int, tokens: int) -> float:
    chunks = [Chunk(slot, [0] * tokens, True) for slot in range(batch)]
    took_ms = []
    for _ in range(REPEATS):
        started_s = perf_counter()
        target.logits(slots, chunks, range(batch * tokens))
        took_ms.append((perf_counter() - started_s) * 1e3)
        for slot in range(batch):
            slots.truncate(slot, CONTEXT_TOKENS)
    return round(statistics.median(took_ms), 1)


def _engine(
    target: TargetModel, prompts: Sequence[list[int]], drafter: PromptLookup | None, steps: int
) -> Engine:
    """An engine past its prefill, with `steps` decode steps in every request."""
    longest = max(map(len, prompts))
    engine = Engine(
        target,
        steering=Launch(0),
        drafter=drafter,
        clock=perf_counter,
        max_batch=len(prompts),
        max_len=longest + steps + 16,
        prefill_tokens=longest * len(prompts),
    )
    for prompt in prompts:
        engine.submit(
            prompt,
            Sampling(max_tokens=steps + 8, ignore_eos=True),
            on_tokens=lambda *_: None,
            segment="bench",
        )
    for _ in range(4):  # prefill, and the first steps of new shapes
        engine.step()
    return engine
