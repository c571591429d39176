"""Each answer counts against the day, even when its server reports zero tokens or fewer."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.relay.rollouts.spending import tokens_of
from scripts.harness.records import end, new
from store.records import Message

LONG = new("a", prompt=(Message("user", b'"' + b"word " * 80 + b'"'),))  # about 100 tokens


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 5}, 12),
        ({"prompt_tokens": 0, "completion_tokens": 0}, 3),  # its ids: two of the prompt, one of the answer
        ({"prompt_tokens": -9, "completion_tokens": 5}, 3),
        ({"prompt_tokens": 2**62, "completion_tokens": 2**62}, 3),
        ({"prompt_tokens": True, "completion_tokens": 5}, 3),
        (None, 3),
    ],
)
def test_a_count_that_cannot_be_is_not_believed(usage: dict[str, Any] | None, tokens: int) -> None:
    assert tokens_of(LONG, end("a", usage=usage)) == tokens


@pytest.mark.parametrize("text", ["", "yes"])
def test_without_any_count_prompt_and_answer_count_by_their_length(text: str) -> None:
    assert tokens_of(LONG, end("a", usage=None, prompt_token_ids=None, token_ids=None, text=text)) >= 100
