"""Which kinds of models, and which of their layers, a server's own lists leave without a LoRA.

Owns those lists, as facts of one release each: read in its source on 2026-11-27, and run where that is possible here
(docs/reference/models.md says which). A kind that is not named has all its layers. Not here: llama.cpp's list
(architectures), who asks (server_layers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trainer.io.run_folder import ServerFormat


class ServerList(NamedTuple):
    """A server's own list. Kinds are config.json's `model_type`; layers are last names, as `q_proj`."""

    release: str  # that was read, or run
    refused: Mapping[str, str]  # kinds without any LoRA, and why: the end of a sentence
    left_out: Mapping[str, frozenset[str]]  # layers of a kind that it has no place for
    names: frozenset[str] | None = None  # the only layers that it knows; None: each linear one
    more_names: Mapping[str, frozenset[str]] = {}  # those that it knows of one kind besides


LATENT: Final = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")  # keys and values through a narrow vector
QWEN3_5: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text")
NO_CLASS: Final = "has a class for it that takes no LoRA"

# vllm/model_executor/models (SupportsLoRA, packed_modules_mapping, registry), vllm/lora/lora_model.py.
VLLM: Final = ServerList(
    "vLLM 0.32.0",
    refused={
        "dots1": "runs that kind no more (its last release that did is 0.22)",
        "gemma3n": NO_CLASS,
        "gemma3n_text": NO_CLASS,
        "stablelm": NO_CLASS,
    },
    # Its map says that gate and up are two matrices there, and so it looks for no other name.
    left_out={"glm4": frozenset({"gate_up_proj"})},
)
# sglang/srt/lora/utils.py (names that are normalised and known), lora_manager.py, models (supported_lora_modules).
SGLANG: Final = ServerList(
    "SGLang 0.5.23",
    refused={"gemma4_text": NO_CLASS},
    left_out=dict.fromkeys(("apertus", "arcee", "nemotron"), frozenset({"up_proj"})),  # taken for half of a pair
    names=frozenset({
        "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj",
    }),
    more_names={
        **dict.fromkeys(LATENT, frozenset({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})),
        **dict.fromkeys(QWEN3_5, frozenset({"in_proj_qkv", "in_proj_z", "out_proj"})),
    },
)  # fmt: skip
# mlx_lm/models and mlx_lm/tuner/utils.py (linear_to_lora_layers, load_adapters).
MLX: Final = ServerList(
    "mlx-lm 0.32.2",
    refused={},
    left_out=dict.fromkeys(LATENT, frozenset({"kv_b_proj"})),  # it has that matrix in two parts
)
LISTS: Final[Mapping[ServerFormat, ServerList]] = {"vllm": VLLM, "sglang": SGLANG, "mlx": MLX}
