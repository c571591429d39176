"""Shapes of published models, as their config.json says them: what decides sizes, without the rest of the files.

Qwen3 4B, 8B and 30B-A3B, and Gemma 4 31B (its text part). `PARAMETERS` are what their makers count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_QWEN: Final[Mapping[str, Any]] = {
    "model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "use_sliding_window": False,
    "sliding_window": None, "torch_dtype": "bfloat16",
}  # fmt: skip
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "4B": {**_QWEN, "hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "8B": {**_QWEN, "hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "30B-A3B": {
        **_QWEN, "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "tie_word_embeddings": False,
    },
    "31B": {
        "model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 4, "attention_k_eq_v": True, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0, "sliding_window": 1024, "final_logit_softcapping": 30.0,
        "vocab_size": 262144, "tie_word_embeddings": True, "max_position_embeddings": 262144, "dtype": "bfloat16",
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    },
}  # fmt: skip
PARAMETERS: Final = {"4B": 4.02e9, "8B": 8.19e9, "30B-A3B": 30.5e9, "31B": 30.7e9}


def write(name: str, folder: Path) -> Path:
    """Its config.json."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(CONFIGS[name]))
    return file
