"""A small change to quantised weights, on the grid that they already lie on: same type, same scales, same size.

Owns the codes inside ggml's blocks, read and written in place. A LoRA moves a weight by a hundredth of a step: to the
nearest point of the grid, all of it is lost. So of a change of a hundredth, one weight in a hundred moves by a whole
step, at random. Their sum is right; the rest is noise (`python -m scripts.models.version_size` measures it).
Not here: which tensors change, and whether it is done (merge_gguf). Source: ggml-common.h and ggml-quants.c.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from trainer.formats.architectures import Array

Bytes = NDArray[np.uint8]
Codes = NDArray[np.int16]

HIGHEST: Final = {
    Type.Q4_0: 15, Type.Q4_1: 15, Type.Q5_0: 31, Type.Q5_1: 31, Type.Q8_0: 255, Type.Q4_K: 15, Type.Q5_K: 31,
    Type.Q6_K: 63,
}  # fmt: skip
_FIRST: Final = {Type.Q4_0: 2, Type.Q4_1: 4, Type.Q5_0: 2, Type.Q5_1: 4, Type.Q4_K: 16, Type.Q5_K: 16}  # byte of codes


def shifted(rows: Bytes, kind: Type, delta: Array, numbers: np.random.Generator) -> Bytes:
    """Add `delta` (rows, width) to quantised rows of `kind`, in HIGHEST. Scales and minima stay as they are."""
    blocks = rows.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    codes = read_codes(blocks, kind)
    step = _step(blocks, codes, kind)
    steps = np.divide(delta.reshape(codes.shape), step, out=np.zeros_like(step), where=step != 0)
    whole = np.floor(steps)
    moved = whole + (numbers.random(steps.shape, dtype=np.float32) < steps - whole)
    moved_codes = np.clip(codes + moved, 0, HIGHEST[kind]).astype(np.int16)
    return write_codes(blocks, moved_codes, kind).reshape(rows.shape)


class ShiftCost(NamedTuple):
    """Effect of `shifted` on a change. Energies are sums of squares."""

    share: float  # of the change, that stays on average: weights at the end of their grid do not go beyond it
    noise: float  # energy that is added at random
    own_noise: float  # energy that the type itself has lost, about: a twelfth of a step squared


def shift_cost(rows: Bytes, kind: Type, delta: Array) -> ShiftCost:
    blocks = rows.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    codes = read_codes(blocks, kind)
    step, change = _step(blocks, codes, kind).astype(np.float64), delta.reshape(codes.shape).astype(np.float64)
    steps = np.divide(change, step, out=np.zeros_like(step), where=step != 0)
    reached = np.clip(codes + steps, 0, HIGHEST[kind]) - codes
    part = steps - np.floor(steps)
    energy = float((change**2).sum())
    return ShiftCost(
        float((reached * step * change).sum()) / energy if energy else 1.0,
        float((part * (1 - part) * step**2).sum()),
        float((step**2).sum()) / 12,
    )


def _step(blocks: Bytes, codes: Codes, kind: Type) -> Array:
    """By how much the next code is another weight. (blocks, weights of a block)"""
    highest = HIGHEST[kind]
    upper = write_codes(blocks, np.minimum(codes + 1, highest).astype(np.int16), kind)
    lower = write_codes(blocks, np.minimum(codes, highest - 1).astype(np.int16), kind)
    step: Array = (gguf.dequantize(upper, kind) - gguf.dequantize(lower, kind)).astype(np.float32)
    return step.reshape(codes.shape)


def read_codes(blocks: Bytes, kind: Type) -> Codes:
    """(blocks, weights of a block), in the order of the weights."""
    count = len(blocks)
    if kind is Type.Q8_0:
        signed: Codes = blocks[:, 2:].view(np.int8).astype(np.int16) + 128
        return signed
    if kind is Type.Q6_K:
        low = blocks[:, :128].reshape(count, 2, 1, 2, 32)
        low = np.concatenate([low & 15, low >> 4], axis=2).reshape(count, 2, 4, 32)
        high = blocks[:, 128:192].reshape(count, 2, 1, 32) >> _pairs() & 3
        return np.asarray((low | high << 4).reshape(count, 256), np.int16)
    nibbles, high_bits = _parts(blocks, kind)
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    return np.asarray((low | high_bits << 4).reshape(count, -1), np.int16)


def write_codes(blocks: Bytes, codes: Codes, kind: Type) -> Bytes:
    """The same blocks with other codes."""
    written, count = blocks.copy(), len(blocks)
    if kind is Type.Q8_0:
        written[:, 2:] = (codes - 128).astype(np.int8).view(np.uint8)
        return written
    values = codes.astype(np.uint8)
    if kind is Type.Q6_K:
        values = values.reshape(count, 2, 4, 32)
        low = values & 15
        written[:, :128] = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(count, 128)
        written[:, 128:192] = np.bitwise_or.reduce((values >> 4) << _pairs(), axis=2).reshape(count, 64)
        return written
    nibbles, _ = _parts(blocks, kind)
    values = values.reshape(count, nibbles.shape[1], 2, nibbles.shape[3])
    size, first = nibbles[0].size, _codes_begin(kind)
    written[:, first : first + size] = ((values[:, :, :1] & 15) | (values[:, :, 1:] & 15) << 4).reshape(count, size)
    if kind in (Type.Q5_0, Type.Q5_1):
        bits = (values >> 4).reshape(count, 32)
        written[:, _FIRST[kind] : _FIRST[kind] + 4] = np.packbits(bits, axis=1, bitorder="little")
    elif kind is Type.Q5_K:
        written[:, 16:48] = np.bitwise_or.reduce((values >> 4).reshape(count, 8, 32) << _eights(), axis=1)
    return written


def _parts(blocks: Bytes, kind: Type) -> tuple[Any, Any]:
    """Split blocks with nibbles: (blocks, groups, 1, bytes), and their fifth bits: (blocks, groups, 2, bytes)."""
    count, first = len(blocks), _codes_begin(kind)
    groups, size = (4, 32) if kind in (Type.Q4_K, Type.Q5_K) else (1, 16)
    nibbles = blocks[:, first : first + groups * size].reshape(count, groups, 1, size)
    if kind in (Type.Q5_0, Type.Q5_1):
        raw = np.ascontiguousarray(blocks[:, _FIRST[kind] : _FIRST[kind] + 4])
        return nibbles, np.unpackbits(raw, axis=1, bitorder="little").reshape(count, 1, 2, 16)
    if kind is Type.Q5_K:
        return nibbles, (blocks[:, None, 16:48] >> _eights() & 1).reshape(count, 4, 2, 32)
    return nibbles, np.zeros((1, 1, 1, 1), np.uint8)


def _codes_begin(kind: Type) -> int:
    """The byte of a block where its nibbles begin: after the scales, and after the fifth bits."""
    return _FIRST[kind] + {Type.Q5_0: 4, Type.Q5_1: 4, Type.Q5_K: 32}.get(kind, 0)


def _pairs() -> Bytes:
    return np.array([0, 2, 4, 6], np.uint8)[:, None]


def _eights() -> Bytes:
    return np.arange(8, dtype=np.uint8)[:, None]
