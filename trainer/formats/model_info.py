"""The kind of model in a folder: its architecture, its size, its experts. Read, never loaded.

Owns counting parameters (from the shapes in safetensors headers, or from the dimensions in config.json) and knowing
experts and routers by their names. Free of torch and mlx: both ask it. Not here: what follows from a profile for a
run (autoscale), getting the folder (weights).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")
UNGATED = ("gpt2", "gpt_neox", "nemotron", "opt", "phi", "starcoder2")  # two matrices in the MLP instead of three
CONTEXT = ("max_position_embeddings", "n_positions")
ROUTERS = ("gate", "router", "shared_expert_gate")  # what picks the experts, as models call it
STACKED = ("experts", "switch_mlp")  # the routed experts: transformers', mlx-lm's
BY_HEADERS = "counted in the headers of its safetensors"
PART = "model.language_model."  # how the modules of the part that writes begin in a model of several


@dataclass(frozen=True, slots=True)
class Profile:
    architecture: str  # config.json's model_type
    total: int  # parameters
    active: int  # of them, those that work on one token
    experts: int  # 0: dense
    per_token: int  # experts that work on one token; 0: not said
    source: str  # from what
    context: int = 0  # tokens that it can read at once; 0: not said

    @property
    def mixture(self) -> bool:
        return self.experts > 0

    def __str__(self) -> str:
        if not self.mixture:
            return f"{self.architecture}, dense, {billions(self.total)} parameters"
        routing = f"{self.per_token or 'an unknown number'} of {self.experts} experts a token"
        return f"{self.architecture}, {routing}, {billions(self.active)} of {billions(self.total)} parameters active"


class ProfileError(ValueError):
    """The folder does not say how large its model is. One sentence."""


def read(weights: Path) -> Profile:
    """Raises ProfileError where neither headers nor config tell the size."""
    config = json.loads((weights / "config.json").read_bytes())
    tensors = _headers(weights)
    return measure(config, tensors)


def measure(config: Mapping[str, Any], tensors: Mapping[str, tuple[str, int]]) -> Profile:
    """`tensors`: dtype and number of elements by name; may be empty."""
    text = {**config, **(config.get("text_config") or {})}  # where a model sees pictures too
    architecture = str(text.get("model_type") or config.get("model_type") or "unknown")
    experts, per_token = first_number(text, EXPERTS), first_number(text, PER_TOKEN)
    if experts == 1:
        experts = 0
    in_experts = [name for name in tensors if not is_router(name) and _segments(name) & set(STACKED)]
    if in_experts and not experts:  # a config with a word of its own for it
        experts = _expert_count(in_experts) or 1
    if tensors and all(dtype.startswith(("F", "BF")) for dtype, _ in tensors.values()):
        total = sum(size for _, size in tensors.values())
        routed = sum(tensors[name][1] for name in in_experts)
        source = BY_HEADERS
    else:
        total, routed = _by_dimensions(text, architecture, experts)
        source = "computed from the dimensions in config.json"
        if tensors:
            source += ", for its weights are packed"
    idle = routed * (1 - min(1.0, per_token / experts)) if experts and per_token else 0.0
    context = first_number(text, CONTEXT)
    return Profile(architecture, total, total - round(idle), experts, per_token if experts else 0, source, context)


def is_router(name: str) -> bool:
    """Tell whether a module or tensor of this name picks experts. `gate_proj`, half of an MLP, does not."""
    return any(segment in ROUTERS or "router" in segment or segment == "indexer" for segment in name.split("."))


def is_expert(name: str) -> bool:
    """Tell whether it is an expert, routed or shared."""
    return any("expert" in segment or segment in STACKED for segment in name.split("."))


def picks_or_is_expert(name: str) -> bool:
    return is_router(name) or is_expert(name)


def billions(count: int) -> str:
    if count < 1e6:
        return f"{count / 1e3:.3g} K"
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


# --- counting -----------------------------------------------------------------------------------------------------


def weight_files(weights: Path) -> list[Path]:
    """The model's own files: some folders hold the same weights twice, under other names."""
    index = weights / "model.safetensors.index.json"
    if index.is_file():
        return sorted({weights / name for name in json.loads(index.read_bytes())["weight_map"].values()})
    return sorted(weights.glob("model*.safetensors")) or sorted(weights.glob("*.safetensors"))


def linear_shapes(weights: Path) -> dict[str, tuple[int, int]]:
    """(out, in) of each matrix in the model's own files, by the name of its layer."""
    shapes: dict[str, tuple[int, int]] = {}
    for path in weight_files(weights):
        for name, tensor in read_header(path).items():
            if name.endswith(".weight") and len(tensor["shape"]) == 2:
                shapes[module_of(name)] = (tensor["shape"][0], tensor["shape"][1])
    return shapes


def part_that_writes(weights: Path, modules: Collection[str]) -> bool:
    """Tell whether these modules are of the text part alone, loaded from a model that sees or hears. Its files, and so
    its adapters, have the names in PART where the modules have plain ones."""
    return not any(name.startswith(PART) for name in modules) and any(
        name.startswith(PART) for name in linear_shapes(weights)
    )


def module_of(tensor: str) -> str:
    """Models that also see keep the names of older days in their files; modules, and so adapters, have others."""
    module = tensor.removesuffix(".weight")
    text_module = module.removeprefix("language_model.model.")
    return module if text_module == module else f"{PART}{text_module}"


def _headers(weights: Path) -> dict[str, tuple[str, int]]:
    tensors: dict[str, tuple[str, int]] = {}
    for path in weight_files(weights):
        header = read_header(path)
        tensors |= {name: (str(tensor["dtype"]), math.prod(tensor["shape"])) for name, tensor in header.items()}
    return tensors


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Each tensor of a safetensors file, by name. Raises ProfileError where the file has another shape: a download
    that was cut, a pointer of Git LFS."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length <= path.stat().st_size - 8 else b""
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        if all({"dtype", "shape"} <= set(tensor) for tensor in header.values()):
            return dict(header)
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    raise ProfileError(f"{path} is not a safetensors file, or only a part of one: load the model's files again.")


def _by_dimensions(config: Mapping[str, Any], architecture: str, experts: int) -> tuple[int, int]:
    """(all parameters, those of routed experts); biases and small norms left out."""
    try:
        hidden, layers, vocabulary = (
            int(config[k]) for k in ("hidden_size", "num_hidden_layers", "vocab_size")
        )  # fmt: skip
        matrices = 2 if architecture in UNGATED else 3
        dense_width = int(config.get("intermediate_size") or 4 * hidden)
        attention = _attention(config, hidden)
    except (KeyError, TypeError) as error:
        raise ProfileError(f"config.json does not say {error}, and its weights are packed: size unknown.") from None
    width = int(config.get("moe_intermediate_size") or dense_width)
    sparse = _sparse_layers(config, layers) if experts else 0
    shared = config.get("shared_expert_intermediate_size") or width * (config.get("n_shared_experts") or 0)
    routed = sparse * experts * matrices * hidden * width
    mlp = (layers - sparse) * matrices * hidden * dense_width + sparse * hidden * (matrices * int(shared) + experts)
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + layers * (attention + 2 * hidden) + hidden + mlp + routed, routed


def _attention(config: Mapping[str, Any], hidden: int) -> int:
    heads = int(config["num_attention_heads"])
    if latent := config.get("kv_lora_rank"):  # DeepSeek's: keys and values through a narrow vector
        rope, plain, value = (int(config[k]) for k in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        narrow = config.get("q_lora_rank")
        query = narrow * (hidden + heads * (rope + plain)) if narrow else hidden * heads * (rope + plain)
        return int(query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden)
    each = int(config.get("head_dim") or hidden // heads)
    groups = int(config.get("num_key_value_heads") or heads)
    return hidden * each * 2 * (heads + groups)


def _sparse_layers(config: Mapping[str, Any], layers: int) -> int:
    """Layers whose MLP is experts."""
    step = int(config.get("decoder_sparse_step") or 1)
    first, plain = int(config.get("first_k_dense_replace") or 0), set(config.get("mlp_only_layers") or ())
    return sum(n >= first and n not in plain and (n + 1) % step == 0 for n in range(layers))


def first_number(config: Mapping[str, Any], keys: Iterable[str]) -> int:
    return next((int(config[key]) for key in keys if isinstance(config.get(key), int)), 0)


def _segments(name: str) -> set[str]:
    return set(name.split("."))


def _expert_count(names: Iterable[str]) -> int:
    """How many experts are numbered in tensor names: …experts.7.w1.weight."""
    numbers = [
        int(following)
        for name in names
        for segment, following in zip(name.split("."), name.split(".")[1:], strict=False)
        if segment in STACKED and following.isdecimal()
    ]
    return max(numbers, default=-1) + 1
