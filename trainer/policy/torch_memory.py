"""Memory as torch and the C library have it: what is free, what they keep when it is freed, and running out.

Owns the C allocator's habits, and what becomes of running out. Not here: what a pass needs (footprint), what is done
without it (loop), how activations are recomputed (torch_policy).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import psutil
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer import container
from trainer.out_of_memory import OutOfMemory, is_out_of_memory
from trainer.policy.footprint import HOARD

Returned = TypeVar("Returned")
M_MMAP_THRESHOLD, MMAP_ABOVE = -3, 1 << 20


def free_bytes(device: str) -> int:
    """Memory that is free where it trains."""
    free: int = torch.cuda.mem_get_info()[0] if device == "cuda" else container.memory().free
    return free


class FreedMemory:
    """Return freed memory that glibc keeps to the system, where it has become much.

    Its heap takes a new place for most aligned blocks, though it has freed one of the same size. Where layers are
    computed again, 0.2 of 3 GiB that it held were in use (2.36). Other C libraries are left as they are.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._trim = getattr(library, "malloc_trim", None)
        self._process = psutil.Process()
        self._least = self._resident()  # since it was last given back

    def give_back(self, most: int = HOARD) -> None:
        """Looked at between recomputed layers, some microseconds each time, and after each step."""
        if self._trim is None:
            return
        self._least = min(self._least, resident := self._resident())
        if resident - self._least > most:
            self._trim(0)
            self._least = self._resident()

    def watch(self, causal: torch.nn.Module) -> None:
        """Looked at as each recomputed layer begins, on the way there and on the way back."""

        def look(part: torch.nn.Module, inputs: Any) -> None:
            if part.training:
                self.give_back()

        for layer in causal.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # A part of it: the layer itself is not called once more when it is computed again.
                next(layer.children()).register_forward_pre_hook(look)

    def _resident(self) -> int:
        resident: int = self._process.memory_info().rss
        return resident


def give_back_at_once() -> None:
    """From here on glibc returns every large block when it is freed, for half as much time again or more."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, MMAP_ABOVE)


def unless_full(device: str, work: Callable[[], Returned]) -> Returned:
    """Return what this work does. Raises OutOfMemory where memory runs out, with nothing of the work still held."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = str(error).splitlines()[0]
    # Out here the traceback, which holds on to the tensors, is gone.
    if device == "cuda":
        torch.cuda.empty_cache()
    raise OutOfMemory(message)
