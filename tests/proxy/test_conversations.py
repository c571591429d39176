"""The same message, however a client sends it back; commands out of a history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversations import canonical, is_command, speaker, without_commands
from proxy.errors import BadRequest


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant("hi"), assistant(" hi\n")),
        (assistant("hi"), assistant([{"type": "text", "text": "hi"}])),
        (assistant("ab"), assistant([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
        (assistant("hi"), assistant("hi", reasoning_content="hm", refusal=None, annotations=[])),
        (assistant(None, tool_calls=[call('{"a": 1, "b": 2}')]), assistant("", tool_calls=[call('{"b":2,"a":1}')])),
    ],
)
def test_the_same_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant("hi"), {"role": "user", "content": "hi"}),
        (assistant("hi"), assistant("Hi")),
        (assistant("", tool_calls=[call('{"a": 1}')]), assistant("", tool_calls=[call('{"a": 2}')])),
        (assistant("", tool_calls=[call("{broken")]), assistant("", tool_calls=[call("{broken!")])),
        (assistant("x"), assistant([{"type": "image_url", "image_url": {"url": "data:…"}}])),
    ],
)
def test_another_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("text", ["/rl", "/rl good", " /rl bad too long\n", "/rl\tundo"])
def test_commands(text: str) -> None:
    assert is_command({"role": "user", "content": text})
    assert is_command({"role": "user", "content": [{"type": "text", "text": text}]})
    assert not is_command({"role": "assistant", "content": text})


@pytest.mark.parametrize("text", ["/rlx good", "what is /rl good?", "", "good"])
def test_no_commands(text: str) -> None:
    assert not is_command({"role": "user", "content": text})


TURNS = st.lists(st.tuples(st.sampled_from(["a question", "/rl good", "/rl bad why"]), st.text(max_size=5)), max_size=8)


@given(TURNS)
def test_a_history_without_its_commands(turns: list[tuple[str, str]]) -> None:
    """Each user message has its answer after it; commands go with theirs, and nothing else does."""
    messages = [m for said, answer in turns for m in ({"role": "user", "content": said}, assistant(answer))]
    kept = [
        m
        for said, answer in turns
        if said == "a question"
        for m in ({"role": "user", "content": said}, assistant(answer))
    ]
    assert [messages[i] for i in without_commands(messages)] == kept


def test_a_command_without_its_answer() -> None:
    question = {"role": "user", "content": "q"}
    assert without_commands([{"role": "user", "content": "/rl good"}, question, assistant("a")]) == [1, 2]


def test_speaker() -> None:
    assert speaker({}, path_session=None, user=None) == (None, None)
    headers = {"x-rl-session": "s", "x-rl-user": "u", "session-id": "codex", "x-openwebui-user-email": "a@b"}
    assert speaker(headers, path_session="p", user="body", session="b") == ("s", "u")
    assert speaker({"session-id": "c"}, path_session="p", user="body", session="b") == ("p", "body")
    assert speaker({"session-id": "c"}, path_session=None, user=None, session="b") == ("b", None)
    assert speaker({"session-id": "c", "x-openwebui-user-email": "a@b"}, path_session=None, user=None) == ("c", "a@b")
    for bad in ({"x-rl-session": "a b"}, {"x-rl-user": ""}, {"x-rl-user": "x" * 201}):
        with pytest.raises(BadRequest):
            speaker(bad, path_session=None, user=None)
