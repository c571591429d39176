"""Streams as no server should send them, and some do: edited and stored as a reader of events sees them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.relay.codecs import Native
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

DONE = b"data: [DONE]\n\n"


def said(text: str, end: str | None = None, *, ids: Sequence[int] = (), **more: Any) -> dict[str, Any]:
    entries = [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in ids]
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": end, "logprobs": {"content": entries}}
    return {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "fake",
            "choices": [{**choice, "token_ids": list(ids), **more}]}  # fmt: skip


def event(value: Any, before: bytes = b"data: ", after: bytes = b"\n\n") -> bytes:
    return before + (value if isinstance(value, bytes) else json.dumps(value).encode()) + after


@contextlib.asynccontextmanager
async def answered_with(
    home: Path, kind: str, *reads: bytes, headers: bytes = b"", **flags: Any
) -> AsyncIterator[Proxy]:
    """rlproxy before a server that answers each chat with these reads, some time apart."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/chat" not in head.split(b"\r\n", 1)[0]:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + headers)
            writer.write(b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for read in reads:
                writer.write(b"%x\r\n%s\r\n" % (len(read), read))
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await proxy.start(backend__kind=kind, backend__url=url, backend__model="fake", **flags)
        try:
            yield proxy
        finally:
            await proxy.stop()


async def asked(proxy: Proxy, **more: Any) -> tuple[bytes, Any]:
    """Ask, and return the bytes of the answer with the newest stored completion."""
    response = await proxy.chat("x", stream=True, temperature=1.0, top_p=1.0, **more)
    raw = await response.read()
    found, *_ = await proxy.store.completions.page(limit=5)
    return raw, found


def texts(raw: bytes) -> list[str]:
    lines = [line[5:].strip() for line in raw.replace(b"\r", b"\n").split(b"\n") if line.startswith(b"data:")]
    return [json.loads(line)["choices"][0]["delta"].get("content") for line in lines if line.startswith(b"{")]


async def test_events_that_waited_to_be_read_are_cut_as_they_came(tmp_path: Path) -> None:
    """Comments have kept them from being parsed at once. By then the stream has had its first CR."""
    long = event(said("z" * 400))
    reads = [event(said("")), b": ping\n\n" + event(said("one ")), b": ping\n\n" + event(said("two ")), long[:300],
             long[300:] + b": ping\r\n\r\n", event(said("end", "stop")), DONE]  # fmt: skip
    async with answered_with(tmp_path, "openai", *reads) as proxy:
        raw, found = await asked(proxy)
        assert texts(raw) == ["", "one ", "two ", "z" * 400, "end"] and b"up-1" not in raw
        assert found.end.text == f"one two {'z' * 400}end" and found.status == "done"


@pytest.mark.parametrize("before", [b"data:\t", b"data:  ", b"data:\ndata: "], ids=["tab", "spaces", "an empty line"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_white_space_before_an_object_is_white_space(tmp_path: Path, before: bytes, path: str) -> None:
    reads = [event(said("he", ids=[7]), before), event(said("llo", "stop", ids=[8]), before) + DONE]
    body = {"model": "fake", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    async with answered_with(tmp_path, "vllm", *reads, backend__translate=["messages"]) as proxy:
        async with proxy.http.post(path, json=body) as response:
            raw = await response.read()
        assert b'"he"' in raw and b'"llo"' in raw and not any(ours in raw for ours in (b"up-1", b"-0.5", b"[7]"))


@pytest.mark.parametrize("done", [b"[DONE] ", b" [DONE]"])
async def test_what_clients_take_for_the_end_leaves_after_the_commit(tmp_path: Path, done: bytes) -> None:
    reads = [event(said("hello", "stop")), event(done), *[b": still here\n\n"] * 5]
    async with answered_with(tmp_path, "openai", *reads) as proxy:
        response = await proxy.chat("x", stream=True)
        await response.content.readuntil(b"[DONE]")
        (found,) = await proxy.store.completions.page(limit=5)
        assert found.status == "done"
        await response.read()


@pytest.mark.parametrize("kind", ["sglang", "llamacpp", "vllm", "openai"])
@pytest.mark.parametrize("odd", [[None], 5, [{"index": 0, "delta": "x"}]], ids=["null", "a number", "a text"])
async def test_an_event_that_nobody_understands_is_passed_on(tmp_path: Path, kind: str, odd: Any) -> None:
    reads = [event(said("he")) + event({"id": "up-1", "choices": odd}) + event(said("llo", "stop")), DONE]
    async with answered_with(tmp_path, kind, *reads) as proxy:
        raw, found = await asked(proxy)
        assert raw.endswith(DONE) and b'"llo"' in raw and found.status == "partial" and not found.end.exact
        assert found.end.text == "hello" and "its text may lack something" in found.end.error


@pytest.mark.parametrize("kind", ["openai", "vllm"])
async def test_a_line_end_within_an_object_ends_its_line(tmp_path: Path, kind: str) -> None:
    """The text after it is not data. No reader of events sees it, so it is not stored."""
    odd = event(b'{"id":\n"up-1","x":{"id":1},"choices":[{"index":0,"delta":{"content":"unseen"}}]}')
    for reads in ([odd, event(said("he", "stop")), DONE], [event(said("he", "stop")), odd, DONE]):
        async with answered_with(tmp_path / str(len(reads[0])), kind, *reads) as proxy:
            raw, found = await asked(proxy)
            assert raw.endswith(DONE) and odd in raw and "unseen" not in (found.end.text or "")


async def test_each_choice_says_who_speaks(tmp_path: Path) -> None:
    """Also where nothing else is left of the event that said it."""
    roles = [event(said("", index=n, delta={"role": "assistant", "content": ""}, ids=[3])) for n in (0, 1)]
    reads = [*roles, event(said("a")), event(said("b", index=1)), event(said("", "stop")),
             event(said("", "stop", index=1)), DONE]  # fmt: skip
    async with answered_with(tmp_path, "llamacpp", *reads) as proxy:
        raw, _ = await asked(proxy, n=2)
    lines = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    spoken = [choice["index"] for line in lines for choice in line["choices"] if choice["delta"].get("role")]
    assert spoken == [0, 1] and b"-0.5" not in raw


async def test_a_fault_of_ours_is_told_where_the_answer_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Native, piece: bytes) -> bytes:
        raise RuntimeError("words of somebody")

    monkeypatch.setattr(Native, "through", fails)
    async with answered_with(tmp_path, "openai", event(said("he", "stop")), DONE) as proxy:
        with pytest.raises(aiohttp.ClientError):
            await asked(proxy)
        async with asyncio.timeout(10):
            while not (rows := await proxy.store.completions.page(limit=5)) or not rows[0].end:
                await asyncio.sleep(0.01)
    found = rows[0]
    assert found.status == "error" and "RuntimeError" in found.end.error and "somebody" not in found.end.error


async def test_a_header_that_nobody_may_send_is_left_out(tmp_path: Path) -> None:
    reads = [event(said("he", "stop")), DONE]
    async with answered_with(
        tmp_path, "openai", *reads, headers=b"x-request-id: a\x7fb\r\nrequest-id: ab\r\n"
    ) as proxy:
        response = await proxy.chat("x", stream=True)
        assert (await response.read()).endswith(DONE)
        assert response.headers["request-id"] == "ab" and "x-request-id" not in response.headers
