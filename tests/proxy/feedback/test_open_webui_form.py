"""What Open WebUI keeps of a thumb and of a chat, said in our words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as cases
from hypothesis import strategies as st

from proxy.core.errors import BadRequest
from proxy.feedback.open_webui_form import MAX_TEXT, answers, chat_messages, parse_vote, plain

# As 0.12.4 has stored it, with what no rating needs.
RECORD: dict[str, Any] = {
    "id": "15c5945d", "user_id": "u-1", "version": 0, "type": "rating",
    "data": {
        "rating": -1, "model_id": "fake", "sibling_model_ids": None, "reason": "too_verbose",
        "comment": "much too long", "details": {"rating": 3}, "tags": [],
    },
    "meta": {"model_id": "fake", "message_id": "m", "message_index": 2, "chat_id": "c-1"},
    "created_at": 1795490678, "updated_at": 1795490680,
}  # fmt: skip


def record(**data: Any) -> dict[str, Any]:
    return {**RECORD, "data": {**RECORD["data"], **data}}


def test_a_record() -> None:
    found = parse_vote(RECORD)
    assert (found.id, found.user_id, found.chat, found.model) == ("15c5945d", "u-1", "c-1", "fake")
    assert (found.value, found.scale, found.word) == (-0.5556, "unit", "3 of 10")
    assert (found.comment, found.changed_at) == ("Too verbose: much too long", 1795490680.0)


@pytest.mark.parametrize(
    ("data", "value", "scale", "word"),
    [
        ({"details": None}, -1.0, "thumb", "bad"), ({"rating": 1, "details": None}, 1.0, "thumb", "good"),
        ({"rating": "1", "details": {"rating": None}}, 1.0, "thumb", "good"),
        ({"rating": 1, "details": {"rating": 10}}, 1.0, "unit", "10 of 10"),
        ({"rating": 1, "details": {"rating": 6}}, 0.1111, "unit", "6 of 10"),
        ({"details": {"rating": 1}}, -1.0, "unit", "1 of 10"), ({"details": {"rating": 5}}, -0.1111, "unit", "5 of 10"),
        ({"rating": 1, "details": {"rating": 3}}, 1.0, "thumb", "good"),  # of the thumb before it was turned
        ({"details": {"rating": True}}, -1.0, "thumb", "bad"), ({"details": {"rating": 99}}, -1.0, "thumb", "bad"),
    ],
)  # fmt: skip
def test_thumb_and_scale(data: dict[str, Any], value: float, scale: str, word: str) -> None:
    assert parse_vote(record(**data))[4:7] == (value, scale, word)


@pytest.mark.parametrize(
    ("data", "comment"),
    [
        ({"reason": None, "comment": None}, ""), ({"reason": "", "comment": " so "}, "so"),
        ({"reason": "other", "comment": "so"}, "so"), ({"comment": ""}, "Too verbose"),
        ({"reason": "a_new_one", "comment": "so"}, "a new one: so"), ({"comment": 5, "reason": []}, ""),
    ],
)  # fmt: skip
def test_reason_and_comment(data: dict[str, Any], comment: str) -> None:
    assert parse_vote(record(**data)).comment == comment


def test_a_very_long_comment_is_cut() -> None:
    assert len(parse_vote(record(comment="x" * 2 * MAX_TEXT)).comment) == MAX_TEXT


@pytest.mark.parametrize(
    "feedback",
    [{}, {**RECORD, "id": ""}, {**RECORD, "id": 5}, {**RECORD, "data": None}, record(rating=None), record(rating=True)],
)
def test_what_is_no_rating(feedback: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse_vote(feedback)


def test_a_message_of_several_answers() -> None:
    output = [
        {"type": "reasoning", "content": [{"type": "output_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"},
        {"type": "message", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "It is "}, {"text": "noon."}]},
        {"type": "message", "content": "Really."}, "what no item is",
    ]  # fmt: skip
    call = {"type": "function", "id": "c", "function": {"name": "clock", "arguments": "{}"}}
    assert answers({"role": "assistant", "content": "…", "output": output}) == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "assistant", "content": "It is noon.\nReally."},
    ]


def test_blocks_in_a_text() -> None:
    thought = '<details type="reasoning" done="true">\n> hm\n</details>\n'
    assert plain(f'{thought}Yes. <details type="tool_calls">x</details>{thought}No.').split() == ["Yes.", "No."]
    assert plain("<think>hm</think>Yes.") == "Yes." and plain("<details>what a person opens</details>") != ""
    assert plain('<details type="reasoning">that never ends') == '<details type="reasoning">that never ends'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda c: st.lists(c) | st.dictionaries(st.text(), c),
    max_leaves=8,  # with more most draws are given up for their size
)
KINDS = st.sampled_from(["message", "function_call", "function_call_output"])
MEMBERS = dict.fromkeys(("content", "call_id", "name", "arguments", "output"), JSON)
PART = st.fixed_dictionaries({"type": KINDS, **MEMBERS})


@cases(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant"]),
                "content": JSON,
                "output": JSON | st.lists(PART, max_size=3),
            }
        ),
        max_size=4,
    )
)
def test_whatever_a_message_has_in_it(messages: list[dict[str, Any]]) -> None:
    assert {one["role"] for one in chat_messages(messages)} <= {"user", "assistant", "tool"}
