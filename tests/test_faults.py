"""Bad days of a backend, byte by byte over a real socket: what the client sees, what is stored, and what comes after.

Those that the fake backend of the proxy's own tests can have (reset, garbage, 500, silence) are in tests/proxy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.relay.early_stream import KEEPALIVE
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.recorded import RecordedBackend
from scripts.harness.in_process import Proxy
from store.records import Completion

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNK = '{"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": [%s]}'


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + (CHUNK % json.dumps(choice, ensure_ascii=False)).encode() + b"\n\n"


WHOLE = [event("Hé"), event("llo 😀"), event("!", "stop"), b"data: [DONE]\n\n"]


@pytest.fixture
async def raw() -> AsyncIterator[RecordedBackend]:
    fake = RecordedBackend()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, raw: RecordedBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    monkeypatch.setattr("proxy.relay.exchange.KEEPALIVE_S", 0.2)
    proxy = Proxy(tmp_path / "home", raw, FakeLauncher())  # type: ignore[arg-type]
    proxy.kind = None
    proxy.flags |= {"backend.kind": "openai", "backend.model": "fake", "backend.read_timeout_s": 1}
    await proxy.start()
    yield proxy
    await proxy.stop()


async def streamed(proxy: Proxy, raw: RecordedBackend, pieces: Sequence[bytes | float]) -> tuple[bytes, Completion]:
    raw.answer = [HEAD, *pieces]
    response = await proxy.chat("x", stream=True)
    body = await response.read()
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None
    return body, found


def error_of(body: bytes) -> tuple[bytes, Any]:
    """What came before the error event, and the error. The event is one of its own."""
    before, _, error = body.rpartition(b"\n\ndata: ")
    assert error.endswith(b"\n\n")
    return before + b"\n\n", json.loads(error)["error"]


async def recovered(proxy: Proxy, raw: RecordedBackend) -> None:
    """The next answer is whole, and can be rated."""
    raw.resets = False
    body, found = await streamed(proxy, raw, WHOLE)
    assert body.endswith(b"data: [DONE]\n\n")
    assert found.status == "done" and found.end is not None and found.end.text == "Héllo 😀!"
    assert (await proxy.rate(completion_id=found.new.id, rating="good"))[0] == 201


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("left", [b"\xc3", "é".encode() + b'"', b""])
async def test_it_ends_in_half_a_character_or_half_an_event(
    proxy: Proxy, raw: RecordedBackend, left: bytes, resets: bool
) -> None:
    """The error is an event of its own, and the half is left out before it: glued together nobody could read either."""
    half = event("é").partition("é".encode())[0] + left
    raw.resets = resets
    body, found = await streamed(proxy, raw, [WHOLE[0], 0.05, half, 0.05])
    before, error = error_of(body)
    assert error["code"] == "backend_broke"
    before = before.replace(KEEPALIVE, b"")  # a slow machine has signs of life in between
    assert before.count(b"data: ") == 1 and before.endswith(b"null}]}\n\n") and b"H\xc3\xa9" in before
    assert found.status == "partial" and found.end is not None and found.end.text == "Hé"
    await recovered(proxy, raw)


async def test_a_last_event_without_its_blank_line_is_passed_on_and_ended(proxy: Proxy, raw: RecordedBackend) -> None:
    """It is whole JSON; the answer is not, and the client hears that in an event of its own."""
    body, found = await streamed(proxy, raw, [WHOLE[0], WHOLE[1].rstrip()])
    before, error = error_of(body)
    assert error["code"] == "backend_broke" and "llo 😀".encode() in before
    assert found.status == "partial" and found.end is not None and found.end.text == "Héllo 😀"
    await recovered(proxy, raw)


FRAMES = {
    "chunked": (HEAD.replace(b"connection: close", b"transfer-encoding: chunked"), b"%x\r\n%s\r\n"),
    "length": (HEAD.replace(b"connection: close", b"content-length: 999999"), b""),
    "close": (HEAD, b""),
}


def at_once(framing: str, *said: bytes) -> list[bytes]:
    """Head and events in one packet, without the end of the body."""
    head, chunk = FRAMES[framing]
    return [head + b"".join(chunk % (len(each), each) if chunk else each for each in said)]


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("framing", FRAMES)
async def test_all_that_came_in_one_packet_with_the_break_arrives(
    proxy: Proxy, raw: RecordedBackend, framing: str, resets: bool
) -> None:
    """The connection has ended before the first byte of the answer is looked at."""
    raw.resets, raw.answer = resets, at_once(framing, *WHOLE[:2])
    response = await proxy.chat("x", stream=True)
    before, error = error_of(await response.read())
    assert error["code"] == "backend_broke"
    texts = [json.loads(one[6:])["choices"][0]["delta"]["content"] for one in before.split(b"\n\n") if one]
    assert texts == ["Hé", "llo 😀"]
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.status == "partial" and found.end is not None and found.end.text == "Héllo 😀"
    await recovered(proxy, raw)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("framing", FRAMES)
async def test_a_break_after_the_end_of_the_stream_is_none(
    proxy: Proxy, raw: RecordedBackend, framing: str, resets: bool
) -> None:
    """Only the end of the HTTP around it is missing, or the blank line of the last event."""
    for last in (WHOLE[3], WHOLE[3].rstrip()):
        raw.resets, raw.answer = resets, at_once(framing, *WHOLE[:3], last)
        response = await proxy.chat("x", stream=True)
        body = await response.read()
        assert body.endswith(last) and b'"error"' not in body and "llo 😀".encode() in body
        found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
        assert found is not None and found.status == "done" and found.end is not None
        assert found.end.text == "Héllo 😀!"


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("framing", FRAMES)
async def test_a_break_after_the_backends_own_error_adds_none(
    proxy: Proxy, raw: RecordedBackend, framing: str, resets: bool
) -> None:
    said = [WHOLE[0], b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', b'data: {"ha']
    raw.resets, raw.answer = resets, at_once(framing, *said)
    response = await proxy.chat("x", stream=True)
    body = await response.read()
    assert body.endswith(b"".join(said[1:])) and body.count(b'"error"') == 1
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.status == "error" and found.end is not None
    assert "out of memory" in (found.end.error or "")


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("framing", FRAMES)
async def test_all_that_came_before_the_break_passes_through(
    proxy: Proxy, raw: RecordedBackend, framing: str, resets: bool
) -> None:
    """Of a route that no dialect knows: the bytes, and then a break, as the backend's own connection had."""
    raw.resets, raw.answer = resets, at_once(framing, b"first ", b"second")
    came = b""
    async with proxy.http.get("/v1/unknown") as response:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for piece in response.content.iter_any():
                came += piece
    assert came == b"first second"


@pytest.mark.parametrize("resets", [False, True])
async def test_a_whole_answer_arrives_though_its_connection_breaks(
    proxy: Proxy, raw: RecordedBackend, resets: bool
) -> None:
    message = {"role": "assistant", "content": "Héllo"}
    said = {"id": "x", "model": "fake", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    body = json.dumps(said).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    raw.resets, raw.answer = resets, [head + b"%x\r\n%s\r\n" % (len(body), body)]
    response = await proxy.chat("x")
    assert response.status == 200 and (await response.json())["choices"][0]["message"] == message
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.status == "done" and found.end is not None and found.end.text == "Héllo"


async def test_half_an_event_after_the_end_is_passed_on(proxy: Proxy, raw: RecordedBackend) -> None:
    body, found = await streamed(proxy, raw, [*WHOLE[:3], b'data: {"ha'])
    assert body.endswith(b'\n\ndata: {"ha') and b'"error"' not in body
    assert found.status == "done" and found.end is not None and not found.end.exact


async def test_half_a_line_of_json(proxy: Proxy, raw: RecordedBackend) -> None:
    """Ollama's streams: the error is a line of its own."""
    line = b'{"model": "fake", "created_at": "", "message": {"role": "assistant", "content": "Hi"}, "done": false}\n'
    raw.answer = [HEAD.replace(b"text/event-stream", b"application/x-ndjson"), line, 0.05, line[:-30]]
    said = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    async with proxy.http.post("/api/chat", json=said) as response:
        first, second = (json.loads(each) for each in (await response.read()).splitlines())
    assert first["message"]["content"] == "Hi" and "broke off" in second["error"]


async def test_a_character_that_is_cut_between_two_packets_is_whole_again(proxy: Proxy, raw: RecordedBackend) -> None:
    all_of_it = b"".join(WHOLE)
    at = all_of_it.index("😀".encode()) + 2
    body, found = await streamed(proxy, raw, [all_of_it[:at], 0.05, all_of_it[at:]])
    assert "llo 😀".encode() in body
    assert found.status == "done" and found.end is not None and found.end.text == "Héllo 😀!"


async def test_a_stall_in_the_middle_of_a_stream_is_given_up(proxy: Proxy, raw: RecordedBackend) -> None:
    """After `backend.read_timeout_s`; until then the client hears that it is not forgotten."""
    body, found = await streamed(proxy, raw, [WHOLE[0], 30.0])
    before, error = error_of(body)
    assert error["code"] == "backend_broke" and b"\n\n: " in before
    assert found.status == "partial" and found.end is not None and found.end.text == "Hé"
    await recovered(proxy, raw)


async def test_a_byte_at_a_time_with_pauses_is_a_whole_answer(
    proxy: Proxy, raw: RecordedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte a second, a hundred times as fast. Where the client is told meanwhile that it is not forgotten, that is
    never in the middle of an event."""
    monkeypatch.setattr("proxy.relay.exchange.KEEPALIVE_S", 0.005)
    small = [event("Hé", "stop"), b"data: [DONE]\n\n"]
    drops: list[bytes | float] = []
    for byte in b"".join(small):
        drops += [bytes([byte]), 0.01]
    body, found = await streamed(proxy, raw, drops)
    said = [part for part in body.split(b"\n\n") if part and not part.startswith(b":")]
    assert len(said) == 2 and json.loads(said[0][6:])["choices"][0]["delta"]["content"] == "Hé", body
    assert said[1] == b"data: [DONE]" and body.count(b"\n\n: ") + body.startswith(b": ") > 2
    assert found.status == "done" and found.end is not None and found.end.text == "Hé"


async def test_half_a_body_that_is_no_stream(proxy: Proxy, raw: RecordedBackend) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n"
    raw.answer = [head, b'{"id": "caf\xc3']
    response = await proxy.chat("x")
    assert response.status == 502 and (await response.json())["error"]["code"] == "backend_broke"
    await proxy.stop()  # what is stored behind the answer is stored
    await proxy.start()
    (found,) = await proxy.store.completions.page()
    assert found.status == "error" and found.end is not None and "broke off" in (found.end.error or "")
    await recovered(proxy, raw)
