"""What an exchange does with silence, time, compression and the ends of streams."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy.relay import exchange, in_flight
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

LINES = {"model": "fake", "messages": [{"role": "user", "content": "a b c d"}]}
# Not what the name says, so that whoever unpacks it fails: nobody between client and backend may.
COMPRESSED = bytes(range(256)) * 10


def events(raw: bytes) -> list[dict[str, Any]]:
    found = [line.removeprefix(b"data: ") for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(one) for one in found if one != b"[DONE]"]


# Silence and time


async def test_lines_of_json_stay_lines_of_json_in_silence(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no comments, and an empty line breaks clients that parse each: so nothing is written."""
    monkeypatch.setattr(exchange, "KEEPALIVE_S", 0.02)
    proxy.backend.pause_s = 0.1
    async with proxy.http.post("/api/chat", json=LINES) as response:
        raw = await response.read()
    assert raw.endswith(b"\n") and all(json.loads(line) for line in raw[:-1].split(b"\n"))
    assert json.loads(raw.split(b"\n")[-2])["done"] is True


async def test_a_stream_may_take_longer_than_any_silence(proxy: Proxy) -> None:
    """The one time-out there is counts between two reads."""
    await proxy.stop()
    await proxy.start(backend__read_timeout_s=0.5)
    proxy.backend.pause_s = 0.15
    response = await proxy.chat("a b c d e f", stream=True)
    assert (await response.read()).endswith(b"data: [DONE]\n\n")


# Memory


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_leaves_nothing_for_the_garbage_collector(proxy: Proxy, stream: bool) -> None:
    """A cycle of 50 objects a request took a tenth of all CPU to find and free."""
    for _ in range(2):  # the first one makes what stays
        gc.freeze()  # a collection looks at this request alone, and not at all that other tests have imported
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await (await proxy.chat("a b c", stream=stream)).read()
            gc.collect()
            left = {type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith(("proxy", "store"))}
        finally:
            gc.set_debug(0)
            gc.unfreeze()
            gc.garbage.clear()
    # A connection to the backend is a cycle by itself. One may have been closed meanwhile, but not for each request.
    assert left <= {"_Connection"}


# Compression


@pytest.fixture
async def compressing() -> AsyncIterator[str]:
    """A server that says what it got and answers compressed, asked or not."""

    async def echo(request: web.Request) -> web.Response:
        encoding = request.headers.get("content-encoding", "")
        headers = {"content-encoding": encoding, "openai-accepts": request.headers.get("accept-encoding", "")}
        return web.Response(body=await request.read(), headers=headers)

    async def chat(request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": "hello"}
        body = {"id": "c", "model": "fake", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        packed = gzip.compress(json.dumps(body).encode())
        return web.Response(body=packed, headers={"content-encoding": "gzip", "content-type": "application/json"})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    app = web.Application()
    app.add_routes([
        web.post("/v1/echo", echo), web.post("/v1/chat/completions", chat), web.get("/v1/models", models),
    ])  # fmt: skip
    runner = web.AppRunner(app, auto_decompress=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
async def test_what_passes_through_is_never_unpacked(proxy: Proxy, compressing: str, encoding: str) -> None:
    await proxy.stop()
    await proxy.start(backend__url=compressing)
    headers = {"content-encoding": encoding, "accept-encoding": "br, zstd, gzip"}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(f"{proxy.url}/v1/echo", data=COMPRESSED, headers=headers) as response,
    ):
        assert await response.read() == COMPRESSED
        assert response.headers["content-encoding"] == encoding
        assert response.headers["openai-accepts"] == "br, zstd, gzip"
    async with (
        aiohttp.ClientSession(skip_auto_headers=["accept-encoding"]) as http,
        http.post(f"{proxy.url}/v1/echo", data=b"x", headers={"content-encoding": "identity"}) as response,
    ):
        assert response.headers["openai-accepts"] == "", "a client that unpacks nothing is sent nothing packed"


async def test_an_answer_that_comes_packed_all_the_same_is_read(proxy: Proxy, compressing: str) -> None:
    await proxy.stop()
    await proxy.start(backend__url=compressing)
    response = await proxy.chat("x")
    assert "content-encoding" not in response.headers
    assert (await response.json())["choices"][0]["message"]["content"] == "hello"
    found = await proxy.store.completions.get(response.headers["x-rl-completion-id"])
    assert found is not None and found.end is not None and found.end.text == "hello"


async def test_a_cookie_of_one_clients_answer_goes_out_with_no_others_question(proxy: Proxy) -> None:
    """A server behind a balancer sets one: nobody keeps it."""
    got: dict[str, str | None] = {}

    async def chat(request: web.Request) -> web.Response:
        got[(await request.json())["messages"][-1]["content"]] = request.headers.get("cookie")
        message = {"role": "assistant", "content": "hello"}
        body = {"id": "c", "model": "fake", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return web.json_response(body, headers={"set-cookie": "balancer=a; path=/"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await proxy.stop()
    await proxy.start(backend__url=f"http://127.0.0.1:{runner.addresses[0][1]}", backend__model="fake")
    first = await proxy.chat("x")
    assert "set-cookie" not in first.headers, "it would be a cookie of rlproxy's own origin"
    proxy.http.cookie_jar.clear()  # another client
    await proxy.chat("y")
    own = {"cookie": "balancer=b"}
    async with proxy.http.post("/v1/chat/completions", json={**LINES}, headers=own) as response:
        await response.read()
    assert (got["x"], got["y"], got["a b c d"]) == (None, None, "balancer=b")
    await runner.cleanup()


# Ends


@pytest.mark.parametrize("native", [True, False])
async def test_the_event_that_ends_a_broken_responses_stream_goes_on_with_the_count(proxy: Proxy, native: bool) -> None:
    if native:
        proxy.backend.speaks.add("responses")
    proxy.backend.mood = "cut"
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "a b c", "stream": True}) as response:
        got = events(await response.read())
    assert got[-1]["type"] == ("error" if native else "response.failed")
    assert [event["sequence_number"] for event in got] == list(range(len(got))) and len(got) > 5


# Ways


async def test_a_format_may_be_translated_though_the_backend_has_it(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(backend__translate=["responses"])
    proxy.backend.speaks |= {"responses", "completions"}
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "x"}) as response:
        id = response.headers["x-rl-completion-id"]
    await (await proxy.http.post("/v1/completions", json={"model": "fake", "prompt": "x"})).read()
    assert [path for path, _ in proxy.backend.asked] == ["/v1/chat/completions", "/v1/completions"]
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None and found.end.translated and found.end.exact
    assert (await proxy.get("/rl/status"))["backend"]["dialects"]["responses"] == "translated"


# A server of ours that dies


class Started(FakeBackend):
    """A process of ours, as its launcher sees it: its port closes a moment before its end is noticed."""

    weights, reason, pid = "/nowhere", "it is a fake", 0

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def wait(self) -> int:
        await self.ended.wait()
        return -9

    async def die(self) -> None:
        await self.stop()
        asyncio.get_running_loop().call_later(0.1, self.ended.set)


class Starter(FakeLauncher):
    """Starts one server after another."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: list[Started] = []

    async def start_server(
        self, weights: str, model: str, *, threads: int, key: str, log: Path, **_: object
    ) -> Started:
        self.servers.append(Started())
        await self.servers[-1].start()
        return self.servers[-1]


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Proxy]:
    starter = Starter()
    proxy = Proxy(tmp_path / "home", FakeBackend(), starter)
    proxy.kind = None
    proxy.flags |= {"backend.kind": "builtin", "backend.url": ""}
    await proxy.start()
    yield proxy
    await proxy.stop()
    for server in starter.servers:
        await server.stop()


async def test_a_question_that_finds_the_port_of_a_killed_server_closed_is_asked_of_the_next(ours: Proxy) -> None:
    assert isinstance(ours.launcher, Starter)
    assert await ours.say("first") == "You said: first "
    await ours.launcher.servers[0].die()
    assert await ours.say("second") == "You said: second "  # asked before anybody knew
    first, second = ours.launcher.servers
    assert len(first.requests) == 1 and len(second.requests) == 1


async def deadly(server: Started, *, resets: bool = False) -> asyncio.Server:
    """In its place: one that is killed by the first question. The connection ends, or is reset."""

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a connection that nobody used
            writer.close()
            return
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            writer.close()
            return
        port.close()
        if resets:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        server.ended.set()

    await server.stop()
    port = await asyncio.start_server(die, "127.0.0.1", int(server.url.rpartition(":")[2]))
    return port


async def test_a_question_that_a_killed_server_had_taken_is_asked_of_the_next(ours: Proxy) -> None:
    assert isinstance(ours.launcher, Starter)
    await deadly(ours.launcher.servers[0])
    assert await ours.say("again") == "You said: again "
    assert [r["messages"][-1]["content"] for r in ours.launcher.servers[1].requests] == ["again"]
    (found,) = await ours.store.completions.page(limit=5)
    assert found.status == "done", "it is one completion"


async def test_a_question_that_ends_servers_is_asked_of_two(ours: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third is for others."""
    assert isinstance(ours.launcher, Starter)
    start = ours.launcher.start_server

    async def starts(weights: str, model: str, **more: Any) -> Started:
        server = await start(weights, model, **more)
        if len(ours.launcher.servers) == 2:  # type: ignore[attr-defined]
            await deadly(server)
        return server

    monkeypatch.setattr(ours.launcher, "start_server", starts)
    await deadly(ours.launcher.servers[0])
    response = await ours.chat("kill")
    assert response.status == 503 and response.headers["retry-after"]
    assert await ours.say("next") == "You said: next "
    assert [r["messages"][-1]["content"] for r in ours.launcher.servers[2].requests] == ["next"]


@pytest.mark.parametrize(("kind", "status"), [("vllm", 200), ("openai", 503)])
async def test_a_question_that_somebody_elses_server_had_taken(tmp_path: Path, kind: str, status: int) -> None:
    """It is asked once more when that is started again; but not of a cloud, which may count both."""
    server = Started()
    await server.start()
    proxy = Proxy(tmp_path / "home", server, FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind=kind)
    try:
        await deadly(server, resets=True)
        asked = asyncio.create_task(proxy.chat("x"))
        await server.ended.wait()
        await server.start(server.port)
        assert (await asked).status == status and len(server.requests) == (status == 200)
    finally:
        await proxy.stop()
        await server.stop()


async def test_a_server_that_breaks_off_and_stays_away_is_not_waited_for_long(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "RESTARTED_S", 0.5)
    proxy.backend.mood = "drop"
    asked = asyncio.create_task(proxy.chat("x"))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    await proxy.backend.stop()
    assert (await asked).status == 503


async def test_a_question_of_which_a_word_was_answered_is_not_asked_again(proxy: Proxy) -> None:
    proxy.backend.mood = "cut"
    assert b"error" in await (await proxy.chat("a b c", stream=True)).read()
    assert len(proxy.backend.requests) == 1


async def test_a_server_that_takes_no_connection_is_not_waited_for_any_longer(tmp_path: Path) -> None:
    """`backend.connect_timeout_s` is what to wait: nobody has taken the question, so nothing is there to come back."""
    server = FakeBackend()
    await server.start()
    proxy = Proxy(tmp_path / "home", server, FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="vllm", backend__connect_timeout_s=0.2)
    await server.stop()
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", server.port))
        full.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        try:
            async with asyncio.timeout(5):
                assert (await proxy.chat("x")).status == 503
        finally:
            await proxy.stop()


async def test_who_leaves_while_an_id_of_its_own_is_stored_may_ask_again_by_it(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, gone, begin = asyncio.Event(), asyncio.Event(), proxy.store.completions.begin

    async def noticed(begun: asyncio.Future[None]) -> None:
        await begun
        stored.set()
        await gone.wait()

    monkeypatch.setattr(proxy.store.completions, "begin", lambda rows: asyncio.ensure_future(noticed(begin(rows))))
    ours = {"x-rl-completion-id": "mine", "x-stainless-retry-count": "0"}
    asks = asyncio.create_task(proxy.chat("a", headers=ours))
    async with asyncio.timeout(10):
        await stored.wait()
    asks.cancel()
    await asyncio.gather(asks, return_exceptions=True)
    gone.set()
    async with await proxy.chat("a", headers={**ours, "x-stainless-retry-count": "1"}) as response:
        assert response.status == 200 and response.headers["x-rl-completion-id"] == "mine"
    async with await proxy.chat("a", headers={"x-rl-completion-id": "mine"}) as response:
        assert response.status == 409
    assert (await proxy.get("/rl/completions/mine"))["status"] == "done"
