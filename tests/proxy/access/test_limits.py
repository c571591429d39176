"""How much and how fast."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from config.sections import ServerSection
from proxy.access.keys import Principal
from proxy.access.limits import Limits
from proxy.access.pace import PATIENCE, SOON
from proxy.conversation.retries import Recording
from proxy.core.errors import Overloaded, TooMany
from scripts.harness.in_process import Proxy


def test_a_keys_requests_a_minute_are_its_own() -> None:
    limits = Limits(ServerSection(requests_per_minute=3))
    for _ in range(3):
        limits.spend(Principal("use", "a"))
    with pytest.raises(TooMany) as refused:
        limits.spend(Principal("use", "a"))
    assert refused.value.retry_after == 20
    limits.spend(Principal("use", "b"))
    for _ in range(100):
        Limits(ServerSection()).spend(Principal("use", "a"))


def test_as_many_at_once_and_no_more() -> None:
    limits = Limits(ServerSection(max_requests=1))
    limits.enter("requests", "a")
    with pytest.raises(Overloaded, match=r"1 requests under way \(server.max_requests\) already"):
        limits.enter("requests", "b")
    limits.enter("requests", "an admin", lambda: 1)
    for kind in ("events", "probes"):  # apart
        limits.enter(kind, "a")
    limits.leave("requests", "a")
    limits.leave("requests", "an admin")
    limits.enter("requests", "b")


def test_a_key_has_its_share_of_the_places() -> None:
    limits = Limits(ServerSection(max_requests=8))
    for _ in range(6):
        limits.enter("requests", "a")
    with pytest.raises(TooMany, match=r"This key has 6 requests under way .*, its share of 8") as refused:
        limits.enter("requests", "a")
    assert refused.value.retry_after
    limits.enter("requests", "b")


def test_no_more_places_than_there_are_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.access.limits.answers_at_once", lambda: 2)
    limits = Limits(ServerSection())
    limits.enter("requests", "a")
    limits.enter("requests", "b")
    with pytest.raises(Overloaded):
        limits.enter("requests", "c")


async def test_one_too_many_is_told_when_to_come_again(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__requests_per_minute=2)
    answers = [await proxy.chat("x") for _ in range(3)]
    assert [a.status for a in answers] == [200, 200, 429] and answers[2].headers["retry-after"] == "30"
    assert (await answers[2].json())["error"]["type"] == "rate_limit_error"
    async with proxy.http.get("/healthz") as response:
        assert response.status == 200


async def test_a_body_that_is_slow_but_comes_is_taken(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__slow_client_s=0.2)

    async def slowly(pieces: int) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()

        async def feed() -> None:
            for at in range(pieces):
                await asyncio.sleep(0.05)
                reader.feed_data(b'{"input":"' + b"a" * 2000 if at == 0 else b"a" * 2000)
            reader.feed_data(b'"}')
            reader.feed_eof()

        feeding.append(asyncio.create_task(feed()))
        return reader

    async def sent(reader: asyncio.StreamReader) -> object:
        while piece := await reader.read(65536):
            yield piece  # type: ignore[misc]

    feeding: list[asyncio.Task[None]] = []
    for headers in ({}, {"content-length": str(len('{"input":""}') + 20_000)}):
        async with proxy.http.put("/v1/echo", data=sent(await slowly(10)), headers=headers) as response:
            assert response.status == 200, await response.text()
            assert len(await response.read()) >= 20_000
    await asyncio.gather(*feeding)


async def test_a_body_that_passes_through_and_stops_is_not_waited_for(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__slow_client_s=0.2)
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PUT /v1/echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    async with asyncio.timeout(10):
        assert b" 408 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize("first", [b"a", b"x" * (1 << 22)])
@pytest.mark.parametrize("last", [b"", b"end", b"y" * (SOON + 1)])
async def test_the_end_of_a_stream_comes_whole_whether_or_not_its_client_keeps_up(first: bytes, last: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        request[PATIENCE] = 30.0
        response = Recording(200, CIMultiDict())
        await response.prepare(request)
        await response.write(first)
        await response.write_eof(last)
        assert bytes(response.sent) == first + last and response.has_left
        return response

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as http, http.get(server.make_url("/")) as response:
        assert await response.read() == first + last
