"""Odd servers behind a WebSocket: each request has its last message, and the connection goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.endless import MODEL, EndlessBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedAnswer, ScriptedServer
from scripts.harness.in_process import Proxy
from tests.proxy.web.test_response_socket import Socket, opened

MB: Final = 1 << 20
SSE: Final = {"content-type": "text/event-stream"}
JSON: Final = {"content-type": "application/json"}
OUTPUT: Final = [
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
]
WHOLE: Final = {"id": "up-1", "object": "response", "status": "completed", "model": "m", "output": OUTPUT}
EVENTS: Final[list[dict[str, Any]]] = [
    {"type": "response.created", "sequence_number": 0, "response": {**WHOLE, "status": "in_progress", "output": []}},
    {"type": "response.output_text.delta", "sequence_number": 1, "output_index": 0, "delta": "hello"},
    {"type": "response.completed", "sequence_number": 2, "response": WHOLE},
]
LINES: Final = [json.dumps(event).encode() for event in EVENTS]
STREAM: Final = b"".join(b"data: %s\n\n" % line for line in LINES)

ANSWERED: Final[dict[str, tuple[dict[str, str], Sequence[bytes]]]] = {
    "as it should be": (SSE, [STREAM]),
    "events that are called JSON": (JSON, [STREAM]),
    "events that are called text": ({"content-type": "text/plain"}, [STREAM]),
    "events without a type": ({}, [STREAM]),
    "events a byte at a time": (JSON, [bytes([byte]) for byte in STREAM]),
    "no blank lines": (SSE, [b"".join(b"data: %s\n" % line for line in LINES)]),
    "lines of JSON": ({"content-type": "application/x-ndjson"}, [b"\n".join(LINES) + b"\n"]),
    "lines of JSON that are called events": (SSE, [b"\n".join(LINES) + b"\n"]),
    "carriage returns": (SSE, [STREAM.replace(b"\n", b"\r")]),
    "no last blank line": (SSE, [STREAM[:-2]]),
    "an event that is not JSON": (SSE, [b"data: {broken\n\n" + STREAM]),
    "bytes that are not UTF-8": (SSE, [STREAM.replace(b"hello", b"hello\xff")]),
    "an event that is too deep": (SSE, [b"data: " + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"\n\n" + STREAM]),
    "a whole answer": (JSON, [json.dumps(WHOLE).encode()]),
    "a whole answer in lines": (JSON, [json.dumps(WHOLE, indent=2).encode()]),
}
REFUSED: Final[dict[str, tuple[int, bytes, str]]] = {
    "a page": (502, b"<html>Bad Gateway</html>", "Bad Gateway"),
    "nothing": (500, b"", "gave no reason"),
    "a list": (500, b"[1]", "[1]"),
    "a text": (400, b'"no"', "no"),
    "an error in words": (400, b'{"error":"just words"}', "just words"),
    "a detail": (422, b'{"detail":"field required"}', "field required"),
    "an answer that is a list": (200, b"[]", "is not a response"),
    "an answer that is a page": (200, b"<html>hello</html>", "is not a response"),
    "an answer of nothing": (200, b"", "is not a response"),
}


@contextlib.asynccontextmanager
async def before(home: Path, url: str, model: str = "m", **flags: Any) -> AsyncIterator[Proxy]:
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    backend = {"backend__kind": "openai", "backend__url": url, "backend__model": model}
    await proxy.start(**{**backend, **flags})
    try:
        yield proxy
    finally:
        await proxy.stop()


@contextlib.asynccontextmanager
async def scripted(home: Path, *answers: ScriptedAnswer) -> AsyncIterator[Proxy]:
    server = ScriptedServer(answers)
    await server.start()
    try:
        async with before(home, server.url) as proxy:
            yield proxy
    finally:
        await server.stop()


@pytest.mark.parametrize("case", ANSWERED)
async def test_each_answer_comes_to_its_end(tmp_path: Path, case: str) -> None:
    headers, reads = ANSWERED[case]
    async with scripted(tmp_path, ScriptedAnswer(headers=headers, reads=reads)) as proxy, opened(proxy) as socket:
        for _ in range(2):
            events = await Socket(socket).ask(model="m")
            assert events[-1]["type"] == "response.completed", events
            assert events[-1]["response"]["output"][0]["content"][0]["text"].startswith("hello")
            done = [event for event in events if event["type"] == "response.output_item.done"]
            assert len(done) == ("whole" in case)
        id = events[-1]["response"]["id"]
        completion = await proxy.store.completions.get(id)
    assert completion is not None and completion.end is not None and completion.end.text.startswith("hello")


@pytest.mark.parametrize("case", REFUSED)
async def test_each_refusal_is_said_in_words(tmp_path: Path, case: str) -> None:
    status, body, words = REFUSED[case]
    answer = ScriptedAnswer(status=status, headers=JSON, reads=[body])
    async with scripted(tmp_path, answer) as proxy, opened(proxy) as socket:
        for _ in range(2):
            (error,) = await Socket(socket).ask(model="m")
            assert error["type"] == "error" and error["status"] == (502 if status == 200 else status)
            assert words in error["error"]["message"], error


@pytest.mark.parametrize("response", [5, "text", None, ["id"], {"id": ["x"]}, {"id": None}])
async def test_a_last_event_without_a_response(tmp_path: Path, response: Any) -> None:
    last = json.dumps({"type": "response.completed", "response": response}).encode()
    answer = ScriptedAnswer(headers=SSE, reads=[b"data: %s\n\n" % last])
    async with scripted(tmp_path, answer) as proxy, opened(proxy) as socket:
        for _ in range(2):
            assert (await Socket(socket).ask(model="m", store=False))[-1]["type"] == "response.completed"


@pytest.mark.parametrize("call_id", [["x"], {"a": 1}, None, 5])
@pytest.mark.parametrize("kind", ["function_call", "function_call_output"])
async def test_a_call_whose_id_is_not_a_text(proxy: Proxy, kind: str, call_id: Any) -> None:
    async with opened(proxy) as socket:
        id = (await Socket(socket).ask())[-1]["response"]["id"]
        item = {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}", "output": "x"}
        assert (await Socket(socket).ask(previous_response_id=id, input=[item]))[-1]["type"]
        assert (await Socket(socket).ask())[-1]["type"] == "response.completed"


@pytest.mark.parametrize("mood", ["event", "answer", "refused"])
async def test_an_endless_answer_is_not_held(tmp_path: Path, mood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = EndlessBackend(24 * MB)
    await endless.start()
    endless.mood = mood
    try:
        bounds = {"server__max_body_bytes": MB, "server__max_held_bytes": 16 * MB}
        async with before(tmp_path, endless.url, MODEL, **bounds) as proxy, opened(proxy) as socket:
            last = (await Socket(socket).ask(model=MODEL))[-1]
            assert last["type"] == "error" and last["status"] in (500, 502), last
            assert endless.sent < 20 * MB, "the server was left"
            assert await proxy.get("/healthz") == {"ok": True}
    finally:
        await endless.stop()


COMPACTED: Final[dict[str, bytes]] = {
    "a stream": STREAM,
    "no usage and no time": json.dumps({"id": "up-1", "output": OUTPUT}).encode(),
    "odd items": json.dumps({**WHOLE, "output": [5, None, {"content": [5]}, {"content": "x"}, *OUTPUT]}).encode(),
    "no content": json.dumps({**WHOLE, "output": [{"type": "message", "content": None}, *OUTPUT]}).encode(),
}


@pytest.mark.parametrize("case", COMPACTED)
async def test_an_odd_answer_is_summed_up(tmp_path: Path, case: str) -> None:
    server = ScriptedServer([ScriptedAnswer(headers=JSON, reads=[COMPACTED[case]])])
    await server.start()
    try:
        async with before(tmp_path, server.url, backend__kind="vllm") as proxy:
            asked = {"model": "m", "input": [{"role": "user", "content": "x"}]}
            async with proxy.http.post("/v1/responses/compact", json=asked) as response:
                body = await response.json()
            assert response.status == 200 and body["output"][-1]["encrypted_content"].endswith("hello"), body
    finally:
        await server.stop()


@pytest.mark.parametrize("answer", [b"[]", b"hello", b"", b'{"output": null}', b'{"id": "up-1"}'])
async def test_what_is_no_response_is_not_summed_up(tmp_path: Path, answer: bytes) -> None:
    server = ScriptedServer([ScriptedAnswer(headers=JSON, reads=[answer])])
    await server.start()
    try:
        async with before(tmp_path, server.url, backend__kind="vllm") as proxy:
            asked = {"model": "m", "input": [{"role": "user", "content": "x"}]}
            async with proxy.http.post("/v1/responses/compact", json=asked) as response:
                assert response.status == 502 and "is not a response" in await response.text()
    finally:
        await server.stop()
