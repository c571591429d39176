"""What a run would refuse, said without the weights: word for word what the run itself says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import tiny
from tests.trainer.runs import go
from trainer import probe
from trainer.io.run_folder import read_lines
from trainer.lessons import samples
from trainer.lessons.chat_template import Template
from trainer.lessons.rehearsal import UNRATED, known_tokens, refusals

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
    file.write_text(json.dumps({**one, **UNRATED, "rating": "rt-1"}) + "\n")
    as_served = template.as_served(samples.known_prompts((found for _, found in read_lines(file)), template))
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
    found = probe.look(model, [asked], threads=1, score=False, lines=[line()])
    assert found["refused"] == [None] and found["conversations"][0]["logprobs"] == []
    assert found["doubt"] == "only prompts were looked at"


# With the weights: how likely are these words?

SAID = "The quick brown fox jumps over the lazy dog, and nobody has ever asked it why it does so every single day."
COOL = {"sampling": {"temperature": 0.02}, "text": SAID}  # so cool that the tiny model would say one thing only


def looked(model: Path, *lines: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = [{**each, "completion": f"rl-{n}"} for n, each in enumerate(lines)]
    return probe.look(model, [], threads=1, lines=named, **more)


def of_bytes(text: str, log_prob: float, **more: Any) -> dict[str, Any]:
    pieces = list(text.encode().decode("latin-1"))
    given = {"pieces": pieces, "logprobs": [log_prob] * len(pieces), "logprobs_of": "model"}
    return line(text=text, reply_tokens=len(pieces) + 1, **given, **more)


def test_words_that_this_model_would_not_say_are_refused_as_by_a_run(model: Path) -> None:
    found = looked(model, line(**COOL), line(**COOL))
    assert found["doubt"] is None
    assert ["odder than this model's own replies" in why for why in found["refused"]] == [True, True]


@pytest.mark.parametrize(
    "more",
    [
        {"sampling": {"temperature": 0.02, "repetition_penalty": 1.1}},
        {"version": 3},
        {**EXACT, "text": None},
        {"text": ""},
    ],
)
def test_what_a_run_does_not_ask_the_weights_about(model: Path, more: dict[str, Any]) -> None:
    found = looked(model, line(**(COOL | more)))
    assert found["doubt"] is None and not any("odder" in why for why in found["refused"] if why)


def test_where_the_server_gave_log_probs_these_are_compared(model: Path) -> None:
    (why,) = looked(model, of_bytes(SAID, -0.01))["refused"]
    assert "less likely to the weights than to the server" in why
    (why,) = looked(model, of_bytes(SAID, -8.0))["refused"]
    assert "outside the run's band" in why and "more than numeric noise" in why
    assert looked(model, of_bytes(SAID, -8.0), overrides={"band": "off"})["refused"] == [None]


def test_too_few_answers_to_tell(model: Path) -> None:
    """A run with more of them may refuse what these few do not prove."""
    (often,) = looked(model, of_bytes(SAID, -0.01))["refused"]
    found = looked(model, of_bytes("abcd", -7.0))
    assert found["refused"] == [None] and "less likely" in found["doubt"]
    assert often != found["doubt"]


def test_a_large_model_is_asked_about_fewer_answers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.lessons.rehearsal.AFFORDABLE", 1.0)
    assert looked(model, line(**COOL))["refused"] == [None]


def test_how_much_is_known_of_the_tokens() -> None:
    template = Template(tiny.tokenizer())
    lines = [
        {**line(), **EXACT},
        of_bytes("four", -1.0),  # and its end, of which a server says nothing
        line(text="abc"),  # three, and its end
        line(text="abc", reply_tokens=7),
        of_bytes("four", -1.0) | {"reply_tokens": 99},  # it does not add up
    ]
    assert known_tokens(lines, template) == {"tokens": 1 + 5 + 4 + 7 + 99, "ids": 1 + 5, "log_probs": 1 + 4}
    assert known_tokens([], template) == {"tokens": 0, "ids": 0, "log_probs": 0}


# The band: the same answers, looked at before a run and trained on by it


def noisy(model: Path, tokens: int, shift: float) -> list[dict[str, Any]]:
    """Exact answers of a server whose log-probs are off by about `shift` nats a token."""
    draws = np.random.default_rng(4)
    return [
        one | {"logprobs": [min(0.0, x + draws.normal(shift, 0.03)) for x in one["logprobs"]], "split": "train"}
        for one in tiny.sample_lines(model, tokens=tokens)
    ]


COMPARISON = {"mean": -0.02, "deviation": 0.03, "tokens": 93}


@pytest.mark.parametrize(
    ("tokens", "shift", "comparison", "overrides"),
    [
        (12, 1.0, None, {}),
        (2, 0.02, COMPARISON, {}),
        (6, 0.02, None, {}),
        (12, 0.02, None, {"band": "paper"}),
        (12, 1.0, None, {"band": "off"}),
    ],
)
def test_the_band_of_a_rehearsal_is_that_of_the_run(
    tmp_path: Path, model: Path, tokens: int, shift: float, comparison: Any, overrides: dict[str, Any]
) -> None:
    lines = noisy(model, tokens, shift)
    found = probe.look(model, [], threads=1, lines=lines, comparison=comparison, preset="balanced", overrides=overrides)
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, comparison=comparison, overrides=overrides))
    causes = [result["samples"][each["rating"]]["cause"] for each in lines]
    assert [reason is not None for reason in found["refused"]] == [cause == "fresh-mismatch" for cause in causes]
    assert found["doubt"] is None
    assert all("nats a token from the weights'" in reason for reason in found["refused"] if reason)


def test_a_rehearsal_that_knows_too_little_says_how_much_is_missing(model: Path) -> None:
    found = probe.look(model, [], threads=1, lines=noisy(model, 2, 0.02))
    assert found["refused"] == [None] * 12 and "24 of 32 tokens are known" in found["doubt"]
