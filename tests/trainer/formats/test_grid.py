"""Codes inside ggml's blocks: read, written, and moved by what a small change asks for."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from trainer.formats.grid import HIGHEST, read_codes, shifted, write_codes

KINDS = sorted(HIGHEST)


def blocks(kind: Type, count: int = 3) -> np.ndarray:
    """Random codes and scales; the half-precision numbers among these are finite, and no scale is 0."""
    numbers = np.random.default_rng(int(kind))
    raw = numbers.integers(1, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    at = {Type.Q6_K: (208,), Type.Q4_0: (0,), Type.Q5_0: (0,), Type.Q8_0: (0,)}.get(kind, (0, 2))
    for first in at:
        raw[:, first : first + 2] = np.array([0.013], np.float16).view(np.uint8)
    if kind in (Type.Q4_K, Type.Q5_K):
        raw[:, 4:16] = 0b00010001
    return raw


@pytest.mark.parametrize("kind", KINDS)
def test_each_code_is_one_weight(kind: Type) -> None:
    raw = blocks(kind)
    codes = read_codes(raw, kind)
    assert codes.shape == (3, gguf.GGML_QUANT_SIZES[kind][0]) and codes.max() <= HIGHEST[kind]
    assert (write_codes(raw, codes, kind) == raw).all()
    before = gguf.dequantize(raw, kind)
    for weight in (0, 17, codes.shape[1] - 1):
        other = codes.copy()
        other[1, weight] += -1 if other[1, weight] == HIGHEST[kind] else 1
        changed = np.argwhere(gguf.dequantize(write_codes(raw, other, kind), kind) != before)
        assert changed.tolist() == [[1, weight]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_a_fraction_of_a_step_is_there_on_average(kind: Type) -> None:
    """Nothing of it would be left at the nearest point of the grid."""
    raw = blocks(kind, 2000)
    codes = read_codes(raw, kind)
    raw = write_codes(raw, np.clip(codes, 1, HIGHEST[kind] - 1), kind)
    weights = gguf.dequantize(raw, kind)
    steps = np.abs(gguf.dequantize(write_codes(raw, read_codes(raw, kind) + 1, kind), kind) - weights)
    delta = (0.02 * steps * np.where(np.arange(steps.shape[1]) % 2, 1, -1)).astype(np.float32)
    moved = gguf.dequantize(shifted(raw, kind, delta, np.random.default_rng(0)), kind) - weights
    assert (moved * delta).sum() / (delta**2).sum() == pytest.approx(1, abs=0.15)
    assert (moved != 0).mean() == pytest.approx(0.02, abs=0.005)
    assert np.abs(moved).max() <= steps.max() * 1.01


def test_a_whole_step_is_a_whole_step() -> None:
    raw = write_codes(blocks(Type.Q4_1), np.full((3, 32), 14, np.int16), Type.Q4_1)
    step = gguf.dequantize(write_codes(raw, np.full((3, 32), 15, np.int16), Type.Q4_1), Type.Q4_1)
    delta = step - gguf.dequantize(raw, Type.Q4_1)
    numbers = np.random.default_rng(0)
    assert (read_codes(shifted(raw, Type.Q4_1, -2 * delta, numbers), Type.Q4_1) == 12).mean() > 0.9
    assert (read_codes(shifted(raw, Type.Q4_1, 9 * delta, numbers), Type.Q4_1) == 15).all(), "the grid has an end"
