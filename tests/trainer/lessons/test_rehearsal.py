"""What a run would refuse, said without the weights: word for word what the run itself says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import tiny
from trainer import probe
from trainer.io.run_folder import read_lines
from trainer.lessons import samples
from trainer.lessons.rehearsal import RATED, refusals
from trainer.lessons.samples import Template

TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "?"}]
STRICT = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}hi"
EXACT = {"exact": True, "prompt_token_ids": [1], "token_ids": [2], "logprobs": [-1.0]}
WAYS: dict[str, dict[str, Any]] = {
    "taken": {},
    "another template, seen by its count": {"prompt_tokens": 999},
    "another template since": {"served": {"text": "<|im_start|>user\nHello", "ids": None}, "prompt_tokens": 99},
    "a server that renders it to nothing": {"served": {"text": "", "ids": None}},
    "tokens that the weights do not have": {"served": {"text": None, "ids": [5, 100_000]}},
    "ids that the weights do not have": {**EXACT, "prompt_token_ids": [100_000]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "thing"}]}]},
    "no answer in words": {"text": ""},
    "no messages": {"messages": []},
    "too long": {"messages": [{"role": "user", "content": "word " * 400}]},
    "a placeholder of log-probs": {**EXACT, "logprobs": [-9999.0]},
}


def line(**more: Any) -> dict[str, Any]:
    return {
        "completion": "rl-1", "version": 0, "exact": False, "finish_reason": "stop", "messages": TALK, "text": "Yes.",
        "as_sent": True, **more,
    }  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_rehearsal_says_what_the_run_says(tmp_path: Path, way: str) -> None:
    template, one = Template(tiny.tokenizer()), line(**WAYS[way])
    (why,) = refusals([one], template, max_seq_len=256)
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps({**one, **RATED, "rating": "rt-1"}) + "\n")
    as_served = template.as_served(samples.known((found for _, found in read_lines(file)), template))
    taken, unusable = samples.load(file, as_served, max_seq_len=256)
    assert [why] == ([each.reason for each in unusable] or [None]) and bool(taken) == (way == "taken")


def test_a_template_that_refuses(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = STRICT
    asked = [line(messages=[{"role": "system", "content": "x"}, *TALK]), line()]
    refused, taken = refusals(asked, Template(tokenizer), max_seq_len=256)
    assert refused == "the chat template refuses these messages: no system here" and taken is None


def test_no_weights_are_loaded_for_it(tmp_path: Path) -> None:
    model = tiny.make_model(tmp_path / "tiny")
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: 8 + int.from_bytes(whole[:8], "little")])  # what it has, without the numbers themselves
    asked = {"messages": TALK, "text": "x", "ended": True}
    found = probe.look(model, [asked], threads=1, score=False, lines=[line()], max_seq_len=256)
    assert found["refused"] == [None] and found["conversations"][0]["logprobs"] == []
