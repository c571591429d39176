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

from trainer.policy.packing import UNRELATED

SHARE_OF_FREE_MEMORY = 0.6  # what training may plan with; the server beside it grows too
COMFORTABLE = 2 << 30  # bytes of activations kept on a CPU, where other programs have the same memory
SMALL = 256  # tokens of unrelated sequences a micro-batch on a CPU: as fast as more, with two thirds of the memory
LONGEST = 4  # sequences of max_seq_len: more in one micro-batch share no more than these do already
HOLES = 1.4  # the resident set grows by this much more than the tensors, measured (docs/lab/benchmarks.md)
HOARD = 512 << 20  # bytes of freed memory that the C library may keep: half of it costs time, and saves little more
M_MMAP_THRESHOLD, MMAP_ABOVE = -3, 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    largest: int  # tokens a micro-batch
    unrelated: int  # and of sequences that share little
    largest_kept: int  # tokens up to which activations are kept until the backward pass
    largest_hoarding: int  # tokens up to which the C library may hoard freed memory, which is faster
    reason: str
    kept_reason: str

    @classmethod
    def of(cls, config: Any, device: str, *, max_seq_len: int) -> MemoryPlan:
        layers, hidden = config.num_hidden_layers, config.hidden_size
        # Per token and layer: the inputs of every linear and of its LoRA, norms, attention.
        layer = 14 * hidden + 6 * widest(getattr(config, "intermediate_size", None), 4 * hidden)
        token_bytes = HOLES * 4 * layers * layer
        recomputed_bytes = HOLES * 4 * (layers * hidden + 2 * layer)  # what enters each layer, and one layer both ways
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
        room = SHARE_OF_FREE_MEMORY * free
        largest = max(UNRELATED, min(int(room / recomputed_bytes), LONGEST * max_seq_len))
        comfortable = room if device == "cuda" else min(room, COMFORTABLE)
        reason = (
            f"{free / 2**30:.1f} GiB are free, a token needs about {token_bytes / 2**20:.2f} MiB, "
            f"{recomputed_bytes / 2**20:.2f} MiB with its activations recomputed"
        )
        kept_reason = f"{comfortable / 2**30:.2g} GiB of activations are kept at most"
        unrelated = UNRELATED if device == "cuda" else SMALL
        largest_hoarding = int(max(0.0, room - HOARD) / recomputed_bytes)
        return cls(largest, unrelated, int(comfortable / token_bytes), largest_hoarding, reason, kept_reason)

    def recomputes(self, tokens: int) -> bool:
        return tokens > self.largest_kept

    def is_tight(self, tokens: int) -> bool:
        return tokens > self.largest_hoarding


def widest(width: int | list[int] | None, default: int) -> int:
    """The width of an MLP; some models have one for each layer."""
    return max(width) if isinstance(width, list) else width or default


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

    def _resident(self) -> int:
        resident: int = self._process.memory_info().rss
        return resident


def give_back_at_once() -> None:
    """From here on glibc returns every large block when it is freed, for half as much time again or more."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, MMAP_ABOVE)


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a class for it; the CPU's allocator only a sentence."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
