"""LoRA adapters on the rows of one batch: each row wears its own, or none, in the same forward pass.

Owns an adapter in memory and the hooks that add x·Aᵀ·Bᵀ to the rows that asked for it. The same sum as peft's, without
its switch. One pass reads the base weights once for all rows, which is what a step costs on a CPU. An adapter is only a
Python object. Whoever generates with it holds it, so one that is unloaded lives until its last reply has ended. Not
here: names of adapters (engine), what its folder must hold (peft_folder).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.formats import peft_folder
from trainer.formats.model_info import PART


@dataclass(frozen=True, eq=False)  # two loads of one folder are two adapters
class BatchedAdapter:
    name: str
    path: Path
    pairs: dict[str, tuple[Tensor, Tensor]] = field(repr=False)  # module -> A (r, in), B·scale transposed (r, out)
    created: int = field(default_factory=lambda: int(time.time()))


def read_adapter(name: str, folder: Path, model: nn.Module) -> BatchedAdapter:
    """Raises AdapterError, with the reason, for whatever this model cannot wear exactly."""
    linears = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    shapes = {key: (module.out_features, module.in_features) for key, module in linears.items()}
    # The text part alone of a model that also sees: its adapters have the names of the whole model.
    whole = {key.replace("model.", PART, 1): key for key in linears if not key.startswith(PART)}
    shapes |= {name: shapes[key] for name, key in whole.items()}
    lora = peft_folder.read(folder, shapes, load_file, lambda tensor: bool(torch.isfinite(tensor).all()))
    pairs = {}
    for module, pair in lora.pairs.items():
        key = module if module in linears else whole[module]
        weight = linears[key].weight
        pairs[key] = pair.a.to(weight).contiguous(), (pair.b.to(weight) * pair.scale).t().contiguous()
    return BatchedAdapter(name, folder, pairs)


class LoraRows:
    """The hooks on one model. `wear` says who wears what, for the forward passes that follow."""

    def __init__(self, model: nn.Module) -> None:
        self._rows = 0
        self._plan: list[tuple[slice, BatchedAdapter]] = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._hook(name))

    def wear(self, adapters: Sequence[BatchedAdapter | None]) -> None:
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
