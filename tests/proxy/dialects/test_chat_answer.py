"""The forms in which servers say the same answer. What leaves for each client is in tests/wire/translation/replies."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.dialects.chat_answer import plain_answer, sound_answer


def answer(message: dict[str, Any], member: str = "message") -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, member: message, "finish_reason": "stop"}], "usage": None}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "a"},
        {"content": None, "refusal": "no", "function_call": None, "audio": None},
        {"content": "", "tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": None}]},
        {"reasoning": "hm"},
        {},
    ],
)
@pytest.mark.parametrize("member", ["message", "delta"])
def test_what_is_plain_is_the_same_object(message: dict[str, Any], member: str) -> None:
    body = answer(message, member)
    assert plain_answer(body) is body


@pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": [{}]}, {"choices": [{"delta": None}]}])
def test_what_says_nothing_is_the_same_object(body: dict[str, Any]) -> None:
    assert plain_answer(body) is body


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ({"content": ["a", {"type": "text", "text": "b"}]}, {"content": "ab"}),
        ({"content": []}, {"content": ""}),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}, 3, None]}, {"content": ""}),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
            {"content": "", "reasoning_content": "hm"},
        ),
        (
            {"content": [{"type": "reasoning", "reasoning": "hm"}, {"type": "output_text", "text": "b"}]},
            {"content": "b", "reasoning_content": "hm"},
        ),
        (
            {"content": [{"type": "thinking", "thinking": "hm"}], "reasoning": " well"},
            {"content": "", "reasoning_content": "hm well"},
        ),
        (
            {"content": [{"type": "refusal", "refusal": "no"}], "refusal": None},
            {"content": "", "refusal": "no"},
        ),
        ({"content": "a ", "audio": {"transcript": "b"}}, {"content": "a b"}),
        (
            {"content": None, "function_call": {"name": "look", "arguments": {"a": 1}}},
            {
                "content": "",
                "tool_calls": [{"index": 0, "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}],
            },
        ),
        (  # some servers send both
            {"tool_calls": [{"id": "c", "function": {"name": "look"}}], "function_call": {"name": "look"}},
            {"tool_calls": [{"id": "c", "function": {"name": "look"}}]},
        ),
    ],
)
@pytest.mark.parametrize("member", ["message", "delta"])
def test_other_forms(message: dict[str, Any], plain: dict[str, Any], member: str) -> None:
    assert plain_answer(answer(message, member)) == answer(plain, member)


@pytest.mark.parametrize(
    ("odd", "sound"),
    [
        ({"refusal": 5}, {}),
        ({"reasoning_content": {"a": 1}}, {}),
        ({"audio": 5, "function_call": "x"}, {}),
        ({"tool_calls": 5}, {}),
        ({"tool_calls": [5, {"function": 5}, {"function": {"name": "f", "arguments": []}}]},
         {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ],
)  # fmt: skip
def test_an_odd_member_leaves_the_others(odd: dict[str, Any], sound: dict[str, Any]) -> None:
    (choice,) = sound_answer(answer({"content": "a", **odd}))["choices"]
    assert choice["message"] == {"content": "a", "tool_calls": [], **sound}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("odd", [5, [], {"content": [None]}, {"content": [{"logprob": "x"}]}])
def test_odd_log_probs_and_an_odd_place_leave_the_answer(odd: Any) -> None:
    (choice,) = sound_answer({"choices": [{"index": [], "message": {"content": "a"}, "logprobs": odd}]})["choices"]
    assert choice["index"] == 0 and choice["logprobs"] is None and choice["message"]["content"] == "a"


@pytest.mark.parametrize("body", [{}, {"choices": [5]}, {"choices": [{}]}, {"choices": [{"message": None}]}])
def test_what_is_no_answer_is_none_without_its_odd_members(body: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        sound_answer(body)
