"""A Llama of two small layers with random weights and the real tokenizer: everything is real but the intelligence.

Owns a tokenizer of bytes, too.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZE = 259
START, END = 1, 2  # of a message


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


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of bytes with ChatML's template: for models whose vocabulary is to take no room."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet]
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=TEMPLATE,
    )
