"""Waiting for a backend: silences are noticed, nothing that came is lost, and who cancels is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.errors import BackendBroke
from proxy.upstream import chunks


class Talker:
    """Says what it is told to, when it is told to; an empty piece ends the answer."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while said := await self.says.get():
            await response.write(said)
        return response


async def read(upstream: aiohttp.ClientResponse, beat_s: float) -> None:
    async for _ in chunks(upstream, beat_s):
        pass


@pytest.fixture
def talker() -> Talker:
    return Talker()


@pytest.fixture
async def upstream(talker: Talker) -> AsyncIterator[aiohttp.ClientResponse]:
    app = web.Application()
    app.router.add_get("/", talker.answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http, http.get(server.make_url("/")) as response:
        yield response
        talker.says.put_nowait(b"")


async def test_every_silence_is_told_and_nothing_is_lost(talker: Talker, upstream: aiohttp.ClientResponse) -> None:
    came: list[bytes | None] = []
    talker.says.put_nowait(b"first")
    async for chunk in chunks(upstream, 0.02):
        came.append(chunk)
        if len(came) in (4, 7):
            talker.says.put_nowait(b"later")
        if len(came) == 10:
            talker.says.put_nowait(b"")
    assert came.count(None) >= 6 and came[1:4] == [None, None, None]
    assert [chunk for chunk in came if chunk] == [b"first", b"later", b"later"]


async def test_what_the_reader_does_with_a_piece_is_no_silence(
    talker: Talker, upstream: aiohttp.ClientResponse
) -> None:
    for piece in (b"a", b"b", b"c", b""):
        talker.says.put_nowait(piece)
    came: list[bytes] = []
    async for chunk in chunks(upstream, 0.05):
        if chunk is not None:
            came.append(chunk)
            await asyncio.sleep(0.15)  # it is not cut short
    assert b"".join(came) == b"abc"


@pytest.mark.parametrize("beat_s", [60.0, 0.0])
async def test_who_cancels_is_heard(upstream: aiohttp.ClientResponse, beat_s: float) -> None:
    reading = asyncio.create_task(read(upstream, beat_s))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_timeout_around_it_still_is_one(upstream: aiohttp.ClientResponse) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await read(upstream, 0.02)
    assert (task := asyncio.current_task()) is not None and task.cancelling() == 0


async def test_a_broken_answer_says_so(talker: Talker, upstream: aiohttp.ClientResponse) -> None:
    assert upstream.connection is not None and upstream.connection.transport is not None
    upstream.connection.transport.abort()
    with pytest.raises(BackendBroke):
        await read(upstream, 0.02)
