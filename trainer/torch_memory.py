"""How large a micro-batch may be: an estimate of what its backward pass keeps, against the memory that is free.

Owns the estimate, the C allocator's habits, and the word for running out. Not here: what is done then (loop), how
activations are recomputed (torch_policy).
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from trainer.packing import UNRELATED

SHARE_OF_FREE_MEMORY = 0.6  # what training may plan with; the server beside it grows too
COMFORTABLE = 2 << 30  # bytes of activations kept on a CPU, where other programs have the same memory
LONGEST = 4  # sequences of max_seq_len: more in one micro-batch share no more than these do already
HOLES = 1.4  # the resident set grows by this much more than the tensors, measured (docs/benchmarks.md)
HOARDED = 4  # and by so much more once again where activations are recomputed, unless freed memory is given back
M_MMAP_THRESHOLD, MMAP_ABOVE = -3, 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    largest: int  # tokens a micro-batch
    kept: int  # tokens up to which activations are kept until the backward pass
    roomy: int  # tokens up to which freed memory may stay with the C library, which is faster
    why: str
    kept_why: str

    @classmethod
    def of(cls, config: Any, device: str, *, max_seq_len: int) -> Plan:
        layers, hidden = config.num_hidden_layers, config.hidden_size
        # Per token and layer: the inputs of every linear and of its LoRA, norms, attention.
        layer = 14 * hidden + 6 * (getattr(config, "intermediate_size", None) or 4 * hidden)
        kept = HOLES * 4 * layers * layer
        recomputed = HOLES * 4 * (layers * hidden + 2 * layer)  # what enters each layer, and one layer both ways
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
        room = SHARE_OF_FREE_MEMORY * free
        largest = max(UNRELATED, min(int(room / recomputed), LONGEST * max_seq_len))
        comfortable = room if device == "cuda" else min(room, COMFORTABLE)
        why = (
            f"{free / 2**30:.1f} GiB are free, a token needs about {kept / 2**20:.2f} MiB, "
            f"{recomputed / 2**20:.2f} MiB with its activations recomputed"
        )
        kept_why = f"{comfortable / 2**30:.2g} GiB of activations are kept at most"
        return cls(largest, int(comfortable / kept), int(room / (HOARDED * recomputed)), why, kept_why)

    def recomputes(self, tokens: int) -> bool:
        return tokens > self.kept

    def is_tight(self, tokens: int) -> bool:
        return tokens > self.roomy


def give_back_at_once() -> None:
    """From here on glibc returns every large block to the system when it is freed.

    Left alone it keeps them for the next one, and the tensors that stay (one a layer, when activations are recomputed)
    pin it all: four times the memory for a quarter less time. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, MMAP_ABOVE)


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a class for it; the CPU's allocator only a sentence."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
