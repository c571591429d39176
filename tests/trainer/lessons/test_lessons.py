"""What becomes of samples on the way to lessons, as far as it needs no model."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer.io.progress import Progress
from trainer.lessons import advantages, lessons
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import ScoredSample
from trainer.lessons.samples import Sample, parse
from trainer.policy.policy import LogProbs

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
    back = [
        replace(sample, is_held_back=True, reward=sign, rating=f"{sign} {i}") for sign in (1.0, -1.0) for i in range(20)
    ]
    found = lessons._held_back([sample] * trained + back)
    assert [s.rating for s in found] == [f"{sign} {i}" for sign in (1.0, -1.0) for i in range(looked_at)]


def scored(entropy: float) -> LogProbs:
    return LogProbs(np.full(4, -1.0), np.full(4, -1.0), np.full(4, entropy))


@pytest.mark.parametrize(("now", "taken"), [(1.2, 0.3), (1.0, 1.0), (0.8, 1.0)])
def test_likely_tokens_are_spared_only_where_the_policy_is_vaguer_than_the_base(tmp_path, sample, now, taken) -> None:
    preset = presets.resolve("balanced", {"likely": 0.3})
    out = io.StringIO()
    with Progress(tmp_path, out) as progress:
        read = ScoredSample(sample, scored(now), scored(1.0), np.zeros(4))
        assert advantages.likely_now(preset, [read] * 2, progress) == taken
        assert advantages.likely_now(preset, [], progress) == 1.0  # corrections alone
    said = json.loads(out.getvalue().splitlines()[0])
    assert (said["name"], said["value"]) == ("likely", taken)
