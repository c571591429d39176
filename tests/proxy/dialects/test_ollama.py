"""Ollama's own API as pure functions: requests in chat form, lines folded, and chat completions said in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversation.conversations import canonical
from proxy.core.errors import BackendDown, BadRequest, NoPrompt
from proxy.core.json_edit import rewrite
from proxy.core.ndjson import Line
from proxy.dialects.base import FROM_BYTES, Dialect, Reply
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.ollama import OllamaChat, OllamaGenerate
from tests.harness.chat_strategies import completions, cuts, inputs, names, texts, unhurried

CHAT, GENERATE = OllamaChat(), OllamaGenerate()
HEAD = {"model": "m", "created_at": "2026-11-21T08:00:00Z"}


def folded(dialect: Dialect, lines: list[dict[str, Any]]) -> Reply:
    fold = dialect.fold()
    for line in lines:
        fold.add(line)
    (reply,) = fold.replies()
    return reply


def chat(**body: Any) -> dict[str, Any]:
    whole = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": False, **body}
    return CHAT.to_chat(whole, CHAT.parse(whole))


# Lines and a whole answer


@st.composite
def streams(draw: st.DrawFn, dialect: Dialect) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same answer whole and in lines, cut anywhere."""
    thinking, text = draw(texts), draw(texts)
    calls = [
        {"id": f"call_{i}", "function": {"index": i, "name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(draw(st.lists(st.tuples(names, inputs), max_size=3)))
    ]
    logprobs = draw(st.none() | st.lists(st.floats(-9, 0).map(lambda p: {"token": "t", "logprob": p}), min_size=1))
    end = {
        "done": True,
        "done_reason": draw(st.sampled_from(["stop", "length"])),
        "prompt_eval_count": draw(st.integers(0, 99)),
        "eval_count": draw(st.integers(0, 99)),
        "eval_duration": 5,
    }

    def line(content: str, thought: str = "", called: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        said: dict[str, Any] = {"thinking": thought} if thought else {}
        said |= {"tool_calls": called} if called else {}
        if dialect is CHAT:
            return {**HEAD, "message": {"role": "assistant", "content": content, **said}, **more}
        return {**HEAD, "response": content, **said, **more}

    lines = [line("", piece, done=False) for piece in draw(cuts(thinking))]
    lines += [line(piece, done=False) for piece in draw(cuts(text))]
    lines += [line("", "", [call], done=False) for call in calls]
    lines.append(line("", **end))
    if logprobs:
        lines[0]["logprobs"], lines[-1]["logprobs"] = logprobs[:1], logprobs[1:]
    return line(text, thinking, calls, **end, **({"logprobs": logprobs} if logprobs else {})), lines


@pytest.mark.parametrize("dialect", [CHAT, GENERATE])
@unhurried
@given(st.data())
def test_lines_fold_to_the_whole_answer(dialect: Dialect, data: st.DataObject) -> None:
    whole, lines = data.draw(streams(dialect))
    reply = folded(dialect, lines)
    assert reply == dialect.whole(whole)[0]
    assert folded(dialect, lines[:-1]).finish_reason is None
    raw = [json.dumps(line).encode() + b"\n" for line in lines]
    assert [dialect.terminal(Line(line)) for line in raw] == [False] * (len(raw) - 1) + [True]


@unhurried
@given(streams(CHAT), st.booleans())
def test_an_answer_sent_back_is_the_answer_captured(
    both: tuple[dict[str, Any], list[dict[str, Any]]], with_ids: bool
) -> None:
    """Ollama's own client loses the ids of calls on the way."""
    whole, lines = both
    message = dict(whole["message"])
    if not with_ids and "tool_calls" in message:
        message["tool_calls"] = [{"function": call["function"]} for call in message["tool_calls"]]
    again = CHAT.parse({"messages": [{"role": "user", "content": "a"}, message]}).messages[-1]
    assert canonical(again) == canonical(folded(CHAT, lines).message)


def test_logprobs_and_why_it_ended() -> None:
    lines = [
        {**HEAD, "message": {"content": "a"}, "logprobs": [{"token": "a", "logprob": -0.5}], "done": False},
        {**HEAD, "message": {"content": ""}, "done": True, "done_reason": "length", "eval_count": 1},
    ]
    reply = folded(CHAT, lines)
    assert reply.logprobs == [-0.5] and reply.finish_reason == "length"
    assert reply.usage == {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}
    assert reply.pieces == [b"a"] and reply.inexact_reason() == FROM_BYTES


def test_an_error_inside_a_stream_is_kept() -> None:
    fold = CHAT.fold()
    fold.add({"error": "out of memory"})
    assert fold.failed == "out of memory" and fold.replies() == []
    assert not CHAT.terminal(Line(b'{"error":"out of memory"}\n')) and not CHAT.terminal(Line(b'{"done": tr'))


@pytest.mark.parametrize(("dialect", "line"), [(CHAT, {"response": "x"}), (GENERATE, {"message": {"content": "x"}})])
def test_a_line_without_an_answer_is_skipped_and_an_answer_without_one_is_none(
    dialect: Dialect, line: dict[str, Any]
) -> None:
    fold = dialect.fold()
    fold.add(line)
    assert fold.replies() == [] and "a line without an answer" in (fold.unknown or "")
    with pytest.raises(KeyError):
        dialect.whole(line)


def test_rules_put_their_model_and_take_out_our_logprobs() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    line = b'{"model":"m:v7", "message":{"role":"assistant","content":"a"},"logprobs":[{"token":"a"}],"done":false}'
    out = rewrite(line, CHAT.rules(id="rl-1", model="m", parsed=CHAT.parse(body)))
    assert out == b'{"model":"m", "message":{"role":"assistant","content":"a"},"done":false}'
    theirs = CHAT.parse({**body, "logprobs": True})
    assert rewrite(line, CHAT.rules(id="rl-1", model=None, parsed=theirs)) == line


# Requests in chat form


def test_what_is_asked() -> None:
    options = {"temperature": 0.5, "repeat_penalty": 1.1, "num_ctx": 4096, "seed": 3}
    asked = CHAT.parse({"model": "m", "messages": [{"role": "user", "content": "x"}], "options": options})
    assert asked.stream and asked.model == "m" and not asked.wants_logprobs
    assert asked.sampling == {"temperature": 0.5, "repetition_penalty": 1.1}
    assert not CHAT.parse({"messages": [{"role": "user", "content": "x"}], "stream": False}).stream
    asked = GENERATE.parse({"model": "m", "prompt": "p", "system": "s", "context": [1, 2], "logprobs": True})
    assert asked.messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]
    assert asked.stream and asked.wants_logprobs


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (GENERATE, {}),
        (GENERATE, {"prompt": None}),
        (GENERATE, {"prompt": "", "system": "s", "images": ["iVBOR"], "suffix": "x", "raw": True}),
        (CHAT, {}),
        (CHAT, {"messages": None}),
        (CHAT, {"messages": [], "tools": []}),
    ],
)
def test_a_request_that_only_loads_a_model_has_no_prompt(dialect: Dialect, body: dict[str, Any]) -> None:
    with pytest.raises(NoPrompt) as error:
        dialect.parse({"model": "m", **body})
    asked = dialect.unread({"model": "m", **body}, error.value)
    assert (asked.model, asked.messages, asked.stream, asked.unreadable) == ("m", [], True, error.value)
    answer = json.loads(dialect.without_prompt(body, model="m", created=1) or b"")
    said = {"response": ""} if dialect is GENERATE else {"message": {"role": "assistant", "content": ""}}
    head = {"model": "m", "created_at": "1970-01-01T00:00:01Z"}
    assert answer == {**head, **said, "done": True, "done_reason": "load"}


@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [(0, "unload"), (0.0, "unload"), ("0", "unload"), ("0s", "unload"), ("-0h0m0.0s", "unload")]
    + [(keep, "load") for keep in (None, -1, 10, "5m", "10s", "-1m", "", "s", True, False, [])],
)
def test_the_model_is_unloaded_where_it_is_kept_for_no_time(keep_alive: Any, reason: str) -> None:
    for dialect in (CHAT, GENERATE):
        answer = dialect.without_prompt({"keep_alive": keep_alive}, model="m", created=1)
        assert json.loads(answer or b"")["done_reason"] == reason


def test_pictures_thinking_and_tools() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {"a": 1}}}

    body = {
        "messages": [
            {"role": "user", "content": "see", "images": ["iVBORw0", "/9j/4AA"]},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call("f"), call("g"), call("f")]},
            {"role": "tool", "content": "of g", "tool_name": "g"},
            {"role": "tool", "content": "of f", "name": "f"},
            {"role": "tool", "content": "of whom?"},
            {"role": "tool", "content": "one too many"},
        ]
    }
    user, assistant, *results = CHAT.parse(body).messages
    assert user["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AA"}},
    ]
    assert assistant["reasoning_content"] == "hm" and assistant["content"] == ""
    function = {"name": "g", "arguments": '{"a":1}'}
    assert assistant["tool_calls"][1] == {"id": "call00001", "type": "function", "function": function}
    assert [m.get("tool_call_id") for m in results] == ["call00001", "call00000", "call00002", None]


def test_a_result_answers_the_first_open_call_of_its_name() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in "abab"]
    results = [
        {"role": "tool", "content": "x", **({"tool_name": name} if name else {})}
        for name in ("b", "a", "", "z", "b", "b")
    ]
    asked = OllamaChat().parse({"messages": [{"role": "assistant", "content": "", "tool_calls": calls}, *results]})
    ids = [call["id"] for call in asked.messages[0]["tool_calls"]]
    assert [message.get("tool_call_id") for message in asked.messages[1:]] == [
        ids[1],
        ids[0],
        ids[2],
        ids[3],
        None,
        None,
    ]


def test_the_whole_request_as_chat() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    options = {
        "temperature": 0, "top_k": 5, "repeat_penalty": 1.1, "num_predict": 7, "seed": 3, "stop": ["x"],
        "num_ctx": 8192, "mirostat": 0, "typical_p": 1.0,
    }  # fmt: skip
    found = chat(
        stream=True, tools=tools, options=options, format="json", think="max", keep_alive="5m", logprobs=True
    )  # fmt: skip
    assert found == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "top_k": 5,
        "repetition_penalty": 1.1,
        "max_tokens": 7,
        "seed": 3,
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": tools,
        "logprobs": True,
        "top_logprobs": 0,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "high",
    }
    bare = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert chat(format="", think=True, options={"num_predict": -1}) == bare
    schema = {"name": "answer", "schema": {"type": "object"}}
    assert chat(format={"type": "object"})["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert chat(think=False)["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (GENERATE, {"prompt": "p", "raw": True}, "raw"),
        (GENERATE, {"prompt": "p", "suffix": "s"}, "suffix"),
        (GENERATE, {"prompt": "p", "template": "t"}, "template"),
        (GENERATE, {"prompt": "p", "context": [1]}, "context"),
        (CHAT, {"messages": [{"role": "user"}], "options": {"mirostat": 2}}, "options.mirostat"),
        (CHAT, {"messages": [{"role": "user"}], "options": {"typical_p": 0.9}}, "options.typical_p"),
    ],
)
def test_what_chat_completions_cannot_say(dialect: Dialect, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match="cannot say") as error:
        dialect.to_chat(body, dialect.parse(body))
    assert error.value.param == param


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (CHAT, [], None),
        (CHAT, {"messages": 3}, "messages"),
        (CHAT, {"messages": [3]}, "messages[0]"),
        (CHAT, {"messages": [{}]}, "messages[0]"),
        (CHAT, {"options": []}, "options"),
        (CHAT, {"messages": [{"role": "user", "images": "x"}]}, "messages[0].images"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls[0]"),
        (GENERATE, {"prompt": 3}, "prompt"),
        (GENERATE, {"prompt": "x", "images": {}}, "images"),
    ],
)
def test_bad_bodies(dialect: Dialect, body: Any, param: str | None) -> None:
    with pytest.raises(BadRequest) as error:
        dialect.parse(body)
    assert error.value.param == param


@unhurried
@given(st.lists(st.builds(lambda t: {"role": "user", "content": t, "odd": [2**60, {"a": None}]}, texts), min_size=1))
def test_items_that_stay_are_as_they_came(items: list[dict[str, Any]]) -> None:
    body = {"messages": items}
    kept = list(range(0, len(items), 2))
    assert json.loads(CHAT.keep(body, CHAT.parse(body), kept)["messages"]) == items[::2]
    assert GENERATE.keep({"prompt": "p"}, GENERATE.parse({"prompt": "p"}), [0]) == {}


# Chat completions in lines


def alike(reply: Reply) -> dict[str, Any]:
    """A reply with its arguments read, and without the ids that this format loses."""
    message = dict(reply.message)
    calls = [dict(call["function"]) for call in message.pop("tool_calls", ())]
    for call in calls:
        call["arguments"] = json.loads(call["arguments"])
    thinking = message.pop("reasoning", None) or message.pop("reasoning_content", None)
    return {**message, "thinking": thinking, "calls": calls, "usage": reply.usage, "reason": reply.finish_reason}


@pytest.mark.parametrize("dialect", [CHAT, GENERATE])
@unhurried
@given(both=completions())
def test_a_chat_stream_comes_back_from_our_own_fold(
    dialect: Dialect, both: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    whole, chunks = both
    asked = dialect.parse({"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "p"}]})
    say = dialect.renderer(id="rl-1", parsed=asked, created=1_795_248_000)
    pieces = [piece for chunk in chunks for piece in say.chunk(chunk)]
    before, last = say.end()
    assert dialect.terminal(Line(last)) and not any(dialect.terminal(Line(p)) for p in [*pieces, *before])
    lines = b"".join([*pieces, *before, last]).splitlines()
    expected = alike(ChatCompletions().whole(whole)[0])
    assert alike(folded(dialect, [json.loads(line) for line in lines])) == expected
    in_one = json.loads(dialect.renderer(id="rl-1", parsed=asked, created=1_795_248_000).whole(whole))
    assert alike(dialect.whole(in_one)[0]) == expected
    assert in_one["created_at"] == "2026-11-21T08:00:00Z" and in_one["load_duration"] == 0
    assert in_one["total_duration"] == in_one["prompt_eval_duration"] + in_one["eval_duration"] > 0


def test_logprobs_are_said_to_those_who_asked() -> None:
    entries = [{"token": "a", "logprob": -0.5, "bytes": [97]}]
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": entries}}]}
    for wanted in (True, False):
        asked = CHAT.parse({"model": "m", "messages": [{"role": "user", "content": "x"}], "logprobs": wanted})
        (line,) = CHAT.renderer(id="rl-1", parsed=asked, created=1).chunk(chunk)
        assert json.loads(line).get("logprobs") == (entries if wanted else None)


def test_errors() -> None:
    assert CHAT.error(BackendDown("It is down.")) == {"error": "It is down."}
    assert CHAT.error_event(BackendDown("It is down.")) == b'{"error":"It is down."}\n'
