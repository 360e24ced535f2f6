"""The target: any Hugging Face causal LM, fed with packed rows of tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steersman_engine.decode.attention import NAME, Chunk, Packing, attention_forward
from steersman_engine.decode.bundled import bundled_model
from steersman_engine.decode.slots import SlotCache

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest relative difference to the model's own attention that `prove` accepts."""


class TargetModel:
    """A causal LM whose attention reads and writes a `SlotCache`."""

    def __init__(self, model: Any, name: str) -> None:
        """Take over `model` (in place). Raises ValueError for one that cannot be served exactly."""
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, attention_forward)
        self.model = model.eval()
        self.name = name
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self.max_positions: int = getattr(model.config, "max_position_embeddings", None) or 1 << 20
        self.window: int | None = _window(model.config)
        _check_kind(model, name)
        plain = model.config._attn_implementation
        model.set_attn_implementation(plain if plain in ("eager", "sdpa") else "eager")
        sample = [(7 * n + 3) % self.vocab_size for n in range(12)]
        expected = [self._plain(sample), self._plain(sample[4:])]
        model.set_attn_implementation(NAME)
        self._prove(sample, expected)

    @torch.inference_mode()
    def logits(self, slots: SlotCache, chunks: Sequence[Chunk], keep: Sequence[int]) -> Tensor:
        """Logits (len(keep), vocab) behind the packed tokens with numbers `keep`.

        The keys and values of all chunks are in their slots afterwards, and counted.
        """
        packing = Packing(slots, chunks, self.device)
        flat = [token for chunk in chunks for token in chunk.tokens]
        output = self.model(
            input_ids=torch.tensor([flat], device=self.device),
            position_ids=packing.positions.unsqueeze(0),
            logits_to_keep=torch.tensor(keep, device=self.device),
            use_cache=False,
            packing=packing,
        )
        for chunk in chunks:
            slots.extend(chunk.slot, len(chunk.tokens))
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _plain(self, tokens: Sequence[int]) -> Tensor:
        """Logits (tokens, vocab) by the model's own attention."""
        logits: Tensor = self.model(torch.tensor([tokens], device=self.device), use_cache=False).logits[0]
        return logits

    def _prove(self, sample: list[int], expected: list[Tensor]) -> None:
        """Check on two requests, in ragged pieces, that packed logits are the model's own."""
        slots = SlotCache(max_batch=2, max_len=len(sample))
        first, second = slots.append(), slots.append()
        try:
            early = self.logits(
                slots, [Chunk(first, sample[:5], False), Chunk(second, sample[4:6], False)], [4]
            )
            late = self.logits(
                slots, [Chunk(first, sample[5:8], True), Chunk(second, sample[6:], True)], range(9)
            )
            rest = self.logits(slots, [Chunk(first, sample[8:], True)], range(4))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"model {self.name}: its attention cannot be served exactly: {error}") from error
        packed = torch.cat([early, late[:3], rest, late[3:]])
        plain = torch.cat([expected[0][4:], expected[1][2:]])
        off = float((packed - plain).abs().max() / plain.abs().max().clamp(min=1e-9))
        if not off <= TOLERANCE.get(self.dtype, 1e-3):
            raise ValueError(
                f"model {self.name}: its attention cannot be served exactly: "
                f"packed logits differ from its own by {off:.1%}"
            )


def load_target(model: str | None, device: str | None = None) -> tuple[TargetModel, Any]:
    """A target and its tokenizer, from a folder, a hub id, or (None) the bundled model.

    fp32 on CPU, bf16 on CUDA. Raises FileNotFoundError or ValueError with one clear line.
    """
    source = _source(model)
    tokenizer = load_tokenizer(source)
    loaded = load_causal_lm(source, device)
    return TargetModel(loaded, Path(source).name if model is None else source), tokenizer


def load_tokenizer(model: str | None) -> Any:
    """The tokenizer of a folder, a hub id, or (None) the bundled model. Raises like `load_target`."""
    from transformers import AutoTokenizer

    source = _source(model)
    with _told_in_one_line(source, "no tokenizer"):
        return AutoTokenizer.from_pretrained(source)


def load_causal_lm(model: str | None, device: str | None = None) -> Any:
    """The bare transformers model. Raises like `load_target`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=where)
    except (RuntimeError, AssertionError) as error:  # torch has no type of its own for it
        raise ValueError(
            f"device: {where!r}: {str(error).splitlines()[0][:200]}; allowed are cpu and cuda[:N]"
        ) from None
    dtype = torch.bfloat16 if where.startswith("cuda") else torch.float32
    source = _source(model)
    with _told_in_one_line(source, "not a causal LM"):
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype).to(where)


def _source(model: str | None) -> str:
    source = str(bundled_model()) if model is None else model
    _check_place(source)
    return source


@contextmanager
def _told_in_one_line(source: str, what: str) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"model {source}: {what} that transformers can load: {reason}") from error


def _check_place(source: str) -> None:
    """A path that is meant as a folder must be one; what looks like ``owner/name`` is left to the hub."""
    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"model: {source} holds no config.json")
        return
    like_path = source.startswith((".", "/", "~")) or source.count("/") != 1
    if like_path:
        raise FileNotFoundError(f"model: no folder {source}; give a local folder or a hub id (owner/name)")


def _check_kind(model: Any, name: str) -> None:
    config = model.config
    reason = None
    if getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder-decoder"
    elif getattr(model, "_is_stateful", False) or _other_layers(config):
        reason = "it has recurrent or hybrid layers, whose state cannot be rolled back"
    elif not getattr(model, "_supports_attention_backend", False):
        reason = "its attention cannot be replaced (no transformers attention interface)"
    if reason is not None:
        raise ValueError(f"model {name}: cannot be served: {reason}")


def _other_layers(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ()
    return any(kind not in ("full_attention", "sliding_attention") for kind in kinds)


def _window(config: Any) -> int | None:
    """Tokens an attention window reaches back, or None where nothing is cut off."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window
