"""LoRA adapters on the rows of one batch: each row wears its own, or none, in the same forward pass.

Owns reading a PEFT folder for serving (safetensors only, every shape checked) and the hooks that add x·Aᵀ·Bᵀ to the
rows that asked for it. The same sum as peft's, without its switch: one pass reads the base weights once for all
rows, which is what a step costs on a CPU, and an adapter is only a Python object. Whoever generates with it holds
it, so one that is unloaded lives until its last reply has ended. Not here: names of adapters (engine), writing one
(lora_files).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.manifest import MANIFEST, AdapterError, verify

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
# Kinds of LoRA that are more than B·A on a linear layer. Served as plain LoRA they would be wrong in silence.
_UNKNOWN_KINDS = (
    "use_dora", "use_qalora", "lora_bias", "layer_replication", "modules_to_save", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "corda_config", "velora_config",
)  # fmt: skip
# These start by changing the base weights, which other rows share.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, eq=False)  # two loads of one folder are two adapters
class Adapter:
    name: str
    path: Path
    pairs: dict[str, tuple[Tensor, Tensor]] = field(repr=False)  # module -> A (r, in), B·scale transposed (r, out)
    created: int = field(default_factory=lambda: int(time.time()))


def read_adapter(name: str, folder: Path, model: nn.Module) -> Adapter:
    """Raises AdapterError, with the reason, for whatever this model cannot wear exactly."""
    if (folder / MANIFEST).exists():
        verify(folder)
    config = _read_config(folder / "adapter_config.json")
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise AdapterError(f"{path} is missing; only safetensors are loaded, never pickled weights.")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    linears = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if not match:
            raise AdapterError(f"{path} holds {key}, which is no LoRA matrix of a linear layer.")
        if match["module"] not in linears:
            raise AdapterError(f"{path} is for another model: this one has no linear layer {match['module']}.")
        if not torch.isfinite(tensor).all():
            raise AdapterError(f"{path} holds values that are not finite, in {key}.")
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    if not sides:
        raise AdapterError(f"{path} holds no LoRA matrices.")
    pairs = {}
    for module, pair in sides.items():
        pairs[module] = _pair(path, module, pair, linears[module], config)
    return Adapter(name, folder, pairs)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise AdapterError(f"{path} is missing.") from None
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{path} is not the configuration of a LoRA adapter.")
    for kind in _UNKNOWN_KINDS:
        if config.get(kind):
            raise AdapterError(f"{path} sets {kind}, which this server does not know.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterError(f"{path} has init_lora_weights {start!r}, which changes the base model; convert it first.")
    return config


def _pair(
    path: Path, module: str, pair: dict[str, Tensor], linear: nn.Linear, config: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    if set(pair) != {"A", "B"}:
        raise AdapterError(f"{path} has only one of lora_A and lora_B for {module}.")
    a, b = pair["A"], pair["B"]
    rank = a.shape[0]
    expected = (rank, linear.in_features), (linear.out_features, rank)
    if (tuple(a.shape), tuple(b.shape)) != expected:
        raise AdapterError(
            f"{path} does not fit this model: {module} has A {tuple(a.shape)} and B {tuple(b.shape)}, "
            f"expected {expected[0]} and {expected[1]}."
        )
    try:
        alpha = float(_by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha")))
        stated = int(_by_pattern(config.get("rank_pattern"), module, config.get("r")))
    except (TypeError, ValueError, re.error):
        raise AdapterError(f"{path.parent}/adapter_config.json has no usable r and lora_alpha.") from None
    if stated != rank or not math.isfinite(alpha):
        raise AdapterError(f"{path} has rank {rank} for {module}, its adapter_config.json says {stated}.")
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    like = linear.weight
    return a.to(like).contiguous(), (b.to(like) * scale).t().contiguous()


def _by_pattern(patterns: Any, module: str, default: Any) -> Any:
    """PEFT's rule: the first pattern that matches the end of the module's name."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


class LoraRows:
    """The hooks on one model. `wear` says who wears what, for the forward passes that follow."""

    def __init__(self, model: nn.Module) -> None:
        self._rows = 0
        self._plan: list[tuple[slice, Adapter]] = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._hook(name))

    def wear(self, adapters: Sequence[Adapter | None]) -> None:
        """One entry a row. Neighbours with the same adapter are computed together, so keep them neighbours."""
        self._rows = len(adapters)
        self._plan = []
        start = 0
        for end in range(1, len(adapters) + 1):
            if end == len(adapters) or adapters[end] is not adapters[start]:
                if (adapter := adapters[start]) is not None:
                    self._plan.append((slice(start, end), adapter))
                start = end

    def _hook(self, name: str) -> Any:
        def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            for rows, adapter in self._plan:
                if pair := adapter.pairs.get(name):
                    a, b = pair
                    x = args[0].view(self._rows, -1, args[0].shape[-1])[rows]  # (b, q, in)
                    y = output.view(self._rows, -1, output.shape[-1])[rows]  # (b, q, out)
                    y.view(-1, y.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]) @ a.t(), b)
            return output

        return add
