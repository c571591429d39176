"""Streams folded into replies: the same as by the plainest way to do it, and nothing of an event is changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.ndjson import NdjsonSplitter
from proxy.core.sse import EventSplitter
from proxy.dialects import CHAT, DIALECTS, RESPONSES, Dialect, Reply
from proxy.dialects.base import extend
from tests.harness.chat_strategies import unhurried

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
_entries = st.fixed_dictionaries(
    {"logprob": st.floats(-9, 0), "token": st.sampled_from(["a", " é", "\ufffd"])},
    optional={"bytes": st.none() | st.just([240, 159])},
)
_logprobs = st.none() | st.fixed_dictionaries({"content": st.none() | st.lists(_entries, max_size=3)})
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
                reply.pieces = (reply.pieces or []) + [_bytes_behind(one) for one in content]
    for reply in replies.values():
        reply.usage, reply.prompt_token_ids = usage, prompt
        if reply.token_ids is not None or b"" in (reply.pieces or ()):
            reply.pieces = None
        for call in reply.message.get("tool_calls", ()):
            del call["index"], call["ids"], call["last"], call["names"]
    return [replies[index] for index in sorted(replies)]


def _bytes_behind(entry: dict[str, Any]) -> bytes:
    """Empty where it does not tell."""
    if entry.get("bytes") is not None:
        return bytes(entry["bytes"])
    return b"" if entry["token"] == "\ufffd" else entry["token"].encode()


def _add_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    """Each call with its index, its ids so far, the pieces of its name, and the place of its last piece."""
    for delta in deltas:
        index, id, function = delta.get("index", 0), delta.get("id"), delta.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        mine = sorted((call for call in calls if call["index"] == index), key=lambda call: call["last"])
        newest = mine[-1] if mine else None
        call = next((call for call in mine if id in call["ids"]), newest)
        if call is None or (id and call["ids"] and id not in call["ids"] and name and not _repeats(call, name)):
            call = {"type": "function", "function": {"name": "", "arguments": ""}, "index": index, "ids": []}
            call["names"] = []
            calls.append(call)
        call["last"] = max((one.get("last", 0) for one in calls), default=0) + 1
        if id:
            call["id"] = id
            call["ids"].append(id)
        call["names"] += [name] if name else []
        call["function"]["name"] = _spelled(call["names"])
        call["function"]["arguments"] += arguments or ""


def _repeats(call: dict[str, Any], name: str) -> bool:
    """The arguments of these tests are never a whole object."""
    return call["names"][:1] == [name] and call["function"]["arguments"] != ""


def _spelled(names: list[str]) -> str:
    longest = max(names, key=len, default="")
    return longest if all(longest.startswith(name) for name in names) else "".join(names)


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


def test_a_content_that_is_neither_text_nor_parts_is_not_understood() -> None:
    """All else in the event is."""
    fold = CHAT.fold()
    with pytest.raises(TypeError):
        fold.add({"choices": [{"index": 0, "delta": {"content": 5, "refusal": "no"}, "finish_reason": "stop"}]})
    (reply,) = fold.replies()
    assert reply.text == "no" and reply.finish_reason == "stop"


def test_an_empty_list_takes_no_tool_call_away() -> None:
    fold = CHAT.fold()
    fold.add({"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "a", "function": {"name": "look"}}]}}]})
    fold.add({"choices": [{"index": 0, "delta": {"content": "", "tool_calls": []}, "finish_reason": "tool_calls"}]})
    (reply,) = fold.replies()
    assert [call["function"]["name"] for call in reply.message["tool_calls"]] == ["look"]


def _piece(text: str, id: str | None = None, name: str | None = None, index: int | None = 0) -> dict[str, Any]:
    """One tool call delta, without the members that are None."""
    delta: dict[str, Any] = {"function": {"arguments": text, **({"name": name} if name else {})}}
    return delta | ({} if id is None else {"id": id}) | ({} if index is None else {"index": index})


TWO = {
    "numbered": [_piece('{"x":', "a", "f"), _piece("1}"), _piece('{"y":2}', "b", "g", 1)],
    "numbered from 1": [_piece('{"x":1}', "a", "f", 1), _piece('{"y":2}', "b", "g", 2)],
    "all at index 0": [_piece('{"x":1}', "a", "f"), _piece('{"y":2}', "b", "g")],
    "without an index": [_piece('{"x":1}', "a", "f", None), _piece('{"y":2}', "b", "g", None)],
    "an id at first": [_piece("", "a", "f"), _piece('{"x":1}'), _piece("", "b", "g"), _piece('{"y":2}')],
    "an empty id later": [_piece("", "a", "f"), _piece('{"x":1}', ""), _piece("", "b", "g"), _piece('{"y":2}', "")],
    "the id each time": [_piece("", "a", "f"), _piece('{"x":1}', "a"), _piece("", "b", "g"), _piece('{"y":2}', "b")],
    "a new id each time": [_piece("", "a", "f"), _piece('{"x":1}', "c"), _piece("", "b", "g"), _piece('{"y":2}', "d")],
}


@pytest.mark.parametrize("deltas", TWO.values(), ids=TWO)
@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.name != "completions"], ids=lambda d: d.name)
def test_parallel_calls_are_told_apart_however_a_server_numbers_them(
    dialect: Dialect, deltas: list[dict[str, Any]]
) -> None:
    body = {"model": "m", "prompt": "p", "input": "p", "messages": [{"role": "user", "content": "p"}], "max_tokens": 9}
    say, fold = dialect.renderer(id="rl-1", parsed=dialect.parse(body), created=1), dialect.fold()
    out = [piece for delta in deltas for piece in say.chunk({"choices": [{"delta": {"tool_calls": [delta]}}]})]
    before, last = say.end()
    splitter = EventSplitter() if dialect.framing == "sse" else NdjsonSplitter()
    for event in splitter.feed(b"".join([*out, *before, last])):
        if event.data != b"[DONE]":
            fold.add(event.json())
    (reply,) = fold.replies()
    calls = [call["function"] for call in reply.message["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [("f", {"x": 1}), ("g", {"y": 2})]
    ids = [call.get("id") for call in reply.message["tool_calls"]]
    assert dialect.name.startswith("ollama") or len(set(ids)) == 2


# Pieces of one call: of its name, and of its arguments.
NAMES = {
    "once": ([("read_file", ""), ("", '{"a"'), ("", ":1}")], "read_file"),
    "with each piece": ([("read_file", ""), ("read_file", '{"a"'), ("read_file", ":1}")], "read_file"),
    "with all at once": ([("read_file", '{"a":1}'), ("read_file", "")], "read_file"),
    "grown": ([("read", ""), ("read_file", ""), ("", '{"a":1}')], "read_file"),
    "fragments": ([("read", ""), ("_file", ""), ("", '{"a":1}')], "read_file"),
    "the last fragment with arguments": ([("read", ""), ("_file", '{"a"'), ("", ":1}")], "read_file"),
    "fragments that are alike": ([("go", ""), ("go", ""), ("", '{"a":1}')], "gogo"),
    "fragments, then whole": ([("read", ""), ("_file", ""), ("read_file", '{"a":1}')], "read_file"),
    "letters": ([*((letter, "") for letter in "read_file"), ("", '{"a":1}')], "read_file"),
}


@pytest.mark.parametrize(("pieces", "name"), NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("repeats_id", [True, False])
@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.name != "completions"], ids=lambda d: d.name)
def test_a_name_in_fragments_and_a_name_that_is_repeated_are_told_apart(
    dialect: Dialect, pieces: list[tuple[str, str]], name: str, repeats_id: bool
) -> None:
    """In the record of chat, and in all that is said of it in other formats."""
    tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in (name, "read")]
    plain = [{"type": "function", "name": n, "input_schema": {"type": "object"}} for n in (name, "read")]
    body = {"model": "m", "prompt": "p", "input": "p", "messages": [{"role": "user", "content": "p"}], "max_tokens": 9}
    body["tools"] = plain if dialect.name in ("responses", "messages") else tools
    asked = dialect.parse(body)
    say, fold, chat = dialect.renderer(id="rl-1", parsed=asked, created=1), dialect.fold(), CHAT.fold(asked.tools)
    deltas = [_piece(text, "c" if repeats_id or not at else None, part) for at, (part, text) in enumerate(pieces)]
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]} for delta in deltas]
    out = [piece for chunk in chunks for piece in say.chunk(chunk)]
    before, last = say.end()
    for chunk in chunks:
        chat.add(chunk)
    splitter = EventSplitter() if dialect.framing == "sse" else NdjsonSplitter()
    for event in splitter.feed(b"".join([*out, *before, last])):
        if event.data != b"[DONE]":
            fold.add(event.json())
    for reply in (*chat.replies(), *(fold.replies() if dialect is not CHAT else ())):
        (call,) = reply.message["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, {"a": 1})


@pytest.mark.parametrize("id", [None, "new"])
def test_two_calls_of_one_tool_without_ids_of_their_own(id: str | None) -> None:
    """The first one's arguments are whole, and an object begins."""
    fold = CHAT.fold()
    for at, text in enumerate(('{"x":', "1}", '{"x":', "2}")):
        name = "f" if text == '{"x":' else None
        fold.add({"choices": [{"delta": {"tool_calls": [_piece(text, id and f"{id}{at}", name)]}}]})
    (reply,) = fold.replies()
    assert [call["function"]["arguments"] for call in reply.message["tool_calls"]] == ['{"x":1}', '{"x":2}']


def test_a_call_taken_up_again_by_its_id_goes_on() -> None:
    fold = CHAT.fold()
    for delta in (_piece('{"x":', "a", "f"), _piece('{"y":', "b", "g"), _piece("1}", "a"), _piece("2}", "b")):
        fold.add({"choices": [{"delta": {"tool_calls": [delta]}}]})
    (reply,) = fold.replies()
    calls = [(call["id"], call["function"]["arguments"]) for call in reply.message["tool_calls"]]
    assert calls == [("a", '{"x":1}'), ("b", '{"y":2}')]


@pytest.mark.parametrize("wrong", [{"arguments": 5}, {"name": ["look"]}])
def test_a_call_that_is_no_text_is_not_understood(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        CHAT.fold().add({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": wrong}]}}]})


def test_a_list_grows_in_place_and_what_it_grew_by_stays() -> None:
    first, more = [1], [2, 3]
    so_far = extend(None, first)
    assert extend(so_far, more) is so_far and so_far == [1, 2, 3]
    assert (first, more) == ([1], [2, 3])
    with pytest.raises(TypeError):
        extend(so_far, "ab")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_no_answer_is_no_reply(dialect: Any) -> None:
    assert dialect.fold().replies() == []


@pytest.mark.parametrize("response", [None, 5, [], "x", True, {}])
def test_a_response_that_ends_without_itself_is_final_all_the_same(response: Any) -> None:
    """Else its row would wait for a response in the background."""
    fold = RESPONSES.fold()
    fold.add({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}})
    fold.add({"type": "response.output_text.delta", "output_index": 0, "delta": "hi"})
    fold.add({"type": "response.completed", "response": response})
    (reply,) = fold.replies()
    assert fold.open_id is None and reply.finish_reason == "stop"
    assert "hi" in str(reply.message)
