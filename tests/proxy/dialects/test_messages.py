"""Anthropic Messages as pure functions: requests in chat form, streams folded, and chat completions said in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversation.conversations import canonical, without_commands
from proxy.conversation.user_text import command_of
from proxy.core.errors import BackendBroke, BackendDown, BadRequest, Conflict, ProxyError, StorageFailed, TooLarge
from proxy.core.json_edit import rewrite
from proxy.core.sse import Event, EventSplitter
from proxy.dialects.base import Renderer, Reply
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.messages import Messages
from tests.harness.chat_strategies import completions, cuts, inputs, names, texts, unhurried

MESSAGES = Messages()


def chat(**body: Any) -> dict[str, Any]:
    whole = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return MESSAGES.to_chat(whole, MESSAGES.parse(whole))


def said(*messages: Any) -> list[dict[str, Any]]:
    return MESSAGES.parse({"messages": list(messages)}).messages


def renderer(id: str = "rl-1") -> Renderer:
    asked = MESSAGES.parse({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    return MESSAGES.renderer(id=id, parsed=asked, created=1)


def parsed(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in EventSplitter().feed(stream) if event.data is not None]


def folded(events: list[dict[str, Any]]) -> Reply:
    fold = MESSAGES.fold()
    for event in events:
        fold.add(event)
    (reply,) = fold.replies()
    return reply


def alike(reply: Reply) -> dict[str, Any]:
    """A reply with its arguments read, for two ways of writing the same JSON."""
    message = dict(reply.message)
    calls = [{**c["function"], "id": c["id"]} for c in message.pop("tool_calls", ())]
    for call in calls:
        call["arguments"] = json.loads(call["arguments"])
    thinking = message.pop("reasoning", None) or message.pop("reasoning_content", None)
    return {**message, "thinking": thinking, "calls": calls, "usage": reply.usage, "reason": reply.finish_reason}


# A stream and a whole message


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same message whole and as events, cut anywhere."""
    content: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from(["text", "thinking", "tool_use", "redacted_thinking"]), max_size=5)):
        index, text = len(content), draw(texts)
        if kind == "text":
            block, empty = {"type": kind, "text": text}, {"type": kind, "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in draw(cuts(text))]
        elif kind == "thinking":
            block = {"type": kind, "thinking": text, "signature": "s"}
            empty = {"type": kind, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in draw(cuts(text))]
            deltas.append({"type": "signature_delta", "signature": "s"})
        elif kind == "tool_use":
            block = {"type": kind, "id": f"toolu_{index}", "name": draw(names), "input": draw(inputs)}
            empty = {**block, "input": {}}
            pieces = draw(cuts(json.dumps(block["input"]))) if block["input"] else [""]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        else:
            block = empty = {"type": kind, "data": "opaque"}
            deltas = []
        content.append(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events += [{"type": "content_block_stop", "index": index}, {"type": "ping"}]
    reason = draw(st.sampled_from(["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal", "a new one"]))
    read, wrote, cached = draw(st.tuples(*[st.integers(0, 99)] * 3))
    used = {"input_tokens": read, "cache_read_input_tokens": cached, "output_tokens": wrote}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    begun = {**head, "content": [], "stop_reason": None, "usage": {**used, "output_tokens": 1}}
    start = {"type": "message_start", "message": begun}
    delta = {"stop_reason": reason, "stop_sequence": None}
    end = [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": wrote}}, {"type": "message_stop"}]
    return {**head, "content": content, "stop_reason": reason, "usage": used}, [start, *events, *end]


@unhurried
@given(streams())
def test_a_stream_folds_to_the_whole_message(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, events = both
    assert folded(events) == MESSAGES.whole(whole)[0]


@unhurried
@given(streams())
def test_a_stream_cut_short_keeps_what_came(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, events = both
    reply = folded(events[:-2])
    assert reply.text == MESSAGES.whole(whole)[0].text and reply.finish_reason is None


@unhurried
@given(streams())
def test_an_answer_sent_back_is_the_answer_captured(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, events = both
    again = said({"role": "user", "content": "a"}, {"role": "assistant", "content": whole["content"]})[-1]
    assert canonical(again) == canonical(folded(events).message)


def test_blocks_that_stay_open_and_begin_again() -> None:
    """As llama.cpp streams: no block ends before the last, one may begin twice, and a call has no `input` yet."""

    def delta(index: int, **piece: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": piece}

    def start(index: int, **block: Any) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    reply = folded([
        {"type": "message_start", "message": {"id": "x", "usage": {"input_tokens": 3, "output_tokens": 0}}},
        start(0, type="thinking", thinking=""),
        delta(0, type="thinking_delta", thinking="hm"),
        start(1, type="text", text=""),
        delta(1, type="text_delta", text="I "),
        start(2, type="tool_use", id="c", name="look"),
        delta(2, type="input_json_delta", partial_json='{"a":'),
        start(1, type="text", text=""),
        delta(1, type="text_delta", text="look."),
        start(2, type="tool_use", id="c", name="look"),
        delta(2, type="input_json_delta", partial_json=" 1}"),
        *({"type": "content_block_stop", "index": i} for i in range(3)),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ])  # fmt: skip
    function = {"name": "look", "arguments": '{"a":1}'}
    assert reply.message == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    assert reply.finish_reason == "tool_calls"
    assert reply.usage == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}


def test_nothing_has_come_yet() -> None:
    fold = MESSAGES.fold()
    fold.add({"type": "ping"})
    assert fold.replies() == []


@pytest.mark.parametrize("more", [{"type": "error"}, {}])
def test_an_error_inside_a_stream_is_kept(more: dict[str, Any]) -> None:
    fold = MESSAGES.fold()
    fold.add({**more, "error": {"type": "overloaded_error", "message": "busy"}})
    assert fold.failed == "busy"


@pytest.mark.parametrize(
    "chunk",
    [
        {"type": "surprise"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "surprise_delta"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "surprise", "x": 1}},
    ],
)
def test_what_is_unknown_is_skipped_and_named(chunk: dict[str, Any]) -> None:
    fold = MESSAGES.fold()
    fold.add(chunk)
    assert "surprise" in (fold.unknown or "")


@pytest.mark.parametrize("text", [5, None, ["x"]])
def test_a_text_that_is_none_raises(text: Any) -> None:
    fold = MESSAGES.fold()
    fold.add({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "of no block"}})
    delta = {"type": "text_delta", "text": text}
    if text is None:
        fold.add({"type": "content_block_delta", "index": 0, "delta": delta})
    else:
        with pytest.raises(TypeError):
            fold.add({"type": "content_block_delta", "index": 0, "delta": delta})
    assert fold.replies()[0].text == "of no block"


def test_the_terminal_event() -> None:
    assert MESSAGES.terminal(Event(b'event: message_stop\ndata: {"type":"message_stop"}\n\n'))
    assert MESSAGES.terminal(Event(b'data: {"type": "message_stop"}\n\n'))
    text = json.dumps({"type": "content_block_delta", "delta": {"text": '{"type": "message_stop"}'}}).encode()
    assert not MESSAGES.terminal(Event(b"data: " + text + b"\n\n"))
    assert not MESSAGES.terminal(Event(b'data: ["message_stop"]\n\n'))
    assert not MESSAGES.terminal(Event(b'data: {"message_stop"\n\n')) and not MESSAGES.terminal(Event(b": hi\n\n"))


def test_rules_put_our_id_and_their_model() -> None:
    asked = MESSAGES.parse({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    rules = MESSAGES.rules(id="rl-1", model="m", parsed=asked)
    start = b'{"type": "message_start", "message": {"id": "msg_1", "model":"m@v7", "usage": {"input_tokens": 1}}}'
    assert rewrite(start, rules) == start.replace(b"msg_1", b"rl-1").replace(b"m@v7", b"m")
    whole = b'{"id":"msg_1","type":"message","model":"m@v7","content":[{"type":"tool_use","id":"toolu_1"}]}'
    assert rewrite(whole, rules) == whole.replace(b"msg_1", b"rl-1").replace(b"m@v7", b"m")
    block = b'{"type":"content_block_start","content_block":{"type":"tool_use","id":"toolu_1","input":{}}}'
    assert rewrite(block, rules) == block
    assert b"m@v7" in rewrite(whole, MESSAGES.rules(id="rl-1", model=None, parsed=asked))


# Requests in chat form


def test_what_is_asked() -> None:
    asked = MESSAGES.parse({
        "model": "m", "max_tokens": 5, "stream": True, "temperature": 0.5, "top_p": 1, "top_k": 40,
        "metadata": {"user_id": "ann"},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1f2e3"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Kind."},
        ],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "w"}],
        "messages": [{"role": "user", "content": "hi"}],
    })  # fmt: skip
    assert asked.stream and asked.model == "m"
    assert asked.sampling == {"temperature": 0.5, "top_p": 1.0, "top_k": 40.0}
    assert asked.messages == [{"role": "system", "content": "Be brief.\n\nKind."}, {"role": "user", "content": "hi"}]
    assert asked.origins == (None, 0)
    assert asked.tools == [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_results_of_tools_become_messages_of_their_own() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iV"}}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}, picture]},
        {"type": "tool_result", "tool_use_id": "t2"},
    ]
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body = {
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [*results, {"type": "text", "text": "?"}]},
        ]
    }  # fmt: skip
    asked = MESSAGES.parse(body)
    function = {"name": "look", "arguments": '{"a":1}'}
    assert asked.messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iV"}},
                {"type": "text", "text": "?"},
            ],
        },
    ]
    assert asked.origins == (0, 1, 2, 2, 2)
    # An item leaves when none of its messages stays, and not before; then what its person said goes alone.
    first, second, both = body["messages"]
    results_alone = {**both, "content": results}
    for kept, left in [
        ([0, 1, 2, 3, 4], [first, second, both]),
        ([0, 1, 2, 3], [first, second, results_alone]),
        ([0, 1], [first, second]),
    ]:
        assert json.loads(MESSAGES.keep(body, asked, kept)["messages"]) == left


items = st.builds(
    lambda role, content: {"role": role, "content": content, "odd": 2**70},
    st.sampled_from(["user", "assistant"]),
    texts | st.lists(st.builds(lambda t: {"type": "text", "text": t, "cache_control": {"type": "ephemeral"}}, texts)),
)


@unhurried
@given(st.lists(items, min_size=1), st.booleans())
def test_items_that_stay_are_as_they_came(found: list[dict[str, Any]], system: bool) -> None:
    body: dict[str, Any] = {"messages": found} | ({"system": "s"} if system else {})
    asked = MESSAGES.parse(body)
    kept = without_commands(asked.messages)
    left = json.loads(MESSAGES.keep(body, asked, kept)["messages"])
    assert left == [found[i - system] for i in kept if i >= system]


def test_a_command_beside_a_result_is_seen() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    messages = said({"role": "user", "content": [result, {"type": "text", "text": "/rl good"}]})
    assert command_of(messages[-1]) is not None


def test_documents() -> None:
    blocks = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "more"}]}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVB"}},
        {"type": "search_result", "title": "S", "source": "here", "content": [{"type": "text", "text": "found"}]},
        {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
    ]
    (message,) = chat(messages=[{"role": "user", "content": blocks}])["messages"]
    assert message["content"] == [
        {"type": "text", "text": "T\nwords"},
        {"type": "text", "text": "more"},
        {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVB"}},
        {"type": "text", "text": "S\nhere\nfound"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    ]


def test_the_whole_request_as_chat() -> None:
    tools = [{"name": "look", "description": "looks", "strict": True, "input_schema": {"type": "object"}}]
    found = chat(
        stream=True, temperature=0.1, top_k=3, stop_sequences=["END"], metadata={"user_id": "ann"}, tools=tools,
        tool_choice={"type": "any", "disable_parallel_tool_use": True}, thinking={"type": "disabled"},
        output_config={"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        service_tier="auto", cache_control={"type": "ephemeral"}, context_management={"edits": []},
    )  # fmt: skip
    function = {"name": "look", "parameters": {"type": "object"}, "description": "looks", "strict": True}
    schema = {"name": "answer", "schema": {"type": "object"}}
    assert found == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "temperature": 0.1,
        "top_k": 3,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "ann",
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": schema},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    choice = chat(tools=tools, tool_choice={"type": "tool", "name": "look"})["tool_choice"]
    assert choice == {"type": "function", "function": {"name": "look"}}


def test_tools_that_messages_change_are_stored_with_the_others() -> None:
    new, old = ({"name": name, "input_schema": {"type": "object"}} for name in ("new", "old"))
    reference = {"type": "tool_reference", "name": "old"}
    blocks = [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": new}},
        {"type": "tool_removal", "tool": reference},
    ]
    body = {"tools": [old], "messages": [{"role": "user", "content": [*blocks, {"type": "text", "text": "x"}]}]}
    assert MESSAGES.without_messages(body) == {"tools": [new]}
    assert [tool["function"]["name"] for tool in MESSAGES.parse(body).tools or ()] == ["new"]
    back = {"role": "user", "content": [{"type": "tool_addition", "tool": reference}]}
    again = {**body, "messages": [*body["messages"], {"role": "assistant", "content": "y"}, back]}
    assert MESSAGES.without_messages(again) == {"tools": [old, new]}
    odd = {"tools": [old], "messages": [{"role": "user", "content": [{"type": "tool_addition", "tool": 3}]}]}
    assert MESSAGES.without_messages(odd) == {"tools": [old]}


def test_system_text_between_turns_goes_to_its_neighbour() -> None:
    """As Claude Code sends it: also between a call and its result, and at the end."""
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    note = {"role": "system", "content": "note"}
    found = chat(
        system="top",
        messages=[
            {"role": "user", "content": "a"},
            note,
            {"role": "assistant", "content": [call]},
            note,
            {"role": "user", "content": [result]},
            note,
            {"role": "assistant", "content": "b"},
            note,
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        ],
    )["messages"]
    calls = [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    parts = [{"type": "text", "text": text} for text in ("note", "c", "d")]
    assert found == [
        {"role": "system", "content": "top"},
        {"role": "user", "content": "a\n\nnote"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": "42\n\nnote\n\nnote"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": parts},
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages[1]"),
    ],
)  # fmt: skip
def test_what_chat_completions_cannot_say(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match="cannot say") as error:
        chat(**body)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], None),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "system": 3}, "system"),
    ],
)
def test_bad_bodies(body: Any, param: str | None) -> None:
    with pytest.raises(BadRequest) as error:
        MESSAGES.parse(body)
    assert error.value.param == param


# Chat completions as messages


@unhurried
@given(completions())
def test_a_chat_stream_comes_back_from_our_own_fold(both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, chunks = both
    say = renderer()
    pieces = [piece for chunk in chunks for piece in say.chunk(chunk)]
    before, last = say.end()
    events = parsed(b"".join([*pieces, *before, last]))
    assert MESSAGES.terminal(Event(last)) and not any(MESSAGES.terminal(Event(p)) for p in [*pieces, *before])
    expected = ChatCompletions().whole(whole)[0]
    assert alike(folded(events)) == alike(expected)
    in_one = json.loads(renderer().whole(whole))
    assert alike(MESSAGES.whole(in_one)[0]) == alike(expected)
    _in_order(events)


def _in_order(events: list[dict[str, Any]]) -> None:
    """One block open at a time, numbered from 0, between one start and one end."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    opened: int | None = None
    count = 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert opened is None and event["index"] == count
            opened = count
        else:
            assert event["index"] == opened
        if event["type"] == "content_block_stop":
            opened, count = None, count + 1
    assert opened is None


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, **more}]}


def test_a_stop_string_is_named() -> None:
    say = renderer()
    say.chunk(chunk({"content": "a"}, finish_reason="stop", stop_reason="END"))
    (delta,) = [e for e in parsed(b"".join(say.end()[0])) if e["type"] == "message_delta"]
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_cached_tokens_are_counted_apart() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
    found = json.loads(renderer().whole(body))["usage"]
    assert found == {"input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 2}


def test_arguments_that_are_no_json() -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": '{"a": '}}
    body = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    (block,) = json.loads(renderer().whole(body))["content"]
    assert block == {"type": "tool_use", "id": "c", "name": "look", "input": {"arguments": '{"a": '}}
    say = renderer()
    out = b"".join(say.chunk(chunk({"tool_calls": [{"index": 0, **call}]}))) + b"".join([*say.end()[0]])
    assert folded(parsed(out)).message["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_a_name_after_its_id_and_a_call_without_id() -> None:
    say = renderer()
    assert len(say.chunk(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}))) == 1
    out = b"".join(say.chunk(chunk({"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": "}"}}]})))
    start, piece = parsed(out)
    assert start["content_block"] == {"type": "tool_use", "id": "toolu_rl-1_0", "name": "look", "input": {}}
    assert piece["delta"]["partial_json"] == "{}"


def test_a_call_taken_up_again_is_an_error() -> None:
    say = renderer()
    for index in (0, 1):
        piece = {"index": index, "id": f"c{index}", "function": {"name": "look", "arguments": "{"}}
        say.chunk(chunk({"tool_calls": [piece]}))
    with pytest.raises(BackendBroke):
        say.chunk(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Conflict("x"), "conflict_error"),
        (TooLarge("x"), "request_too_large"),
        (BackendDown("x"), "overloaded_error"),
        (BackendBroke("x"), "api_error"),
        (StorageFailed("x"), "api_error"),
    ],
)
def test_errors(error: ProxyError, kind: str) -> None:
    shape = {"type": "error", "error": {"type": kind, "message": "x"}, "request_id": None}
    assert MESSAGES.error(error) == shape
    (event,) = EventSplitter().feed(MESSAGES.error_event(error))
    assert event.raw.startswith(b"event: error\n") and event.data is not None and json.loads(event.data) == shape
