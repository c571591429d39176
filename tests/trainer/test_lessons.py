"""What becomes of samples on the way to lessons, as far as it needs no model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trainer import tiny
from trainer import lessons
from trainer.samples import Sample, Template, parse

LINE = {
    "version": 0,
    "reward": 1.0,
    "finish_reason": "stop",
    "exact": True,
    "prompt_token_ids": [1, 5],
    "token_ids": [7, 2],
    "logprobs": [-0.5, -0.1],
}


@pytest.fixture(scope="module")
def sample() -> Sample:
    return parse(LINE, "rt-1", Template(tiny.tokenizer()), max_seq_len=100)


@pytest.mark.parametrize(("trained", "looked_at"), [(0, 8), (28, 8), (64, 8), (112, 14), (160, 20)])
def test_the_gate_looks_at_more_where_more_trains(sample: Sample, trained: int, looked_at: int) -> None:
    back = [replace(sample, held=True, reward=sign, rating=f"{sign} {i}") for sign in (1.0, -1.0) for i in range(20)]
    found = lessons._held([sample] * trained + back)
    assert [s.rating for s in found] == [f"{sign} {i}" for sign in (1.0, -1.0) for i in range(looked_at)]
