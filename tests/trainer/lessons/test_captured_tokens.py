"""The tokens of a reply from what a server said of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import tiny
from trainer.lessons.captured_tokens import Vocabulary, bytes_of, read_tokens
from trainer.lessons.chat_template import Template
from trainer.lessons.samples import parse

TOKENIZER = tiny.tokenizer()
TEMPLATE = Template(TOKENIZER)


def line(text: str, **changes):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    vocabulary = Vocabulary(TOKENIZER)
    pieces = [piece.decode("latin-1") for piece in bytes_of(TOKENIZER, ids)]
    assert all(vocabulary.ids(piece.encode("latin-1")) == [id] for piece, id in zip(pieces, ids, strict=True))
    return {
        "logprobs_of": "model", "pieces": pieces, "logprobs": [-0.5] * len(ids), "finish_reason": "stop",
        "reply_tokens": len(ids) + 1, "text": text, **changes,
    }, ids  # fmt: skip


def read(given):
    return read_tokens(given, Vocabulary(TOKENIZER), TEMPLATE.end, size=len(TOKENIZER))


@given(text=st.text("abc é😀日本\n", min_size=1, max_size=12))
def test_bytes_become_the_ids_that_they_came_from(text):
    given_line, ids = line(text)
    found = read(given_line)
    assert found is not None and list(found.ids) == [*ids, TEMPLATE.end]
    assert found.log_probs[:-1].tolist() == [-0.5] * len(ids) and np.isnan(found.log_probs[-1])


def test_a_character_of_several_tokens_has_one_log_prob():
    """Ollama and llama.cpp send one entry, when the last token of it has come."""
    ids = TOKENIZER("😀", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    entry = {"logprobs_of": "model", "pieces": ["😀".encode().decode("latin-1")], "logprobs": [-0.25]}
    found = read({**entry, "finish_reason": "length", "reply_tokens": len(ids)})
    assert found is not None and list(found.ids) == ids
    assert np.isnan(found.log_probs[:-1]).all() and found.log_probs[-1] == -0.25


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs_of": None}, {"logprobs": None}, {"pieces": None}, {"reply_tokens": None}, {"reply_tokens": 9},
        {"logprobs": [-0.5]}, {"logprobs": [-0.5, float("nan")]}, {"logprobs": [-0.5, 2.0]}, {"logprobs": ["x", -1]},
        {"token_ids": [1]}, {"token_ids": [-1, 2]}, {"token_ids": ["a", 2]}, {"pieces": ["a", "\u00ff\u00fe\u00fd"]},
    ],
)  # fmt: skip
def test_what_does_not_add_up_is_not_used(changes):
    given_line, _ = line("ab", **changes)
    assert read({**given_line, "pieces": given_line["pieces"]}) is None


def test_ids_that_the_server_sent():
    found = read({"token_ids": [5, 6, TEMPLATE.end], "logprobs": [-1, -2, -3], "logprobs_of": "temperature",
                  "finish_reason": "stop", "reply_tokens": 3})  # fmt: skip
    assert found is not None and found.ids == (5, 6, TEMPLATE.end) and found.log_probs.tolist() == [-1, -2, -3]


def test_a_line_of_a_run_takes_them():
    given_line, ids = line("ab")
    sample = parse(
        {**given_line, "rating": "r", "version": 0, "reward": 1.0, "messages": [{"role": "user", "content": "hi"}],
         "sampling": {"temperature": 0.5}},
        "r", TEMPLATE, max_seq_len=200,
    )  # fmt: skip
    assert list(sample.tokens.reply) == [*ids, TEMPLATE.end]
    assert sample.served is not None and sample.served_at == 1.0 and sample.compared and not sample.exact
