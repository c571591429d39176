"""How much this machine's processor multiplies in a second: what the time of a run is computed from.

Owns the measurement, of one thread, in seconds of the processor: what else runs here hardly counts. Not here: how much
there is to multiply (footprint).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

ROWS, WIDE = 256, 2048  # a micro-batch and a layer, of some size
LEAST_S = 0.3


class Speed(NamedTuple):
    """The speed of one thread."""

    float32: float  # operations a second
    bfloat16: float
    read: float  # bytes a second, of weights that one row is multiplied with


def measure() -> Speed:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return Speed(_products(torch.float32), _products(torch.bfloat16), _reading())
    finally:
        torch.set_num_threads(threads)


def _products(dtype: torch.dtype) -> float:
    rows, weights = torch.ones(ROWS, WIDE, dtype=dtype), torch.ones(WIDE, WIDE, dtype=dtype)
    return 2 * ROWS * WIDE * WIDE * _a_second(lambda: torch.nn.functional.linear(rows, weights))


def _reading() -> float:
    row, weights = torch.ones(1, WIDE), torch.ones(16 * WIDE, WIDE)  # 256 MB: no cache holds it
    return weights.nbytes * _a_second(lambda: torch.nn.functional.linear(row, weights))


def _a_second(act: Callable[[], object]) -> float:
    """Times a second of the processor."""
    act()
    start, count = time.process_time(), 0
    while (elapsed := time.process_time() - start) < LEAST_S:
        act()
        count += 1
    return count / elapsed
