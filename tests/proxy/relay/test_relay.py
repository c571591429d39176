"""The relay over real sockets: fidelity, capture before the end, and bad days of either side."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from proxy.conversation.conversations import canonical
from proxy.conversation.incremental_json import Body, EarlierBodies
from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls
from tests.harness.talks import events


async def direct(proxy: Proxy, body: dict[str, Any]) -> bytes:
    """What the backend says to a client that has no proxy between."""
    async with aiohttp.ClientSession() as http, http.post(proxy.backend.url + "/v1/chat/completions", json=body) as r:
        return await r.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("extra", [{}, {"logprobs": True}, {"return_token_ids": True}, {"n": 3}, {"tools": [{}]}])
async def test_client_gets_the_backends_bytes_but_for_the_id(proxy: Proxy, stream: bool, extra: dict[str, Any]) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": 'hé \\ "q" 😀'}], "stream": stream, **extra}
    expected = await direct(proxy, body)
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        got = await response.read()
        ours = response.headers["x-rl-completion-id"]
    assert ours.startswith("rl-")
    assert got == expected.replace(b"chatcmpl-7", ours.encode())


async def test_the_capture_is_exact(proxy: Proxy) -> None:
    for stream in (False, True):
        response = await proxy.chat("one two", stream=stream, temperature=0.7)
        await response.read()
        found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
        assert found is not None and found.end is not None
        assert found.status == "done" and found.end.exact and found.end.text == "You said: one two "
        assert found.end.prompt_token_ids == [1, 2, 3] and len(found.end.token_ids or ()) == 4
        assert found.end.logprobs == pytest.approx([-0.4, -0.6, -0.4, -0.4])
        assert found.end.finish_reason == "stop"
        assert found.new.sampling == {"temperature": 0.7, "top_p": 1.0}
        assert found.new.version == 0 and found.new.streamed is stream


async def test_each_choice_is_a_completion_of_its_own(proxy: Proxy) -> None:
    for stream in (False, True):
        response = await proxy.chat("hi", n=3, stream=stream)
        await response.read()
        first = response.headers["x-rl-completion-id"]
        texts = []
        for id in (first, f"{first}.1", f"{first}.2"):
            found = await proxy.store.completions.get(id)
            assert found is not None and found.end is not None and found.end.exact
            texts.append(found.end.text)
        assert texts == ["You said: hi ", "You said: hi #1", "You said: hi #2"]


async def test_tool_calls_are_folded(proxy: Proxy) -> None:
    replies = []
    for stream in (False, True):
        response = await proxy.chat("hi", tools=[{"type": "function"}], stream=stream)
        await response.read()
        found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
        assert found is not None and found.end is not None and found.end.reply is not None
        replies.append(json.loads(found.end.reply.body))
    assert replies[0] == replies[1]
    assert replies[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"a": 2, "b": 1}}


async def test_stored_before_the_terminal_event(proxy: Proxy) -> None:
    """Whoever has seen [DONE] can rate: at the moment it arrives, the completion is in the store."""
    response = await proxy.chat("hi", stream=True)
    id = response.headers["x-rl-completion-id"]
    buffer = b""
    async for chunk in response.content.iter_any():
        buffer += chunk
        if b"[DONE]" in buffer:
            found = await proxy.store.completions.get(id)
            assert found is not None and found.status == "done"
            break
    else:
        pytest.fail("no [DONE]")
    status, _ = await proxy.rate(completion_id=id, rating="good")
    assert status == 201


async def test_streams_are_not_buffered(proxy: Proxy) -> None:
    proxy.backend.pause_s = 0.2
    response = await proxy.chat("a b c d e f", stream=True)
    first = await response.content.readany()
    assert b"[DONE]" not in first and not response.content.at_eof()
    response.close()


async def test_client_that_leaves_cancels_upstream_and_the_part_is_kept(proxy: Proxy) -> None:
    proxy.backend.pause_s = 0.05
    response = await proxy.chat("a b c d e f g h i j k l", stream=True)
    id = response.headers["x-rl-completion-id"]
    buffer = b""
    while b"said" not in buffer:
        buffer += await response.content.readany()
    response.close()
    async for _ in Polls():
        found = await proxy.store.completions.get(id)
        if found is not None and found.status != "pending" and proxy.backend.cancelled:
            break
    assert found is not None and found.end is not None
    assert found.status == "partial" and found.end.text.startswith("You said: ") and proxy.backend.cancelled == 1


async def test_client_that_leaves_before_the_answer(proxy: Proxy) -> None:
    proxy.backend.mood = "hang"
    asking = asyncio.create_task(proxy.chat("x"))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    asking.cancel()
    async for _ in Polls():
        rows = await proxy.store.completions.page()
        if rows and rows[0].status != "pending" and proxy.backend.cancelled:
            break
    assert rows[0].status == "partial" and proxy.backend.cancelled == 1


async def test_backend_cut_off_mid_stream(proxy: Proxy) -> None:
    proxy.backend.mood = "cut"
    response = await proxy.chat("a b c", stream=True)
    got = events(await response.read())
    assert got[-1]["error"]["code"] == "backend_broke" and b"[DONE]" not in got
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.end is not None
    assert found.status == "partial" and found.end.text == "You said: "


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b c"}]}),
        ("/v1/completions", {"prompt": "a b c"}),
    ],
)
async def test_a_stream_that_the_backend_gives_up_in_its_own_words_is_an_error(
    proxy: Proxy, path: str, body: dict[str, Any]
) -> None:
    proxy.backend.mood = "error-event"
    proxy.backend.speaks.add("completions")
    async with proxy.http.post(path, json={"model": "fake", "stream": True, **body}) as response:
        got, id = events(await response.read()), response.headers["x-rl-completion-id"]
    assert got[-2]["error"]["message"] == "out of memory" and got[-1] == b"[DONE]"
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert (found.status, found.end.text, found.end.error) == ("error", "You said: ", "out of memory")


async def test_stream_that_ends_without_a_finish(proxy: Proxy) -> None:
    proxy.backend.mood = "stop-without-done"
    response = await proxy.chat("a", stream=True)
    assert events(await response.read())[-1]["error"]["code"] == "backend_broke"


async def test_garbage_in_a_stream_passes_and_is_marked(proxy: Proxy) -> None:
    proxy.backend.mood = "garbage"
    response = await proxy.chat("a b c", stream=True)
    raw = await response.read()
    assert b"data: {not json at all\n\n" in raw and raw.endswith(b"data: [DONE]\n\n")
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.end is not None
    assert not found.end.exact and "could not be understood" in (found.end.inexact_reason or "")


async def test_nonsense_body_passes_and_is_an_error(proxy: Proxy) -> None:
    proxy.backend.mood = "bad-json"
    response = await proxy.chat("a")
    assert await response.read() == b"<html>oops</html>"
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.status == "error"


async def test_the_backends_own_error_passes_unchanged(proxy: Proxy) -> None:
    proxy.backend.mood = "error"
    response = await proxy.chat("a")
    assert response.status == 500 and (await response.json())["error"]["message"] == "out of memory"
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.status == "error"


async def test_backend_that_is_down_and_comes_back(proxy: Proxy) -> None:
    port = proxy.backend.port
    await proxy.say("before")
    await proxy.backend.stop()
    response = await proxy.chat("a")
    error = (await response.json())["error"]
    assert response.status == 503 and error["code"] == "backend_down" and response.headers["retry-after"]
    await proxy.backend.start(port)
    assert await proxy.say("again") == "You said: again "


async def test_backend_that_drops_the_connection(proxy: Proxy) -> None:
    proxy.backend.mood = "drop"
    response = await proxy.chat("a")
    assert response.status == 503
    assert len(proxy.backend.requests) == 2  # once more, in case only an idle connection had been closed


async def test_backend_that_answers_with_what_is_no_http(proxy: Proxy) -> None:
    proxy.backend.mood = "no-http"
    response = await proxy.chat("a", headers={"x-rl-completion-id": "mine"})
    assert response.status == 502 and (await response.json())["error"]["code"] == "backend_broke"
    assert len(proxy.backend.requests) == 1  # it is there, and would say the same
    while (found := await proxy.store.completions.get("mine")) is None or found.status == "pending":
        await asyncio.sleep(0.01)
    assert found.status == "error"


async def test_backend_that_stays_silent(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(backend__read_timeout_s=0.2)
    proxy.backend.mood = "hang"
    response = await proxy.chat("a")
    assert response.status == 503 and "does not answer" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{not json", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        (b'{"model": 3, "messages": [{"role": "user", "content": "x"}]}', "model"),
        (b'{"model": 3, "messages": [{"content": "x"}]}', "model"),
        (b'{"n": 129, "messages": [{"role": "user", "content": "x"}]}', "n"),
    ],
)
async def test_bad_bodies(proxy: Proxy, body: bytes, param: str | None) -> None:
    """All else is the backend's to refuse (tests/wire/requests)."""
    async with proxy.http.post("/v1/chat/completions", data=body) as response:
        error = (await response.json())["error"]
    assert response.status == 400 and error["type"] == "invalid_request_error" and error["param"] == param
    assert not proxy.backend.requests


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
async def test_a_bug_of_ours_is_an_error_like_any_other(
    proxy: Proxy, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.relay.relay.head_facts", lambda *args: 1 / 0)
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    async with proxy.http.post(path, json=body) as response:
        error = (await response.json())["error"]
    assert response.status == 500 and "ZeroDivisionError" in (error if path == "/api/chat" else error["message"])


async def test_a_bug_in_our_books_costs_nobody_the_answer(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.relay.capture.request_row.turn_of", lambda *args: 1 / 0)
    assert await proxy.say("x") == "You said: x "
    async with proxy.http.get("/rl/status") as response:
        assert "ZeroDivisionError" in (await response.json())["problem"]
    monkeypatch.undo()
    assert await proxy.say("y") == "You said: y "


async def test_body_over_the_limit(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_body_bytes=2048)
    response = await proxy.chat("x" * 5000)
    assert response.status == 413 and (await response.json())["error"]["code"] == "body_too_large"


async def test_a_client_chooses_its_id_once(proxy: Proxy) -> None:
    first = await proxy.chat("a", headers={"x-rl-completion-id": "mine-1"})
    assert (await first.json())["id"] == "mine-1"
    second = await proxy.chat("a", headers={"x-rl-completion-id": "mine-1"})
    assert second.status == 409 and (await second.json())["error"]["code"] == "conflict"
    third = await proxy.chat("a", headers={"x-rl-completion-id": "bad id"})
    assert third.status == 400
    found = await proxy.store.completions.get("mine-1")
    assert found is not None and found.status == "done"


@pytest.mark.parametrize("last", [False, True], ids=["messages in the middle", "messages at the end"])
async def test_a_long_conversation_is_asked_and_kept_as_it_was_said(proxy: Proxy, last: bool) -> None:
    """From its second turn on, a body is read where it says something new, and searched around its messages only."""
    talk = [{"role": "user" if at % 2 == 0 else "assistant", "content": f'{at} "model" ' * 90} for at in range(41)]
    marked = {"role": "user", "content": [{"type": "text", "text": "new", "cache_control": {"type": "ephemeral"}}]}
    answers = ({"role": "assistant", "content": f"answer {at}"} for at in range(9))
    bodies = []
    for said in ([], [next(answers), marked], [next(answers), {"role": "user", "content": "again"}], [marked]):
        talk = [*talk, *said]
        head: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "model"}}]}
        body = {**head, "model": "fake", "messages": talk} if last else {"messages": talk, "model": "fake", **head}
        bodies.append((body, dict(body, messages=[*talk[:30], {"role": "user", "content": "another way"}])))
    for body in (body for pair in bodies for body in pair):
        async with proxy.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
        asked = proxy.backend.requests[-1]
        assert asked == {**body, "logprobs": True, "return_token_ids": True}
        assert [name for name in asked if name in body] == list(body)
        assert found is not None and found.end is not None and found.end.exact
        assert found.new.prompt == tuple(map(canonical, body["messages"]))


async def test_capture_off(proxy: Proxy) -> None:
    response = await proxy.chat("secret", headers={"x-rl-capture": "off"})
    assert (await response.json())["id"] == "chatcmpl-7" and "x-rl-completion-id" not in response.headers
    assert await proxy.store.completions.page() == []
    assert "logprobs" not in proxy.backend.requests[0]


async def test_capture_off_is_not_remembered_either(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[Body] = []
    monkeypatch.setattr(EarlierBodies, "remember", lambda _, body: bodies.append(body))
    await proxy.chat("secret", headers={"x-rl-capture": "off"})
    assert bodies == []
    await proxy.chat("no secret")
    assert len(bodies) == 1


async def test_a_model_that_is_not_ours_is_passed_on(proxy: Proxy) -> None:
    response = await proxy.chat("a", model="other")
    assert response.status == 404 and response.headers["x-rl-adapter"] == "none"


async def test_the_rest_passes_byte_for_byte(proxy: Proxy) -> None:
    raw = bytes(range(256)) * 100
    async with proxy.http.put("/v1/echo?a=%20b&c", data=raw, headers={"x-rl-user": "me"}) as response:
        assert await response.read() == raw
        assert response.headers["openai-method"] == "PUT" and response.headers["openai-path"] == "/v1/echo?a=%20b&c"
    async with proxy.http.get("/api/tags") as response:
        assert response.status == 200


async def test_a_session_in_the_path(proxy: Proxy) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    async with proxy.http.post("/s/abc/v1/chat/completions", json=body) as response:
        found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.new.session == "abc"
    async with proxy.http.get("/s/abc/v1/echo?q=1") as response:
        assert response.headers["openai-path"] == "/v1/echo?q=1"


async def test_headers_stay_between_us(proxy: Proxy) -> None:
    await proxy.chat("x", headers={"x-rl-user": "me", "x-custom": "yes", "authorization": "Bearer theirs"})
    seen = proxy.backend.headers[0]
    assert seen["x-custom"] == "yes" and seen["authorization"] == "Bearer theirs"
    assert not any(name.startswith("x-rl-") for name in seen)


async def test_unknown_fields_reach_the_backend(proxy: Proxy) -> None:
    await proxy.chat("x", strange={"deep": [1, 2.50, None]}, big=2**70)
    assert proxy.backend.requests[0]["strange"] == {"deep": [1, 2.5, None]}
    assert proxy.backend.requests[0]["big"] == 2**70


async def test_two_hundred_at_once(proxy: Proxy) -> None:
    answers = await asyncio.gather(*(proxy.chat(f"number {i}", stream=i % 2 == 0) for i in range(200)))
    ids = {r.headers["x-rl-completion-id"] for r in answers}
    await asyncio.gather(*(r.read() for r in answers))
    assert len(ids) == 200
    assert (await proxy.store.stats.counts())["done"] == 200
