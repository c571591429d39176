"""A Llama of two small layers with random weights and the real tokenizer: everything is real but the intelligence."""

from __future__ import annotations

import shutil
from pathlib import Path

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def make_tiny_model(weights: Path, folder: Path) -> Path:
    """Written to `folder`, with the tokenizer of `weights`."""
    import torch
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    real = AutoConfig.from_pretrained(weights)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=real.vocab_size, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=real.bos_token_id, eos_token_id=real.eos_token_id, pad_token_id=real.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in TOKENIZER:
        if (weights / name).exists():
            shutil.copy(weights / name, folder / name)
    return folder
