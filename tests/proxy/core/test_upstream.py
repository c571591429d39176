"""Waiting for a backend: silences are noticed, nothing that came is lost, and who cancels is heard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.core.errors import BackendBroke
from proxy.core.upstream import chunks, whole
from scripts.fakes.recorded import RecordedBackend

HEADS = {
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\ncontent-length: 999999\r\n\r\n",
}


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


async def read(upstream: aiohttp.ClientResponse, beat_s: float, came: list[bytes] | None = None) -> None:
    async for chunk in chunks(upstream, beat_s):
        if chunk is not None and came is not None:
            came.append(chunk)


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


@pytest.fixture
async def raw() -> AsyncIterator[RecordedBackend]:
    fake = RecordedBackend()
    await fake.start()
    yield fake
    await fake.stop()


def framed(framing: str, *said: bytes) -> list[bytes]:
    """An answer that lacks its end, in one packet with its head."""
    body = [b"%x\r\n%s\r\n" % (len(each), each) if framing == "chunked" else each for each in said]
    return [HEADS[framing] + b"".join(body)]


@contextlib.asynccontextmanager
async def broken(raw: RecordedBackend) -> AsyncIterator[aiohttp.ClientResponse]:
    """An answer whose connection is known to have broken before anybody has read of it."""
    async with aiohttp.ClientSession() as http, http.get(raw.url) as response:
        async with asyncio.timeout(10):
            while response.content.exception() is None:
                await asyncio.sleep(0)
        yield response


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("framing", HEADS)
async def test_what_had_come_before_a_break_is_read_before_the_error(
    raw: RecordedBackend, framing: str, resets: bool
) -> None:
    """Also what nobody had asked for yet when the connection broke, as a client that reads slowly leaves it."""
    raw.answer, raw.resets = framed(framing, b"first ", b"second ", b"x" * 100_000), resets
    came: list[bytes] = []
    async with broken(raw) as upstream:
        with pytest.raises(BackendBroke):
            await read(upstream, 0.02, came)
    assert b"".join(came) == b"first second " + b"x" * 100_000


async def test_half_of_a_chunk_is_read_before_the_error(raw: RecordedBackend) -> None:
    raw.answer = [HEADS["chunked"] + b"5\r\nwhole\r\n9\r\nhal"]
    came: list[bytes] = []
    async with broken(raw) as upstream:
        with pytest.raises(BackendBroke):
            await read(upstream, 0.02, came)
    assert b"".join(came) == b"wholehal"


@pytest.mark.parametrize("said", [b'{"a": [1, {"b": "}"}]}', b'{"a": 1}\n', b" [1, 2] "])
@pytest.mark.parametrize("framing", HEADS)
async def test_an_object_that_has_come_to_its_end_is_a_whole_answer(
    raw: RecordedBackend, framing: str, said: bytes
) -> None:
    """Nothing can follow it but blanks: only the end of the HTTP around it is missing."""
    raw.answer = framed(framing, said)
    async with broken(raw) as upstream:
        assert await whole(upstream) == said


@pytest.mark.parametrize("said", [b'{"a": [1, {"b": "}', b"12", b'"text"', b"", b"null", b"plain text"])
async def test_what_may_go_on_is_no_whole_answer(raw: RecordedBackend, said: bytes) -> None:
    raw.answer = framed("length", said)
    async with broken(raw) as upstream:
        with pytest.raises(BackendBroke):
            await whole(upstream)
