"""Tiny models with random weights, one of each kind that people run: what is proved on them holds for the kind.

Owns their dimensions. Each has what makes its kind different: groups of keys, experts, two kinds of attention, layers
that share keys. Their tokenizer is SmolLM2's, which every server knows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

VOCABULARY: Final = 49152
SIZES: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.1,
    "sliding_window": 64, "query_pre_attn_scalar": 16, "block_ff_dim": 96, "conv_L_cache": 3, "num_heads": 4,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1, "moe_num_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    # attention through a narrow vector
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "qk_head_dim": 24,
    # linear attention, and state spaces
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1,
    "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_d_ssm": 128, "shared_intermediate_size": 32,
    # Gemma 3n and 4
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2,
    "altup_num_inputs": 4, "laurel_rank": 8, "global_head_dim": 16, "num_global_key_value_heads": 2,
}  # fmt: skip
# vLLM's attention on a CPU takes heads from 32 on.
WIDE: Final[Mapping[str, Any]] = {
    "hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "query_pre_attn_scalar": 32, "block_ff_dim": 128,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32, "qk_head_dim": 32, "global_head_dim": 32,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "mamba_d_head": 64, "mamba_d_ssm": 256,
}  # fmt: skip
# llama.cpp counts: each fourth layer is full.
_HYBRID: Final = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
_ALL_HEADS: Final = {"num_key_value_heads": 4}  # each has keys of its own
_SECTIONS: Final = {
    "head_dim": 64,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
        "mrope_section": [4, 2, 2],
    },
}  # fmt: skip
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    kind: {}
    for kind in (
        "apertus", "arcee", "cohere", "cohere2", "ernie4_5", "falcon_h1", "gemma",
        "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_oss", "granite", "granitemoe",
        "hunyuan_v1_dense", "llama", "llama4_text", "minimax_m2", "ministral3", "mistral", "mixtral",
        "nemotron", "olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen2_moe", "qwen3",
        "seed_oss", "smollm3", "stablelm", "starcoder2",
    )
} | {
    "gemma3n_text": {
        "num_hidden_layers": 5, "intermediate_size": [96] * 5, "activation_sparsity_pattern": [0.0] * 5,
        # Numbers that llama.cpp has in its code.
        "hidden_size_per_layer_input": 256, "laurel_rank": 64, "num_kv_shared_layers": 0,
    },
    "deepseek_v2": _ALL_HEADS,
    "deepseek_v3": {**_ALL_HEADS, "head_dim": 8},
    "dots1": _ALL_HEADS,
    "glm4_moe_lite": _ALL_HEADS,
    "hunyuan_v1_moe": {},
    "olmoe": _ALL_HEADS,
    "phi": {**_ALL_HEADS, "intermediate_size": 256},
    "qwen3_moe": {"norm_topk_prob": True},
    "ernie4_5_moe": {"intermediate_size": 128, "moe_num_shared_experts": 2},
    # llama.cpp: only the one of 64 layers slides.
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    "gemma4_text": {"num_experts": None, "num_kv_shared_layers": 0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "granitemoeshared": {},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "qwen3_next": _HYBRID,
    "qwen3_5_text": {**_HYBRID, **_SECTIONS},
    "qwen3_5_moe_text": {**_HYBRID, **_SECTIONS},
}  # fmt: skip
# Members of config.json that transformers does not write, and that the models on the hub have: converters read them.
_CONFIG_EXTRAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3_5_text": {"mtp_num_hidden_layers": 1},
    "qwen3_5_moe_text": {"mtp_num_hidden_layers": 1},
    "qwen3_next": {"mtp_num_hidden_layers": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "cohere2": {"rotary_pct": 1.0},
    "hunyuan_v1_moe": {"moe_intermediate_size": [96] * 4, "moe_topk": [2] * 4, "num_shared_expert": [1] * 4},
    "minimax_m2": {"rotary_dim": 8, "scoring_func": "sigmoid"},
    "dots1": {"scoring_func": "sigmoid"},
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "glm4_moe_lite": {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": 1},
    "falcon_h1": {"head_dim": 16},
    "glm4_moe": {"num_nextn_predict_layers": 0},
}
_WIDE_EXTRAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "minimax_m2": {"rotary_dim": 16},
    "falcon_h1": {"head_dim": 32},
    "hunyuan_v1_moe": {"moe_intermediate_size": [128] * 4},
}


def make(
    kind: str,
    folder: Path,
    *,
    tokenizer: Path | None = None,
    seed: int = 0,
    wide: bool = False,
    vocabulary: int = VOCABULARY,
) -> Path:
    """Write a model of this `model_type` to `folder`; with SmolLM2's tokenizer from `tokenizer`. `wide`: with heads
    of 32 and more, but not in one that also sees."""
    if kind in SEEING:
        return make_seeing(kind, folder, tokenizer=tokenizer, vocabulary=vocabulary, seed=seed)
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_of(kind, wide=wide, vocabulary=vocabulary))
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    file = folder / "config.json"
    extras = {**_CONFIG_EXTRAS.get(kind, {}), **(_WIDE_EXTRAS.get(kind, {}) if wide else {})}
    file.write_text(json.dumps({**json.loads(file.read_text()), **extras}))
    _copy_tokenizer(tokenizer, folder)
    return folder


# Kinds that also see or hear, and the kind of their text part.
SEEING: Final[Mapping[str, str]] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "ministral3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
}
# Text parts that transformers does not load by themselves.
_PARTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2]}},
}
_SENSES: Final[Mapping[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
    "num_key_value_heads": 2, "depth": 1, "num_heads": 2, "out_hidden_size": 64, "image_size": 32,
    "global_head_dim": 16,
    "vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64, "pixel_shuffle_ratio": 0.5,
    "output_proj_dims": 64,
}  # fmt: skip


def make_seeing(
    kind: str, folder: Path, *, tokenizer: Path | None = None, vocabulary: int = VOCABULARY, seed: int = 0
) -> Path:
    """Write a whole model that sees or hears, too, as the hub has them: its text part has names of its own there."""
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(seed)
    config = CONFIG_MAPPING[kind]
    parts = {"text_config": config_of(SEEING[kind], vocabulary=vocabulary).to_dict()}
    for name in ("vision_config", "audio_config"):
        if (part := getattr(config(), name, None)) is not None:
            sizes = part.to_dict()
            parts[name] = sizes | {key: value for key, value in _SENSES.items() if key in sizes}
    AutoModelForImageTextToText.from_config(config(**parts)).save_pretrained(folder)
    _copy_tokenizer(tokenizer, folder)
    return folder


def _copy_tokenizer(tokenizer: Path | None, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja") if tokenizer else ():
        assert tokenizer is not None
        shutil.copy(tokenizer / name, folder / name)


def make_unknown(folder: Path) -> Path:
    """Files of a kind of model that rlproxy has no GGUF names for, and nobody loads here."""
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "mamba",
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "hidden_size": 4,
        "vocab_size": 8,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.layers.0.mixer.in_proj.weight": np.zeros((8, 4), np.float32)}, folder / "model.safetensors")
    return folder


def config_of(kind: str, *, wide: bool = False, vocabulary: int = VOCABULARY) -> Any:
    """transformers' config of a tiny model of this `model_type`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]
    defaults = config()
    own = KINDS.get(kind) or _PARTS.get(kind, {})
    sizes = {name: value for name, value in SIZES.items() if _has(defaults, name)} | dict(own)
    sizes |= {name: vocabulary for name, value in sizes.items() if value == VOCABULARY}
    if wide:
        sizes |= {name: value for name, value in WIDE.items() if name in sizes and _is_smaller(sizes[name], value)}
        if kind == "deepseek_v3":  # whose head_dim is that of the part that turns
            sizes["head_dim"] = WIDE["qk_rope_head_dim"]
    types = getattr(defaults, "layer_types", None) if _has(defaults, "layer_types") else None
    if types and len(set(types)) > 1 and "layer_types" not in own:
        # As many as have each kind of layer once: programs know where the kinds are by counting.
        depth = max(4, *(types.index(name) + 1 for name in set(types)))
        sizes |= {"num_hidden_layers": depth, "layer_types": types[:depth]}
    return config(**sizes)


def _is_smaller(size: Any, than: int) -> bool:
    """Tell of a size that is one number for all layers."""
    return isinstance(size, int) and size < than


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # a member that differs by layer
        return True


def linear_layers(model: Any) -> Iterator[str]:
    import torch

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers." in name:
            yield name
