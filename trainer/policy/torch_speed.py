"""How much this machine's processor multiplies in a second: what the time of a run is computed from.

Owns the measurement, of one thread, in seconds of the processor: what else runs here hardly counts. Owns which library
multiplies float32, and whether bfloat16 is worth its rounding, too. Not here: how much there is to multiply
(footprint), what is rounded (torch_load).
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

ROWS, WIDE = 256, 2048  # a micro-batch and a layer, of some size
LEAST_S = 0.2
WORTH = 1.2  # times the other: below it, bfloat16 rounds for nothing, and two libraries are as good as one
SAME = 1e-5  # of the largest product: float32 in another order of sums is below it, bfloat16 a hundred times above


class Speed(NamedTuple):
    """The speed of one thread."""

    float32: float  # operations a second
    bfloat16: float
    read: float  # bytes a second, of weights that one row is multiplied with


def measure() -> Speed:
    products = measure_products()
    with _one_thread():
        return Speed(products.float32, products.bfloat16, _reading())


class ProductSpeed(NamedTuple):
    """Operations a second of one thread. A processor may know bfloat16 and multiply slower in it. AVX-512's
    alone was at 0.62 of float32 on one Xeon, and at twice float32 on an EPYC. AMX is at four times."""

    float32: float
    bfloat16: float

    @property
    def share(self) -> float:
        return self.bfloat16 / self.float32

    @property
    def rounding_pays(self) -> bool:
        return self.share >= WORTH


@functools.cache
def measure_products() -> ProductSpeed:
    """Measured once a process: a run and its plan must not choose differently half-way."""
    choose_library()
    with _one_thread():
        return ProductSpeed(_products(torch.float32), _products(torch.bfloat16))


@functools.cache
def choose_library() -> str | None:
    """Have oneDNN multiply float32 in this process where it is clearly faster and rounds nothing; why, or None.

    torch leaves these products to MKL, which on an AMD processor takes half as much at once as it could. The one way to
    oneDNN is to permit bfloat16. oneDNN uses that permission where there is AMX; there all stays as it was.
    """
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return None
    products = onednn.matmul
    rows = torch.arange(ROWS * WIDE).sin().view(ROWS, WIDE)
    weights = torch.arange(WIDE * WIDE).cos().view(WIDE, WIDE)
    with _one_thread():
        usual, usual_speed = torch.nn.functional.linear(rows, weights), _products(torch.float32)
        previous, products.fp32_precision = products.fp32_precision, "bf16"
        gap = (torch.nn.functional.linear(rows, weights) - usual).abs().max() / usual.abs().max()
        gain = _products(torch.float32) / usual_speed
    if gap <= SAME and gain >= WORTH:
        return f"it multiplies float32 {gain:.1f} times as fast as MKL here, and rounds no more"
    products.fp32_precision = previous
    return None


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
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
