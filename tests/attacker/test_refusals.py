"""A backend whose refusals have no end, and whose answers break off: the question is answered all the same, or its
client sees what it would have seen without rlproxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from proxy.relay import in_flight
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

HEAD = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'


def whole(body: bytes, status: int = 200) -> bytes:
    return HEAD % (status, b"application/json") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


@contextlib.asynccontextmanager
async def before(home: Path, refusal: str, events: bytes = b"") -> AsyncIterator[Proxy]:
    """rlproxy before a vLLM that refuses to say log-probs in this way, or answers each chat with these bytes."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"content-length" in line), 0)
            body = await reader.readexactly(length)
            if not head.startswith(b"POST /v1/chat"):
                writer.write(whole(MODELS, 200 if b"/v1/models" in head else 404))
            elif events:
                writer.write(events)
            elif b'"logprobs":true' not in body:
                writer.write(whole(ANSWER))
            else:
                writer.write(HEAD % (400, b"application/json"))
                for _ in range(200 if refusal == "long" else 1):
                    writer.write(b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16)))
                    await writer.drain()
                await asyncio.sleep(0 if refusal == "long" else 5)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await proxy.start(backend__kind="vllm", backend__url=url, backend__model="m")
    try:
        yield proxy
    finally:
        await proxy.stop()
        server.close()
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("refusal", ["long", "endless"])
async def test_a_refusal_of_our_wishes_without_an_end_costs_no_answer(
    tmp_path: Path, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "REFUSAL_S", 0.2)
    async with before(tmp_path, refusal) as proxy, asyncio.timeout(20):
        response = await proxy.chat("hi", model="m")
        assert (await response.json())["choices"][0]["message"]["content"] == "hello"


async def test_events_that_break_off_where_none_were_asked_for_break_off(tmp_path: Path) -> None:
    """Before, their client got a whole answer without a word."""
    events = HEAD % (200, b"text/event-stream") + b"6\r\ndata: \r\n5\r\n"
    async with before(tmp_path, "", events) as proxy:
        response = await proxy.chat("hi", model="m")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
