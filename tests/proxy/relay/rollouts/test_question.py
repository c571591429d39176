"""What of a captured request is asked again, in each format, and what is not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.conversation.conversations import canonical
from proxy.relay.rollouts.question import MOST_TOKENS, make_question
from scripts.harness.records import end, new
from store.records import Completion

USER = {"role": "user", "content": "How many?"}
CALL = {"type": "function", "id": "c1", "function": {"name": "count", "arguments": '{"of": "apples"}'}}


def captured(*messages: dict[str, Any], request: dict[str, Any] | None = None, **fields: Any) -> Completion:
    prompt = tuple(canonical(message) for message in messages)
    row = new("a", prompt=prompt, request=orjson.dumps(request or {}), **fields)
    return Completion(1, row, end("a"), "done", b"p", b"r")


def test_what_is_about_the_client_or_the_stream_is_left_out() -> None:
    request = {"stream": True, "stream_options": {}, "n": 2, "seed": 1, "user": "ann", "logprobs": True, "top_k": 5}
    request |= {"request_id": "r1", "rid": "r1", "best_of": 4}  # eight at once must not share an id
    body = make_question(captured(USER, request={**request, "max_tokens": 9})).body
    assert body == {"messages": [USER], "stream": False, "top_k": 5, "max_tokens": 9}


@pytest.mark.parametrize(("temperature", "sent"), [(0.0, 1.0), (0.3, None)])
def test_without_chance_there_would_be_nothing_to_compare(temperature: float, sent: float | None) -> None:
    body = make_question(captured(USER, sampling={"temperature": temperature})).body
    assert body.get("temperature") == sent and body["max_tokens"] == MOST_TOKENS


def test_another_format_is_asked_as_chat_with_its_tools() -> None:
    tools = [{"name": "count", "input_schema": {"type": "object"}}]
    source = captured(
        {"role": "system", "content": "Be exact."}, USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        request={"tools": tools, "max_tokens": 9, "thinking": {"type": "enabled"}}, dialect="messages",
        sampling={"temperature": 0.7, "top_p": 0.9, "top_k": 3},
    )  # fmt: skip
    body = make_question(source).body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert orjson.loads(body["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"of": "apples"}
    assert body["tools"][0]["function"]["name"] == "count"
    assert (body["temperature"], body["top_p"]) == (0.7, 0.9) and not {"thinking", "top_k", "system"} & body.keys()


@pytest.mark.parametrize(
    ("dialect", "request_body", "members"),
    [
        ("messages", {"max_tokens": 9, "stop_sequences": ["\n"]}, {"max_tokens": 9, "stop": ["\n"]}),
        ("responses", {"max_output_tokens": 9}, {"max_tokens": 9}),
        ("responses", {"max_output_tokens": None}, {"max_tokens": MOST_TOKENS}),
        ("ollama", {"options": {"num_predict": 9, "stop": ["x"]}}, {"max_tokens": 9, "stop": ["x"]}),
        ("ollama", {"options": {"num_predict": -1}}, {"max_tokens": MOST_TOKENS}),
    ],
)
def test_another_formats_bound_of_the_answer_holds(
    dialect: str, request_body: dict[str, Any], members: dict[str, Any]
) -> None:
    body = make_question(captured(USER, request=request_body, dialect=dialect)).body
    assert {name: body.get(name) for name in members} == members
