"""Frozen layers and the optimiser's state in the machine's memory, where a card is too small for them.

Owns where each parameter is. A layer's frozen weights are copied to the card when it computes, and the copies go with
its result; its adapter stays there. On the way back each layer is computed again, so no copy waits for it. AdamW steps
on a copy of the adapter. Not run on a GPU: on a CPU the copies are real, and results are equal to the bit
(tests/trainer/policy/test_torch_offload.py). Not here: when a run does so (policies), what it saves (footprint).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.io.run_folder import RunError

ADAPTER = ".lora_"  # in the names of what peft adds


def applies(device: str, *, in_4bit: bool) -> tuple[bool, str]:
    """Tell whether there is anywhere to be but where a run on this device is already, and why. Raises RunError."""
    if in_4bit:
        raise RunError("train.offload and train.load_in_4bit do not go together: set one of them to false.")
    if device == "cuda":
        return True, "set (train.offload): frozen layers and the optimiser's state are in the machine's memory"
    return False, "no GPU: all of a run is in the machine's memory"


def stay(model: nn.Module, device: str) -> int:
    """Move all but frozen layers to the device, and let each layer fetch its weights when it computes; bytes that stay.
    Raises RunError where the model names no layers."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, GradientCheckpointingLayer)}
    if not layers:
        raise RunError(
            "train.offload needs a model whose layers can be computed one by one, and this one names none: set it to "
            "false."
        )
    for layer in layers.values():
        _fetch_when_called(layer, device)
    staying = {id(parameter): parameter for layer in layers.values() for _, parameter in _frozen(layer)}
    for parameter in staying.values():
        if device == "cuda" and not parameter.data.is_pinned():
            parameter.data = parameter.data.pin_memory()  # copies of pageable memory are half as fast
    to_device(model, device)
    return sum(parameter.nbytes for parameter in staying.values())


def to_device(model: nn.Module, device: str) -> None:
    """Move what does not stay: also adapters that were loaded since, which peft puts beside the weights they are on."""
    staying = {
        id(parameter)
        for layer in model.modules()
        if isinstance(layer, GradientCheckpointingLayer)
        for _, parameter in _frozen(layer)
    }
    moved: dict[int, nn.Parameter] = {}  # once each: a head may be the embeddings
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in staying or parameter.device.type == device:
                continue
            if id(parameter) not in moved:
                moved[id(parameter)] = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
            module._parameters[name] = moved[id(parameter)]
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def _frozen(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in layer.named_parameters() if not p.requires_grad and ADAPTER not in f".{name}"]


class _Body(nn.Module):
    """A layer's computation, callable with other weights than its own."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._compute = layer.forward
        self.layer = layer

    def forward(self, *arguments: Any, **options: Any) -> Any:
        recomputes = self.layer.gradient_checkpointing
        self.layer.gradient_checkpointing = False  # transformers computes again inside of here, with CPU's weights then
        try:
            return self._compute(*arguments, **options)
        finally:
            self.layer.gradient_checkpointing = recomputes


def _fetch_when_called(layer: Any, device: str) -> None:
    body = _Body(layer)

    def compute(*arguments: Any, **options: Any) -> Any:
        fetched = {f"layer.{name}": _copy(parameter, device) for name, parameter in _frozen(layer)}
        return functional_call(body, fetched, arguments, options)

    def forward(*arguments: Any, **options: Any) -> Any:
        if layer.gradient_checkpointing and layer.training:  # weights are fetched once more on the way back
            return checkpoint(partial(compute, **options), *arguments, use_reentrant=False)
        return compute(*arguments, **options)

    layer.forward = forward


def _copy(parameter: Tensor, device: str) -> Tensor:
    return parameter.detach().to(device, non_blocking=True, copy=True)


class OptimiserOnCpu(torch.optim.AdamW):
    """AdamW on copies of the parameters in the machine's memory; its state is there, too, and by the copies."""

    def __init__(self, parameters: Iterable[nn.Parameter], **options: Any) -> None:
        self._parameters = list(parameters)
        super().__init__([nn.Parameter(p.detach().to("cpu", copy=True)) for p in self._parameters], **options)

    @property
    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        return zip(self._parameters, self.param_groups[0]["params"], strict=True)

    def step(self, closure: Any = None) -> Any:
        for parameter, copy in self._pairs:
            copy.data.copy_(parameter.detach())  # the policy may wear other numbers by now
            copy.grad = None if parameter.grad is None else parameter.grad.to("cpu")
        loss = super().step(closure)
        for parameter, copy in self._pairs:
            parameter.data.copy_(copy.detach())
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for parameter in self._parameters:
            parameter.grad = None
