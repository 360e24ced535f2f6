"""A causal LM as a separate draft model at every position of written text.

A greedy draft goes on as the model goes on after the text and the draft so far. As long as the draft is
right these are the real text, so its next token is what the model says there anyway: one forward over the
text tells every draft, at any K, up to the first token that is wrong, and what is behind that is never
accepted.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from steersman_engine.trace.method import ByPosition

CHUNK_TOKENS = 512
"""Tokens per forward: logits over a large vocabulary are what needs memory."""


class DraftModelMethod:
    """Any Hugging Face causal LM, greedy. `drafter_version` tells types and sizes apart, not weights."""

    name = "draft_model"

    def __init__(self, model: Any, name: str) -> None:
        self.model = model.eval()
        self.drafter = name
        self.drafter_version = f"{model.config.model_type}:{model.num_parameters()}"
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        # Newer versions of transformers call it so.
        takes = inspect.signature(model.forward).parameters
        self._cache_option = "cache" if "cache" in takes else "past_key_values"
        self.max_positions: int = getattr(model.config, "max_position_embeddings", 0) or 1 << 30

    def by_position(self, prompt: Sequence[int], output: Sequence[int], k: int) -> ByPosition:
        """A draft is always full."""
        choices = self.choices(prompt, output)
        accepted, run = [0] * len(output), 0
        for at in range(len(output) - 1, -1, -1):
            run = run + 1 if choices[at] == output[at] else 0
            accepted[at] = min(run, k)
        return [k] * len(output), accepted

    @torch.inference_mode()
    def choices(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """The model's most likely token after the prompt and each beginning of the output."""
        text = [*prompt, *output][:-1]
        if not prompt:
            raise ValueError("prompt_token_ids is empty: the draft model has nothing to go on")
        if max(text) >= self.vocab_size:
            found = f"token id {max(text)}, the draft model {self.drafter} has {self.vocab_size}"
            raise ValueError(f"{found}: it must share the target's tokenizer")
        if len(text) > self.max_positions:
            raise ValueError(
                f"{len(text) + 1} tokens, the draft model {self.drafter} reads {self.max_positions}"
            )
        from transformers import DynamicCache

        chosen: list[int] = []
        options = {self._cache_option: DynamicCache(config=self.model.config), "use_cache": True}
        for start in range(0, len(text), CHUNK_TOKENS):
            piece = torch.tensor([text[start : start + CHUNK_TOKENS]], device=self.model.device)
            keep = max(1, start + piece.shape[1] - max(start, len(prompt) - 1))
            logits = self.model(piece, **options, logits_to_keep=keep).logits[0]
            if start + piece.shape[1] >= len(prompt):
                chosen += logits[-keep:].argmax(dim=-1).tolist()
        return chosen


def load_draft_model(source: str | None, device: str | None) -> DraftModelMethod:
    """From a folder, a hub id, or (None) the bundled model. Raises FileNotFoundError or ValueError."""
    from steersman_engine.decode.model import load_causal_lm

    model = load_causal_lm(source, device)
    return DraftModelMethod(model, "bundled" if source is None else Path(source).name)
