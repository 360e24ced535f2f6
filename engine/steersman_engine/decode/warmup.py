"""First steps on a cold machine are slow ones; they are taken before anybody waits or learns."""

from steersman_engine.decode.attention import Chunk
from steersman_engine.decode.engine import Engine


def warm_up(engine: Engine) -> None:
    """Run a few forwards of the shapes to come. Nothing is reported, and no slot stays in use."""
    slots, target = engine.slots, engine.target
    width = engine.drafting.k_max + 1
    prompt = [0] * max(1, min(engine.prefill_tokens, 64, engine.max_len - width))
    for _ in range(slots.max_batch):
        slots.append()
    target.logits(slots, [Chunk(0, prompt, False)], [len(prompt) - 1])
    for batch in sorted({1, min(4, slots.max_batch), slots.max_batch}):
        for tokens in sorted({1, width}):
            chunks = [Chunk(slot, [0] * tokens, True) for slot in range(batch)]
            target.logits(slots, chunks, range(batch * tokens))
            for slot in range(batch):
                slots.truncate(slot, slots.lengths[slot] - tokens)
    slots.clear()
