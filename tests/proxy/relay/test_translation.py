"""The engine of dialects: native or translated, learned once; streams, silence, errors and cut connections."""

from __future__ import annotations

import gzip
import io
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.base import Capabilities
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.conversation.conversations import arguments_in
from proxy.core import sse
from proxy.dialects import CHAT, DIALECTS, Dialect, Reply, dialect_at
from proxy.dialects.base import OutgoingRequest
from proxy.relay import exchange
from proxy.relay.codecs import Formats, Translated, about_what_was_asked
from scripts.fakes import backend as fake
from scripts.harness.in_process import Proxy
from tests.harness.chat_strategies import unhurried
from tests.harness.polling import Polls
from tests.harness.talks import events

BODIES = {
    "chat": {"messages": [{"role": "user", "content": "one two"}]},
    "completions": {"prompt": "one two"},
    "responses": {"input": "one two"},
    "messages": {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 99},
    "ollama": {"messages": [{"role": "user", "content": "one two"}]},
    "ollama-generate": {"prompt": "one two"},
}


async def ask(proxy: Proxy, name: str, **more: Any) -> tuple[int, bytes, str]:
    path = next(d for d in DIALECTS if d.name == name).paths[0]
    async with proxy.http.post(path, json={"model": "fake", **BODIES[name], **more}) as response:
        return response.status, await response.read(), response.headers.get("x-rl-completion-id", "")


# What is chosen


async def test_a_missing_route_is_asked_for_once(proxy: Proxy) -> None:
    assert (await proxy.get("/rl/status"))["backend"]["dialects"]["responses"] == "native"
    for _ in range(2):
        status, _, id = await ask(proxy, "responses")
        assert status == 200
    assert [path for path, _ in proxy.backend.asked] == ["/v1/responses"] + ["/v1/chat/completions"] * 2
    shown = (await proxy.get("/rl/status"))["backend"]["dialects"]
    assert shown["responses"] == "translated" and shown["chat"] == "native"
    row = (await proxy.get("/rl/completions"))["data"][0]
    assert row["id"] == id and row["translated"] is True and row["dialect"] == "responses"


async def test_a_model_that_is_not_there_teaches_nothing(proxy: Proxy) -> None:
    proxy.backend.speaks.add("completions")
    async with proxy.http.post("/v1/responses", json={"model": "other", "input": "x"}) as response:
        assert response.status == 404 and "does not exist" in (await response.json())["error"]["message"]
    assert (await proxy.get("/rl/status"))["backend"]["dialects"]["responses"] == "native"


@pytest.mark.parametrize(
    "said",
    [
        {"message": "Item with id 'rs_7' not found.", "type": "invalid_request_error", "param": "input", "code": None},
        {"message": "The model `fake` is a chat model.", "type": "NotFoundError", "param": None, "code": 404},
    ],
    ids=["item", "model"],
)
async def test_a_404_about_what_was_asked_teaches_nothing_and_passes_unchanged(
    proxy: Proxy, said: dict[str, Any]
) -> None:
    proxy.backend.speaks.add("responses")
    proxy.backend.lacks = {"error": said}
    status, raw, id = await ask(proxy, "responses")
    assert status == 404 and json.loads(raw) == proxy.backend.lacks
    row = await proxy.store.completions.get(id)
    assert row is not None and row.end is not None and "answered 404" in (row.end.error or "")
    proxy.backend.lacks = None
    assert (await ask(proxy, "responses"))[0] == 200
    assert [path for path, _ in proxy.backend.asked] == ["/v1/responses"] * 2


async def test_a_404_where_the_route_has_answered_before_is_not_about_the_route(proxy: Proxy) -> None:
    proxy.backend.speaks.add("responses")
    await ask(proxy, "responses")
    proxy.backend.lacks = {"detail": "Not Found"}
    status, raw, _ = await ask(proxy, "responses")
    assert status == 404 and json.loads(raw) == proxy.backend.lacks
    assert [path for path, _ in proxy.backend.asked] == ["/v1/responses"] * 2
    assert (await proxy.get("/rl/status"))["backend"]["dialects"]["responses"] == "native"


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ({"error": {"message": "Item with id 'rs_7' not found.", "param": "input"}}, True),
        ({"object": "error", "message": "The model `fake` does not exist.", "param": None}, True),
        ({"type": "error", "error": {"type": "not_found_error", "message": "model: fake"}}, True),
        ({"error": {"message": "Invalid URL (POST /v1/responses)", "param": None}}, False),
        ({"error": {"message": "Not fakeable", "param": None}}, False),
        ({"error": {"message": "fake has no /v1/responses", "param": None}}, False),
        ({"error": "model 'fake' not found"}, False),  # as good as any text: chat completions tell
        ({"detail": "Not Found"}, False),
        (["fake"], False),
    ],
)
def test_what_a_404_is_about(said: Any, about: bool) -> None:
    assert about_what_was_asked(json.dumps(said).encode(), "fake", "/v1/responses") is about


def test_a_404_in_plain_text_or_of_no_model_is_about_the_route() -> None:
    assert not about_what_was_asked(b"404 page not found", "fake", "/v1/responses")
    assert not about_what_was_asked(b'{"error": {"message": "File Not Found"}}', "", "/v1/responses")


def test_what_a_backend_speaks() -> None:
    formats = Formats(OpenAICompatible.capabilities)
    assert formats.table(["chat", "responses"]) == {"chat": "native", "responses": "untried"}
    formats.has("responses")
    assert formats.table(["responses"]) == {"responses": "native"}
    formats.lacks("responses")
    assert formats.native("responses")  # what has been seen is not unseen
    formats.lacks("messages")
    assert not formats.native("messages") and formats.table(["messages"]) == {"messages": "translated"}
    fixed = Formats(Capabilities(adapters=False, token_ids=False, logprobs=False))
    assert fixed.native("chat") and not fixed.native("responses")


def test_routes_know_their_dialect() -> None:
    for dialect in DIALECTS:
        assert dialect_at(dialect.paths[0]) is dialect and dialect_at("/s/me" + dialect.paths[0]) is dialect
    assert dialect_at("/v1/models") is None


async def test_capture_off(proxy: Proxy) -> None:
    async with proxy.http.post(
        "/v1/responses", json={"model": "fake", "input": "secret"}, headers={"x-rl-capture": "off"}
    ) as response:
        assert (await response.json())["status"] == "completed" and "x-rl-completion-id" not in response.headers
    assert await proxy.store.completions.page() == [] and "logprobs" not in proxy.backend.requests[-1]


async def test_a_request_that_came_compressed(proxy: Proxy) -> None:
    """It is read here, so it goes on as plain JSON, and must say so."""
    raw = gzip.compress(json.dumps({"model": "fake", **BODIES["chat"]}).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    async with proxy.http.post("/v1/chat/completions", data=raw, headers=headers) as response:
        assert response.status == 200, await response.text()
    assert "content-encoding" not in proxy.backend.headers[-1]
    for body, encoding in ((b"no gzip", "gzip"), (raw, "br")):
        async with proxy.http.post(
            "/v1/chat/completions", data=body, headers={**headers, "content-encoding": encoding}
        ) as response:
            assert response.status == 400
    bomb = gzip.compress(b" " * (33 * 1024 * 1024))
    async with proxy.http.post("/v1/chat/completions", data=bomb, headers=headers) as response:
        assert response.status == 413


async def test_passed_through_compressed(proxy: Proxy) -> None:
    raw = gzip.compress(b"x" * 1000)
    async with proxy.http.put("/v1/echo", data=raw, headers={"content-encoding": "gzip"}) as response:
        assert await response.read() == b"x" * 1000  # the fake undoes it: header and bytes still fit


async def test_thirty_megabytes(proxy: Proxy) -> None:
    raw = json.dumps({"model": "fake", "input": "x" * (30 * 1024 * 1024), "max_output_tokens": 2}).encode()
    async with proxy.http.post("/v1/responses", data=io.BytesIO(raw)) as response:
        assert response.status == 200 and (await response.json())["status"] == "incomplete"


@pytest.mark.parametrize("none", [2**40, -1, 1.5, "7", None])
async def test_ids_that_are_none_do_not_break_the_answer(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, none: Any
) -> None:
    monkeypatch.setattr(fake, "_ids", lambda words: [none for _ in words])
    status, _, id = await ask(proxy, "chat")
    found = await proxy.store.completions.get(id)
    assert status == 200 and found is not None and found.end is not None and found.status == "done"
    assert not found.end.exact and found.end.text == "You said: one two " and found.end.token_ids is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", list(BODIES))
async def test_every_dialect_is_captured_exactly(proxy: Proxy, name: str, stream: bool) -> None:
    status, raw, id = await ask(proxy, name, stream=stream)
    assert status == 200 and b"said: " in raw
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None and found.new.dialect == name
    assert found.status == "done" and found.end.exact and found.end.text == "You said: one two "
    assert found.end.translated is (name != "chat") and found.new.streamed is stream
    assert b"one two" not in found.new.request


# Streams


@pytest.mark.parametrize("name", ["responses", "completions"])
async def test_stored_before_the_terminal_event(proxy: Proxy, name: str) -> None:
    path = next(d for d in DIALECTS if d.name == name).paths[0]
    body = {"model": "fake", **BODIES[name], "stream": True}
    async with proxy.http.post(path, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        buffer = b""
        async for chunk in response.content.iter_any():
            buffer += chunk
            if b"event: response.completed" in buffer or b"[DONE]" in buffer:
                found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
                assert found is not None and found.status == "done"
                return
    pytest.fail("no terminal event")


async def test_translated_streams_are_not_buffered(proxy: Proxy) -> None:
    proxy.backend.pause_s = 0.2
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "a b c d", "stream": True}) as response:
        buffer = b""
        while b"output_text.delta" not in buffer:
            buffer += await response.content.readany()
        assert b"response.completed" not in buffer and not response.content.at_eof()


@pytest.mark.parametrize("name", ["chat", "responses"])
async def test_silence_is_filled(proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "KEEPALIVE_S", 0.05)
    proxy.backend.pause_s = 0.2
    _, raw, id = await ask(proxy, name, stream=True)
    assert raw.count(b": keepalive\n\n") >= 3
    quiet = raw.replace(b": keepalive\n\n", b"")
    assert all(part.startswith((b"data: ", b"event: ", b": a comment")) for part in quiet.split(b"\n\n")[:-1])
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None and found.end.exact


async def test_cut_off_mid_stream(proxy: Proxy) -> None:
    proxy.backend.mood = "cut"
    _, raw, id = await ask(proxy, "responses", stream=True)
    last = json.loads(raw.strip().split(b"\n\n")[-1].split(b"data: ", 1)[1])
    assert last["type"] == "response.failed" and "broke off" in last["response"]["error"]["message"]
    assert b"response.completed" not in raw
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert found.status == "partial" and found.end.text == "You said: " and found.end.translated
    proxy.backend.speaks.add("completions")
    _, raw, _ = await ask(proxy, "completions", stream=True)
    assert events(raw)[-1] == b"[DONE]"  # the fake's own route has no such mood


async def test_an_error_inside_a_stream(proxy: Proxy) -> None:
    proxy.backend.mood = "error-event"
    _, raw, id = await ask(proxy, "responses", stream=True)
    assert b'"delta":"said: "' in raw and b"out of memory" in raw and b"event: response.failed" in raw
    assert b"response.completed" not in raw
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert (found.status, found.end.text, found.end.error) == ("error", "You said: ", "out of memory")


async def test_a_stream_that_just_ends_whole(proxy: Proxy) -> None:
    proxy.backend.mood = "no-done"
    _, raw, id = await ask(proxy, "responses", stream=True)
    assert b"event: response.completed" in raw
    found = await proxy.store.completions.get(id)
    assert found is not None and found.status == "done"


async def test_garbage_is_marked(proxy: Proxy) -> None:
    proxy.backend.mood = "garbage"
    _, raw, id = await ask(proxy, "responses", stream=True)
    assert b"not json" not in raw and b"event: response.completed" in raw
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None and not found.end.exact


async def test_a_client_that_leaves(proxy: Proxy) -> None:
    proxy.backend.pause_s = 0.05
    body = {"model": "fake", "input": "a b c d e f g h i j", "stream": True}
    response = await proxy.http.post("/v1/responses", json=body)
    id, buffer = response.headers["x-rl-completion-id"], b""
    while b"said" not in buffer:
        buffer += await response.content.readany()
    response.close()
    async for _ in Polls():
        found = await proxy.store.completions.get(id)
        if found is not None and found.status != "pending" and proxy.backend.cancelled:
            break
    assert found is not None and found.status == "partial" and proxy.backend.cancelled == 1


# Errors


@pytest.mark.parametrize("name", list(BODIES))
async def test_the_backends_error_keeps_its_status_and_word(proxy: Proxy, name: str) -> None:
    proxy.backend.mood = "error"
    status, raw, id = await ask(proxy, name)
    assert status == 500
    said = json.loads(raw)["error"]
    assert (said if isinstance(said, str) else said["message"]) == "out of memory"
    found = await proxy.store.completions.get(id)
    assert found is not None and found.status == "error"


async def test_nonsense_is_a_bad_gateway(proxy: Proxy) -> None:
    proxy.backend.mood = "bad-json"
    status, raw, _ = await ask(proxy, "responses")
    assert status == 502 and json.loads(raw)["error"]["code"] == "backend_broke"
    assert (await proxy.store.completions.page())[0].status == "error"


async def test_a_backend_that_is_down(proxy: Proxy) -> None:
    await proxy.backend.stop()
    status, raw, _ = await ask(proxy, "responses")
    assert status == 503 and json.loads(raw)["error"]["code"] == "backend_down"


async def test_a_key_is_asked_for_in_the_dialects_shape(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="k", server__admin_key="a")
    status, raw, _ = await ask(proxy, "responses")
    assert status == 401 and json.loads(raw)["error"]["code"] == "invalid_api_key"


# Any cut, any mixture


PIECES = st.lists(
    st.one_of(
        st.text(min_size=1, max_size=5).map(lambda t: {"content": t}),
        st.text(min_size=1, max_size=5).map(lambda t: {"reasoning_content": t}),
        st.text(min_size=1, max_size=5).map(lambda t: {"refusal": t}),
        st.tuples(st.integers(0, 2), st.text(max_size=4)).map(
            lambda c: {
                "tool_calls": [{"index": c[0], "id": f"call-{c[0]}", "function": {"name": "", "arguments": c[1]}}]
            }
        ),
    ),
    max_size=8,
)


def chat_stream(deltas: list[dict[str, Any]], reason: str) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in [{"role": "assistant"}, *deltas]]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
    chunks = [*({"choices": [choice]} for choice in choices), usage]
    return b"".join(sse.event(json.dumps(chunk).encode()) for chunk in chunks) + sse.event(b"[DONE]")


def translate(dialect: Dialect, raw: bytes, cuts: list[int]) -> tuple[bytes, list[Reply]]:
    """As an exchange does it."""
    body = {"model": "m", "stream": True, **BODIES[dialect.name]}
    question = OutgoingRequest(b"", {}, body, dialect.parse(body))
    none = Capabilities(adapters=False, token_ids=False, logprobs=False)
    way, fold, splitter = (
        Translated(dialect, question, none, id="rl-1", model="m", created=1),
        CHAT.fold(),
        sse.EventSplitter(),
    )
    out = b""
    at = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    for a, b in pairwise(at):
        for event in splitter.feed(raw[a:b]):
            if way.reads.terminal(event):
                out += b"".join(way.end(event))
            else:
                fold.add(json.loads(event.data or b"{}"))
                out += way.event(event)
    return out, fold.replies()


@unhurried
@given(PIECES, st.sampled_from(["stop", "length", "tool_calls"]), st.lists(st.integers(0, 2000), max_size=30))
def test_any_cut_gives_the_same_bytes_and_loses_nothing(
    deltas: list[dict[str, Any]], reason: str, cuts: list[int]
) -> None:
    raw = chat_stream(deltas, reason)
    for dialect in DIALECTS:
        whole, replies = translate(dialect, raw, [])
        pieces, _ = translate(dialect, raw, cuts)
        assert _timeless(pieces) == _timeless(whole)
        if dialect.name == "responses":
            _adds_up(whole, replies[0])


def _timeless(raw: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n")]
    return [json.loads(line, object_hook=_untimed) for line in lines if line.startswith(b"{")]


def _untimed(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "completed_at" and not key.endswith("_duration")}


def _adds_up(raw: bytes, reply: Reply) -> None:
    """What a client of the Responses API has at the end is the reply that was captured."""
    fold = next(d for d in DIALECTS if d.name == "responses").fold()
    for event in _timeless(raw):
        fold.add(event)
    again = fold.replies()[0].message
    content = (reply.message.get("content") or "") + (reply.message.get("refusal") or "")
    assert sorted(again["content"]) == sorted(content)
    assert again.get("reasoning_content", "") == reply.message.get("reasoning_content", "")
    calls = {c["id"]: arguments_in(c["function"]) for c in again.get("tool_calls", ())}
    assert calls == {c["id"]: arguments_in(c["function"]) for c in reply.message.get("tool_calls", ()) if c.get("id")}


def test_byte_by_byte() -> None:
    call = {"tool_calls": [{"index": 0, "id": "call-0", "function": {"name": "look", "arguments": '{"a": "é"}'}}]}
    raw = chat_stream([{"reasoning_content": "hm"}, {"content": "é😀"}, call, {"content": "!"}], "tool_calls")
    for dialect in DIALECTS:
        whole, replies = translate(dialect, raw, [])
        single, again = translate(dialect, raw, list(range(len(raw))))
        assert _timeless(single) == _timeless(whole) and replies == again


@pytest.mark.parametrize(("name", "member"), [("messages", "messages"), ("responses", "input")])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_list_of_messages_is_for_the_server_to_judge(
    proxy: Proxy, name: str, member: str, stream: bool
) -> None:
    status, raw, id = await ask(proxy, name, **{member: []}, stream=stream)
    assert status == 400 and "no message has the role `user`" in json.loads(raw)["error"]["message"] and not id
    path, body = proxy.backend.asked[-1]
    assert path == "/v1/chat/completions" and body["messages"] == [] and body.get("stream", False) is stream
    proxy.backend.needs_user = False
    status, raw, id = await ask(proxy, name, **{member: []}, stream=stream)
    assert status == 200 and b"said" in raw
    assert not id and not (await proxy.get("/rl/completions"))["data"], "nothing was asked, so nothing is captured"
    assert (await ask(proxy, name, **{member: None}))[0] == 400


async def test_the_length_of_a_prompt_is_said_at_the_start(proxy: Proxy) -> None:
    for told, first in ((True, 3), (False, 0)):
        proxy.backend.tells_prompt_ids = told
        _, raw, _ = await ask(proxy, "messages", stream=True)
        said = [event.json() for event in sse.EventSplitter().feed(raw)]
        usages = [event["message"]["usage"] for event in said if event["type"] == "message_start"]
        assert [usage["input_tokens"] for usage in usages] == [first]
        assert [event["usage"]["input_tokens"] for event in said if event["type"] == "message_delta"] == [3]
