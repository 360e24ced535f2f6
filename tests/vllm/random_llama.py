"""Two small Llamas of random weights, one close to the other, for machines that have no model at hand."""

from pathlib import Path

TARGET, DRAFTER = "target", "drafter"
NOISE = 0.05
"""Of the target's own spread: the drafter is right sometimes."""


def make_pair(tokenizer: Path, folder: Path) -> tuple[Path, Path]:
    """Folders of a target and of a drafter in bfloat16, with the tokenizer of another model's folder."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,  # wide, so that the best token leads by more than bfloat16 rounds away
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    words.save_pretrained(folder / TARGET)
    model.save_pretrained(folder / TARGET)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.add_(torch.randn_like(weights), alpha=NOISE * weights.std().item())
    words.save_pretrained(folder / DRAFTER)
    model.save_pretrained(folder / DRAFTER)
    return folder / TARGET, folder / DRAFTER
