"""Streams folded into replies: the same as by the plainest way to do it, and nothing of an event is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import CHAT, DIALECTS, Reply
from proxy.dialects.base import longer
from tests.proxy.chat_strategies import unhurried

_texts = st.none() | st.text("ab\n", max_size=3)
_functions = st.fixed_dictionaries({}, optional={"name": _texts, "arguments": _texts})
_calls = st.fixed_dictionaries(
    {},
    optional={"index": st.integers(0, 2), "id": st.sampled_from(["a", "b", None]), "function": st.none() | _functions},
)
_deltas = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", None]), "content": _texts, "reasoning_content": _texts, "refusal": _texts,
        "audio": st.none() | st.just({"id": "a"}),
        "tool_calls": st.none() | st.lists(_calls, max_size=2),  # some servers send an empty list with each piece
    },
)  # fmt: skip
_ids = st.none() | st.lists(st.integers(0, 9), max_size=3)
_logprobs = st.none() | st.fixed_dictionaries(
    {"content": st.none() | st.lists(st.fixed_dictionaries({"logprob": st.floats(-9, 0)}), max_size=3)}
)
_choices = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "delta": _deltas},
    optional={"finish_reason": st.sampled_from([None, "stop", "length"]), "token_ids": _ids, "logprobs": _logprobs},
)
_chunks = st.fixed_dictionaries(
    {"choices": st.lists(_choices, max_size=3)},
    optional={"usage": st.none() | st.just({"total_tokens": 3}), "prompt_token_ids": _ids},
)


def plainly(chunks: list[dict[str, Any]]) -> list[Reply]:
    """What has come is copied with every chunk."""
    replies: dict[int, Reply] = {}
    usage, prompt = None, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        prompt = prompt if chunk.get("prompt_token_ids") is None else chunk["prompt_token_ids"]
        for choice in chunk["choices"]:
            reply = replies.setdefault(choice["index"], Reply(choice["index"]))
            for key, value in choice["delta"].items():
                if key == "tool_calls" and value is not None:
                    _add_calls(reply.message.setdefault("tool_calls", []), value)
                elif key == "role":
                    reply.message["role"] = value or "assistant"
                elif isinstance(value, str):
                    reply.message[key] = (reply.message.get(key) or "") + value
                elif value is not None:
                    reply.message[key] = value
            reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
            if choice.get("token_ids") is not None:
                reply.token_ids = (reply.token_ids or []) + choice["token_ids"]
            content = (choice.get("logprobs") or {}).get("content")
            if content is not None:
                reply.logprobs = (reply.logprobs or []) + [one["logprob"] for one in content]
    for reply in replies.values():
        reply.usage, reply.prompt_token_ids = usage, prompt
    return [replies[index] for index in sorted(replies)]


def _add_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        while len(calls) <= delta.get("index", 0):
            calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[delta.get("index", 0)], delta.get("function") or {}
        if delta.get("id"):
            call["id"] = delta["id"]
        for key in ("name", "arguments"):
            call["function"][key] += function.get(key) or ""


@unhurried
@given(chunks=st.lists(_chunks, max_size=8), asked_at=st.integers(0, 8))
def test_a_chat_stream_is_folded_as_it_is_plainly(chunks: list[dict[str, Any]], asked_at: int) -> None:
    before = copy.deepcopy(chunks)
    fold = CHAT.fold()
    for at, chunk in enumerate(chunks):
        if at == asked_at:
            fold.replies()  # asked for in the middle, it goes on all the same
        fold.add(chunk)
    found = fold.replies()
    assert found == plainly(before) and [list(r.message) for r in found] == [list(r.message) for r in plainly(before)]
    assert fold.replies() == found
    assert chunks == before


def test_a_text_that_goes_on_with_no_text_is_not_understood() -> None:
    fold = CHAT.fold()
    fold.add({"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "a"}]}}]})
    with pytest.raises(TypeError):
        fold.add({"choices": [{"index": 0, "delta": {"content": "b"}}]})


def test_an_empty_list_takes_no_tool_call_away() -> None:
    fold = CHAT.fold()
    fold.add({"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "a", "function": {"name": "look"}}]}}]})
    fold.add({"choices": [{"index": 0, "delta": {"content": "", "tool_calls": []}, "finish_reason": "tool_calls"}]})
    (reply,) = fold.replies()
    assert [call["function"]["name"] for call in reply.message["tool_calls"]] == ["look"]


@pytest.mark.parametrize("wrong", [{"arguments": 5}, {"name": ["look"]}])
def test_a_call_that_is_no_text_is_not_understood(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        CHAT.fold().add({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": wrong}]}}]})


def test_a_list_grows_in_place_and_what_it_grew_by_stays() -> None:
    first, more = [1], [2, 3]
    so_far = longer(None, first)
    assert longer(so_far, more) is so_far and so_far == [1, 2, 3]
    assert (first, more) == ([1], [2, 3])
    with pytest.raises(TypeError):
        longer(so_far, "ab")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_no_answer_is_no_reply(dialect: Any) -> None:
    assert dialect.fold().replies() == []
