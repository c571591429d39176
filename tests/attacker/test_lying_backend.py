"""A backend that lies, leaves or says nothing: nobody waits for ever, and no question gets another's answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from proxy.core import upstream
from proxy.core.backend_answer import READ_AHEAD, Answer
from proxy.core.backend_http import Connections, Disconnected, NotConnected
from proxy.core.errors import BackendBroke
from proxy.core.http_message import NoHttp, address_of
from proxy.core.sharing.shares import Room

Says = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LARGEST = 1 << 24
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def whole(answer: Answer) -> bytes:
    return await upstream.read_whole(answer, Room(LARGEST))


@contextlib.asynccontextmanager
async def asked(says: Says, read_timeout_s: float = 60.0) -> AsyncIterator[tuple[Connections, str]]:
    """A server that does this with each of its connections, and somebody who asks it."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await says(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = Connections(5.0, read_timeout_s)
    try:
        async with asyncio.timeout(10):
            yield http, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await http.close()
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()


def answers(*pieces: bytes) -> Says:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

    return says


async def test_who_waits_is_told_when_all_connections_are_closed() -> None:
    async with asked(answers()) as (http, url), asyncio.timeout(5):
        waits = asyncio.create_task(http.ask("GET", url, "/", {}, None))
        while not http._all:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        await http.close()
        with pytest.raises(ConnectionAbortedError):
            await waits


async def test_who_reads_is_told_when_all_connections_are_closed() -> None:
    async with asked(answers(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")) as (http, url), asyncio.timeout(5):
        answer = await http.ask("GET", url, "/", {}, None)
        reads = asyncio.create_task(whole(answer))
        await asyncio.sleep(0.01)
        await http.close()
        with pytest.raises(BackendBroke):
            await reads


async def test_who_stops_reading_the_whole_leaves_no_connection() -> None:
    async with asked(answers(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")) as (http, url):
        reads = asyncio.create_task(whole(await http.ask("GET", url, "/", {}, None)))
        await asyncio.sleep(0.01)
        reads.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reads
        await asyncio.sleep(0.01)
        assert not http._all


async def test_a_body_that_takes_long_to_come_is_no_silence_of_the_backend() -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0.15)
            yield b"x"

    async with asked(says, 0.1) as (http, url):
        assert await whole(await http.ask("POST", url, "/", {}, pieces())) == b"{}"


async def test_a_body_that_nobody_takes_is_a_silence() -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async with asked(says, 0.1) as (http, url):
        with pytest.raises(TimeoutError):
            await http.ask("POST", url, "/", {}, b"x" * 20_000_000)


async def test_an_end_is_noticed_while_a_body_goes_out() -> None:
    """A server that has said its word and reads no more: what it was to get is not waited for."""

    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\n\r\ntoo large")
        await asyncio.sleep(0.05)
        writer.write_eof()
        await asyncio.sleep(5)

    async with asked(says) as (http, url), asyncio.timeout(3):
        answer = await http.ask("POST", url, "/", {}, b"x" * 20_000_000)
        assert await whole(answer) == b"too large"


async def test_an_empty_piece_does_not_end_a_body() -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"chunked" in head
        assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"", b"b"):
            yield piece

    async with asked(says) as (http, url):
        assert (await http.ask("POST", url, "/", {}, pieces())).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\ntrailer: ",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n1;ext=",
    ],
)
async def test_what_goes_on_for_ever_without_a_byte_of_the_body_breaks_off(head: bytes) -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        for _ in range(200):
            writer.write(b"y" * 65536)
            await writer.drain()
        await asyncio.sleep(5)

    async with asked(says) as (http, url), asyncio.timeout(3):
        answer = await http.ask("GET", url, "/", {}, None)
        with pytest.raises(BackendBroke):
            await whole(answer)


async def test_an_endless_number_of_continues_is_not_http() -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" * 1000)
            await writer.drain()

    async with asked(says) as (http, url):
        with pytest.raises(NoHttp):
            await http.ask("GET", url, "/", {}, None)


def packed(body: bytes, coding: bytes = b"gzip") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n%s" % (coding, len(body), body)


async def test_a_little_that_unpacks_to_very_much_is_unpacked_as_it_is_read() -> None:
    async with asked(answers(packed(gzip.compress(b"\0" * 50_000_000)))) as (http, url):
        answer = await http.ask("GET", url, "/", {}, None, unpack=True)
        sizes = [len(piece) async for piece in answer.pieces()]
        assert sum(sizes) == 50_000_000 and max(sizes) <= READ_AHEAD
        answer = await http.ask("GET", url, "/", {}, None, unpack=True)
        with pytest.raises(upstream.BodyTooLong) as raised:
            await whole(answer)
        assert raised.value.size <= LARGEST + READ_AHEAD
        answer.close()


@pytest.mark.parametrize("size", [READ_AHEAD - 1, READ_AHEAD, READ_AHEAD + 1, 2 * READ_AHEAD, 5 * READ_AHEAD + 7])
async def test_what_is_unpacked_in_parts_comes_whole_and_a_cut_is_noticed(size: int) -> None:
    body = random.Random(size).randbytes(1000) * (size // 1000 + 1)
    sent = gzip.compress(body[:size])
    async with asked(answers(packed(sent))) as (http, url):
        assert await whole(await http.ask("GET", url, "/", {}, None, unpack=True)) == body[:size]
    async with asked(answers(packed(sent[:-9]))) as (http, url):
        with pytest.raises(BackendBroke):
            await whole(await http.ask("GET", url, "/", {}, None, unpack=True))
    broken = bytearray(sent)
    broken[-5] ^= 255  # its checksum
    async with asked(answers(packed(bytes(broken)))) as (http, url):
        with pytest.raises((BackendBroke, NoHttp)):
            await whole(await http.ask("GET", url, "/", {}, None, unpack=True))


async def test_a_packed_body_may_be_empty_have_several_parts_or_no_head() -> None:
    raw = zlib.compressobj(wbits=-15)
    for said, coding, meant in (
        (b"", b"gzip", b""),
        (gzip.compress(b'{"a":') + gzip.compress(b"1}"), b"gzip", b'{"a":1}'),
        (raw.compress(b"{}") + raw.flush(), b"deflate", b"{}"),
        (zlib.compress(b"{}"), b"deflate", b"{}"),
    ):
        async with asked(answers(packed(said, coding))) as (http, url):
            assert await whole(await http.ask("GET", url, "/", {}, None, unpack=True)) == meant


async def test_a_body_packed_twice_is_not_read() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n"
    async with asked(answers(head)) as (http, url):
        with pytest.raises(NoHttp):
            await http.ask("GET", url, "/", {}, None, unpack=True)


@pytest.mark.parametrize(
    "more",
    [OK, b"left", b"HTT", b"\r\n", b"\n"],
)
async def test_what_follows_an_answer_is_nobodys(more: bytes) -> None:
    count = 0

    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while True:
            await reader.readuntil(b"\r\n\r\n")
            count += 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % count + more)

    async with asked(says) as (http, url):
        for n in (b"1", b"2", b"3"):
            assert await whole(await http.ask("GET", url, "/", {}, None)) == n


@pytest.mark.parametrize("status", [204, 304])
async def test_a_body_where_none_belongs_is_nobodys(status: int) -> None:
    said = b"HTTP/1.1 %d X\r\ncontent-length: 40\r\n\r\n" % status + OK
    async with asked(answers(said)) as (http, url):
        for _ in range(3):
            assert await whole(await http.ask("GET", url, "/", {}, None)) == b""
        for _ in range(3):
            assert await whole(await http.ask("HEAD", url, "/", {}, None)) == b""


async def test_half_a_head_is_a_word_of_an_answer() -> None:
    """Its server has taken the question: whoever asks again at once has it answered twice."""

    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
        await writer.drain()
        writer.close()

    async with asked(says) as (http, url):
        with pytest.raises(ConnectionError) as raised:
            await http.ask("POST", url, "/", {}, b"{}")
        assert not isinstance(raised.value, Disconnected)


async def test_a_server_that_closes_what_it_kept_open() -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with asked(says) as (http, url):
        assert await whole(await http.ask("GET", url, "/", {}, None)) == b"{}"
        with pytest.raises(Disconnected):  # who asks knows whether it may be answered twice
            await http.ask("POST", url, "/", {}, b"{}")
        await asyncio.sleep(0.01)
        assert not http._all
        for _ in range(3):
            assert await whole(await http.ask("GET", url, "/", {}, None)) == b"{}"


async def test_a_name_that_cannot_be_one() -> None:
    async with asked(answers()) as (http, _):
        with pytest.raises(NotConnected):
            await http.ask("GET", "http://a..b", "/", {}, None)


async def test_who_reads_slowly_is_no_silence_of_the_backend() -> None:
    """Nor are the first moments after it reads again."""
    async with asked(answers(b"HTTP/1.1 200 OK\r\ncontent-length: 900000\r\n\r\n" + b"x" * 800_000)) as (http, url):
        answer = await http.ask("GET", url, "/", {}, None)
        while not answer.paused:
            await asyncio.sleep(0.001)
        connection = answer._connection
        connection._last_received -= 100
        assert await answer.some(5.0)
        connection._look()
        assert answer._broke is None
        answer.close()


def test_an_address_is_sent_in_ascii() -> None:
    found = address_of("http://bücher.example:81/ü b/")
    assert found.head == b"host: xn--bcher-kva.example:81\r\n" and found.path == "/%C3%BC%20b"
    assert address_of("http://[::1]:8000/v")[:4] == ("::1", 8000, False, "/v")
    assert address_of("http://[::1]:8000").head == b"host: [::1]:8000\r\n"
    assert address_of("https://h").port == 443
