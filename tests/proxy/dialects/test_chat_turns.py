"""Messages in the order of strict templates, whatever order they came in."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.chat_turns import in_turns
from tests.harness.chat_strategies import unhurried

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
contents = st.sampled_from(["word", "", None, [{"type": "text", "text": "part"}], [{"type": "image_url"}], []])
messages = st.one_of(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "user"]), contents),
    st.builds(lambda content: {"role": "assistant", "content": content}, contents),
    st.builds(
        lambda content: [
            {"role": "assistant", "content": content, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        contents,
    ),
)


@unhurried
@given(st.lists(messages))
def test_one_system_text_at_the_start_and_no_speaker_twice_in_a_row(found: list[Any]) -> None:
    given = [message for one in found for message in (one if isinstance(one, list) else [one])]
    turns = in_turns(given)
    assert not any(message["role"] == "system" for message in turns[1:])
    for before, message in pairwise(turns):
        same = before["role"] == message["role"]
        assert not same or before.get("tool_calls") or message.get("tool_calls"), turns
        assert (message["role"] == "tool") == bool(before.get("tool_calls")), turns
    assert _words(turns) == _words(given)


def _words(messages: list[dict[str, Any]]) -> list[str]:
    """The words, in any order: a system text may pass a call's result."""
    contents = [message["content"] or "" for message in messages]
    texts = [c if isinstance(c, str) else " ".join(p.get("text", "image") for p in c) for c in contents]
    return sorted(" ".join(texts).split())


@pytest.mark.parametrize("content", [3, {"type": "text"}])
def test_what_is_no_content_stays_apart(content: Any) -> None:
    odd = [{"role": "user", "content": "a"}, {"role": "user", "content": content}]
    assert in_turns(odd) == odd


def test_the_reasoning_of_two_answers_is_kept() -> None:
    one = {"role": "assistant", "content": "a", "reasoning_content": "x"}
    two = {"role": "assistant", "content": "b", "reasoning_content": "y"}
    assert in_turns([one, two]) == [{"role": "assistant", "content": "a\n\nb", "reasoning_content": "x\n\ny"}]
