"""The layer halfway up a transformers model: what comes out of it can be read, or changed before it goes on.

Owns the hook. Not here: which rows are of replies (torch_policy), where to the states are moved (lessons.leaning).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer


def layer(causal: Any) -> nn.Module | None:
    """The one with as many layers below it as above, or one fewer; None where the model names no layers."""
    layers = [m for m in causal.get_decoder().modules() if isinstance(m, GradientCheckpointingLayer)]
    return layers[(len(layers) - 1) // 2] if layers else None


@contextlib.contextmanager
def watch_output(halfway: nn.Module | None, look: Callable[[Tensor], None]) -> Iterator[None]:
    """Inside it `look` is given what comes out of that layer, (rows, H) in each pass, and may change it in place."""
    assert halfway is not None, "this model does not lean"

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output  # (B, S, H)
        look(states.view(-1, states.shape[-1]))

    handle = halfway.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
