"""How llama.cpp runs each kind of model, as far as a LoRA has to know it.

Owns which kinds (`model_type` of Hugging Face) it runs, on which of their linear layers it wears an adapter, and in
which order of rows. Names come from the table of the gguf package. What that does not know is here, one line
a kind of model; each was compared with llama.cpp's own converter (tests/models). Not here: the files (gguf,
merge_gguf).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import gguf
import numpy as np
from gguf import MODEL_ARCH as Arch
from gguf import MODEL_TENSOR as Tensor
from numpy.typing import NDArray

Array = NDArray[np.float32]

# config.json's `model_type`, and the architecture that llama.cpp runs it as.
ARCHITECTURES: Final[Mapping[str, Arch]] = {
    "apertus": Arch.APERTUS,
    "arcee": Arch.ARCEE,
    "cohere": Arch.COMMAND_R,
    "cohere2": Arch.COHERE2,
    "deepseek_v2": Arch.DEEPSEEK2,
    "deepseek_v3": Arch.DEEPSEEK2,
    "dots1": Arch.DOTS1,
    "ernie4_5": Arch.ERNIE4_5,
    "ernie4_5_moe": Arch.ERNIE4_5_MOE,
    "exaone4": Arch.EXAONE4,
    "falcon_h1": Arch.FALCON_H1,
    "gemma": Arch.GEMMA,
    "gemma2": Arch.GEMMA2,
    "gemma3": Arch.GEMMA3,
    "gemma3_text": Arch.GEMMA3,
    "gemma3n": Arch.GEMMA3N,
    "gemma3n_text": Arch.GEMMA3N,
    "gemma4": Arch.GEMMA4,
    "gemma4_text": Arch.GEMMA4,
    "glm": Arch.CHATGLM,
    "glm4": Arch.GLM4,
    "glm4_moe": Arch.GLM4_MOE,
    "glm4_moe_lite": Arch.DEEPSEEK2,
    "gpt_oss": Arch.GPT_OSS,
    "granite": Arch.GRANITE,
    "granitemoe": Arch.GRANITE_MOE,
    "granitemoehybrid": Arch.GRANITE_HYBRID,
    "granitemoeshared": Arch.GRANITE_MOE,
    "hunyuan_v1_dense": Arch.HUNYUAN_DENSE,
    "hunyuan_v1_moe": Arch.HUNYUAN_MOE,
    "idefics3": Arch.LLAMA,  # SmolVLM
    "lfm2": Arch.LFM2,
    "lfm2_moe": Arch.LFM2MOE,
    "llama": Arch.LLAMA,
    "llama4": Arch.LLAMA4,
    "llama4_text": Arch.LLAMA4,
    "minimax_m2": Arch.MINIMAXM2,
    "ministral3": Arch.MISTRAL3,
    "mistral3": Arch.MISTRAL3,
    "mistral": Arch.LLAMA,
    "mixtral": Arch.LLAMA,
    "nemotron": Arch.NEMOTRON,
    "olmo": Arch.OLMO,
    "olmo2": Arch.OLMO2,
    "olmo3": Arch.OLMO2,
    "olmoe": Arch.OLMOE,
    "phi": Arch.PHI2,
    "phi3": Arch.PHI3,
    "qwen2": Arch.QWEN2,
    "qwen2_moe": Arch.QWEN2MOE,
    "qwen3": Arch.QWEN3,
    "qwen3_5": Arch.QWEN35,
    "qwen3_5_moe": Arch.QWEN35MOE,
    "qwen3_5_moe_text": Arch.QWEN35MOE,
    "qwen3_5_text": Arch.QWEN35,
    "qwen3_moe": Arch.QWEN3MOE,
    "qwen3_next": Arch.QWEN3NEXT,
    "qwen3_vl": Arch.QWEN3VL,
    "seed_oss": Arch.SEED_OSS,
    "smollm3": Arch.SMOLLM3,
    "stablelm": Arch.STABLELM,
    "starcoder2": Arch.STARCODER2,
}
# What llama.cpp multiplies with an adapter in the graphs of these architectures. Experts it would, too: rlproxy trains
# none.
WEARABLE: Final = frozenset({
    Tensor.ATTN_Q, Tensor.ATTN_K, Tensor.ATTN_V, Tensor.ATTN_QKV, Tensor.ATTN_OUT,
    Tensor.FFN_GATE, Tensor.FFN_UP, Tensor.FFN_DOWN,
})  # fmt: skip
# What a LoRA can be added to in a whole model: there no graph has to know of it.
MERGEABLE: Final = WEARABLE | {Tensor.ATTN_Q_A, Tensor.ATTN_Q_B, Tensor.ATTN_KV_A_MQA}
# Linear attention, whose heads of values are in another order there.
LINEAR_ATTENTION: Final = frozenset({Tensor.ATTN_QKV, Tensor.ATTN_GATE, Tensor.SSM_OUT})
# Graphs that take no adapter on some of these. DeepSeek's multiplies without it: it would load, and do nothing. GLM-4's
# sets the precision of a product, and finds a sum in its place: the server aborts.
REFUSED: Final[Mapping[Arch, frozenset[Tensor]]] = {
    Arch.DEEPSEEK2: WEARABLE - {Tensor.ATTN_OUT, Tensor.FFN_GATE, Tensor.FFN_UP, Tensor.FFN_DOWN},
    Arch.GLM4: frozenset({Tensor.ATTN_OUT, Tensor.FFN_DOWN}),
    Arch.GLM4_MOE: frozenset({Tensor.ATTN_OUT, Tensor.FFN_DOWN}),
}
# Rows of q and k in pairs [x₀, y₀, x₁, y₁…], where Hugging Face has halves [x₀…, y₀…] (`undo_permute`).
PAIRED: Final = frozenset({
    Arch.ARCEE, Arch.GRANITE, Arch.GRANITE_HYBRID, Arch.GRANITE_MOE, Arch.LLAMA, Arch.MISTRAL3, Arch.OLMO, Arch.SMOLLM3,
})  # fmt: skip
HYBRID: Final = frozenset({Arch.QWEN35, Arch.QWEN35MOE})
# Modules of two matrices that llama.cpp has apart, or in an order of its own.
_SPLIT: Final = ("in_proj_qkvz", "in_proj_ba", "shared_mlp.input_linear")
# How the modules of the part that writes begin: of a model of text alone, and of those that also see.
TEXT_PREFIXES: Final = ("model.", "model.language_model.", "model.text_model.")
_LAYER: Final = re.compile(r"(?:model\.|transformer\.|language_model\.|text_model\.)*layers\.(?P<n>\d+)\.(?P<layer>.+)")


class LayerTensor(NamedTuple):
    """A linear layer as llama.cpp knows it."""

    kind: Tensor
    name: str  # without `.weight`


class Heads(NamedTuple):
    """Dimensions of a model that say in which order its rows are."""

    queries: int
    keys: int  # heads of keys and values
    linear_keys: int = 0  # of linear attention; 0: it has none
    linear_values: int = 0
    linear_key_size: int = 0
    linear_value_size: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Heads:
        """`config`: the text model's."""
        queries = int(config["num_attention_heads"])
        return cls(
            queries,
            int(config.get("num_key_value_heads") or queries),
            *(
                int(config.get(f"linear_{name}") or 0)
                for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
            ),
        )


def wearable(architecture: Arch, *, merged: bool = False) -> frozenset[Tensor]:
    """The kinds of tensors that llama.cpp multiplies with an adapter, or to which one can be added (`merged`)."""
    linear = LINEAR_ATTENTION if architecture in HYBRID else frozenset()
    return (MERGEABLE if merged else WEARABLE - REFUSED.get(architecture, frozenset())) | linear


@lru_cache(maxsize=32)
def layer_tensors(architecture: Arch, layers: int, *, merged: bool = False) -> Mapping[str, LayerTensor]:
    """The linear layers that may have a LoRA, by `N.LAYER` as Hugging Face's models call them; under each name that the
    gguf package knows."""
    kinds = wearable(architecture, merged=merged)
    tensors: dict[str, LayerTensor] = {}
    for name, (kind, tensor) in gguf.get_tensor_name_map(architecture, layers).mapping.items():
        match = _LAYER.fullmatch(name)
        if match is not None and kind in kinds and not match["layer"].endswith(_SPLIT):
            tensors[f"{match['n']}.{match['layer']}"] = LayerTensor(kind, tensor)
    return tensors


def find_tensor(module: str, architecture: Arch, layers: int, *, merged: bool = False) -> LayerTensor | None:
    """llama.cpp's tensor of a linear layer; None where that takes no LoRA. `module`: its name in the model."""
    match = _LAYER.fullmatch(module)
    if match is None:
        return None
    return layer_tensors(architecture, layers, merged=merged).get(f"{match['n']}.{match['layer']}")


def ordered(
    tensor: LayerTensor, module: str, a: Array, b: Array, architecture: Arch, heads: Heads
) -> tuple[Array, Array]:
    """A (r, in) and B (out, r) of a layer as llama.cpp has its columns and rows."""
    if architecture in PAIRED and tensor.kind in (Tensor.ATTN_Q, Tensor.ATTN_K):
        return a, paired(b, heads.keys if tensor.kind is Tensor.ATTN_K else heads.queries)
    if architecture in HYBRID and ".linear_attn." in module:
        if tensor.kind is Tensor.SSM_OUT:
            return np.ascontiguousarray(tiled(a.T, heads).T), b
        fixed = 2 * heads.linear_keys * heads.linear_key_size if tensor.kind is Tensor.ATTN_QKV else 0
        return a, np.concatenate([b[:fixed], tiled(b[fixed:], heads)])
    return a, b


def paired(rows: Array, heads: int) -> Array:
    """Rotary halves [x₀…, y₀…] of each head as pairs [x₀, y₀, x₁, y₁…]."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def tiled(rows: Array, heads: Heads) -> Array:
    """Heads of values grouped by their head of keys [k₀v₀, k₀v₁, k₁v₀…] as tiles [k₀v₀, k₁v₀, k₀v₁…]."""
    each = heads.linear_values // heads.linear_keys
    groups = rows.reshape(heads.linear_keys, each, heads.linear_value_size, *rows.shape[1:])
    return np.ascontiguousarray(groups.swapaxes(0, 1).reshape(rows.shape))
