"""A model's frozen layers held by several processes together, a GPU each, by FSDP2: for weights that fit on no card.

Owns which process holds what, and that all of them pass through the model together. Each layer is gathered when it
computes and let go right after: the layers one by one, then what is around them, then the head. The adapter is whole in
each process and is not gathered at all. Rank 0 carries out the run and alone uses what comes out. The others repeat its
passes, since nobody can gather a layer alone. So results are those of one process, and what is shared is memory.

Not here: how the processes start and end (trainer.ranks), what a pass is (torch_policy).
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.io.run_folder import RunError
from trainer.mis_po import Terms
from trainer.out_of_memory import OutOfMemory
from trainer.policy import torch_load
from trainer.policy.packing import Packed
from trainer.policy.policy import Loss, Policy
from trainer.policy.torch_memory import give_back_at_once

PASSES: Final = ("log_probs", "states", "middle", "surprise", "teach", "generate")  # and `backward`
END_S: Final = 30.0  # in which rank 0 must end a run that another rank cannot go on with
END: Final = "end"
OPEN: Final = "open"
Waiting = dict[nn.Parameter, Tensor]


def processes() -> int:
    """How many processes hold the model together; 1 where it is not shared out."""
    return dist.get_world_size() if dist.is_initialized() else 1


def least(count: int) -> int:
    """The smallest of all processes' numbers: what they decide by must be the same."""
    if processes() == 1:
        return count
    counts: list[Any] = [None] * processes()
    dist.all_gather_object(counts, count)
    return int(min(counts))


def no_gradient() -> AbstractContextManager[Any]:
    """A block without gradients. What FSDP gathers stays, so it may not be made in inference mode."""
    return torch.inference_mode() if processes() == 1 else torch.no_grad()


def load_lazily(weights: Path, compute: torch.dtype) -> tuple[Any, Waiting]:
    """A causal model, and its weights that are still in their files: each takes memory when `share` comes to its layer.
    So no process ever holds the whole model in a wider format than it is stored in. A narrower one is made at once."""
    stored = torch_load.stored_format(weights) if compute == torch.float32 else None
    causal = torch_load.load(weights, "cpu", compute, in_4bit=False, stored=stored)
    waiting = {parameter: parameter.data for parameter in causal.parameters() if parameter.dtype != compute and stored}
    for parameter in waiting:  # of the shape and format that an adapter goes by, and of no memory
        parameter.data = torch.zeros((), dtype=compute).expand(parameter.shape)
    return causal, waiting


def share(model: nn.Module, causal: Any, waiting: Waiting, device: str) -> list[tuple[str, Any, str]]:
    """Share the frozen parameters out, where there are several processes; what was chosen. Raises RunError where the
    model names no layers."""
    if processes() == 1:
        return []
    if device == "cpu":
        give_back_at_once()  # of each layer that was gathered glibc kept most: in one pass more than the whole model
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise RunError(
            "train.gpus needs a model whose layers can be gathered one by one, and this one names none: set it to 1."
        )
    head, embeddings = causal.get_output_embeddings(), causal.get_input_embeddings()
    whole = {parameter for name, parameter in model.named_parameters() if ".lora_" in name or parameter.requires_grad}
    is_tied = head.weight is embeddings.weight
    if is_tied:  # one tensor of two modules, which are never at work together
        whole.add(head.weight)
    mesh = init_device_mesh(device, (processes(),))
    for module in [*layers, torch_load.body(causal), *([] if is_tied else [head])]:
        _read([parameter for parameter in module.parameters() if parameter in waiting], waiting)
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
    _read(list(waiting), waiting)
    for parameter in whole:
        parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    note = "the embeddings, which are the head too, are whole in each" if is_tied else "as the embeddings and the head"
    return [("gpus", processes(), f"they hold {len(layers)} layers together; {note}")]


def _read(parameters: Sequence[nn.Parameter], waiting: Waiting) -> None:
    for parameter in parameters:
        parameter.data = waiting.pop(parameter).to(parameter.dtype)


# --- rank 0, and those that repeat its passes ------------------------------------------------------------------------


def lead(open_policy: Callable[..., Policy], *arguments: Any, **options: Any) -> Policy:
    """The policy of rank 0: opened in all processes, and each of its passes is one of all."""
    tell(OPEN, *arguments, **options)
    return cast(Policy, Leader(open_policy(*arguments, **options)))


def tell(order: str, *arguments: Any, **options: Any) -> None:
    """Have the other processes do this."""
    dist.broadcast_object_list([(order, arguments, options)], src=0, device=torch.device("cpu"))


def follow(open_policy: Callable[..., Policy]) -> None:
    """Repeat what rank 0 tells, until its end. `open_policy` makes the policy, with the arguments of rank 0's."""
    policy: Policy | None = None
    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0, device=torch.device("cpu"))
        order, arguments, options = message[0]
        if order == END:
            return
        try:
            if order == OPEN:
                policy = open_policy(*arguments, **options)
            elif order == "backward":
                assert policy is not None
                packed, terms = arguments
                policy.backward(packed, terms, no_loss)
            else:
                getattr(policy, order)(*arguments, **options)
        except Exception:  # rank 0 has met the same, most likely, and says it in its result
            traceback.print_exc()
            alarm = threading.Timer(END_S, os._exit, (1,))
            alarm.daemon = True
            alarm.start()


def no_loss(xp: Any, theta: Tensor, terms: Terms, taught: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss whose gradient is 0, and which goes back through all layers."""
    return theta.sum() * 0 + (0 if taught is None else taught.sum() * 0), {}


class Leader:
    """Tells the others of each pass, then does it. All else is the policy's own."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._policy, name)
        if name not in PASSES:
            return attribute

        def run_everywhere(*arguments: Any, **options: Any) -> Any:
            tell(name, *arguments, **options)
            with _ends_when_full():
                return attribute(*arguments, **options)

        return run_everywhere

    def backward(self, packed: Packed, terms: Terms, loss: Loss) -> dict[str, float]:
        tell("backward", packed, terms)
        with _ends_when_full():
            return self._policy.backward(packed, terms, loss)


@contextmanager
def _ends_when_full() -> Iterator[None]:
    """Raises RunError where memory runs out: the processes are not at the same layer then."""
    try:
        yield
    except OutOfMemory as error:
        raise RunError(
            f"out of memory on one of {processes()} GPUs ({error}): set a lower train.overrides.max_seq_len, or "
            "more train.gpus. The ratings of this run are fresh again."
        ) from None
