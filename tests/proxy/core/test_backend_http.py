"""Waiting for a backend: silences are noticed, nothing that came is lost, and who cancels is heard."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from proxy.core.backend_answer import Answer
from proxy.core.backend_http import Connections, Disconnected, NotConnected, Silent
from proxy.core.errors import BackendBroke
from proxy.core.http_message import NoHttp
from proxy.core.upstream import read_whole
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


async def read(upstream: Answer, beat_s: float, came: list[bytes] | None = None) -> None:
    while (chunk := await upstream.some(beat_s)) != b"":
        if chunk is not None and came is not None:
            came.append(chunk)


@contextlib.asynccontextmanager
async def connections(read_timeout_s: float = 60.0) -> AsyncIterator[Connections]:
    http = Connections(5.0, read_timeout_s)
    yield http
    await http.close()


@pytest.fixture
def talker() -> Talker:
    return Talker()


@pytest.fixture
async def upstream(talker: Talker) -> AsyncIterator[Answer]:
    app = web.Application()
    app.router.add_get("/", talker.answer)
    async with TestServer(app) as server, connections() as http:
        yield await http.ask("GET", str(server.make_url("")).rstrip("/"), "/", {}, None)
        talker.says.put_nowait(b"")


async def test_every_silence_is_told_and_nothing_is_lost(talker: Talker, upstream: Answer) -> None:
    came: list[bytes | None] = []
    talker.says.put_nowait(b"first")
    while (chunk := await upstream.some(0.02)) != b"":
        came.append(chunk)
        if len(came) in (4, 7):
            talker.says.put_nowait(b"later")
        if len(came) == 10:
            talker.says.put_nowait(b"")
    assert came.count(None) >= 6 and came[1:4] == [None, None, None]
    assert [chunk for chunk in came if chunk] == [b"first", b"later", b"later"]


async def test_what_the_reader_does_with_a_piece_is_no_silence(talker: Talker, upstream: Answer) -> None:
    for piece in (b"a", b"b", b"c", b""):
        talker.says.put_nowait(piece)
    came: list[bytes] = []
    while (chunk := await upstream.some(0.05)) != b"":
        if chunk is not None:
            came.append(chunk)
            await asyncio.sleep(0.15)  # it is not cut short
    assert b"".join(came) == b"abc"


@pytest.mark.parametrize("beat_s", [60.0, 0.0])
async def test_who_cancels_is_heard(upstream: Answer, beat_s: float) -> None:
    reading = asyncio.create_task(read(upstream, beat_s))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_timeout_around_it_still_is_one(upstream: Answer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await read(upstream, 0.02)
    assert (task := asyncio.current_task()) is not None and task.cancelling() == 0


async def test_a_broken_answer_says_so(talker: Talker, upstream: Answer) -> None:
    upstream._connection.to.abort()
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
async def broken(raw: RecordedBackend) -> AsyncIterator[Answer]:
    """An answer whose connection is known to have broken before anybody has read of it."""
    async with connections() as http, asyncio.timeout(10):
        answer = await http.ask("GET", raw.url, "/", {}, None)
        while answer._broke is None:
            await asyncio.sleep(0)
        yield answer


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
        assert await read_whole(upstream) == said


@pytest.mark.parametrize("said", [b'{"a": [1, {"b": "}', b"12", b'"text"', b"", b"null", b"plain text"])
async def test_what_may_go_on_is_no_whole_answer(raw: RecordedBackend, said: bytes) -> None:
    raw.answer = framed("length", said)
    async with broken(raw) as upstream:
        with pytest.raises(BackendBroke):
            await read_whole(upstream)


async def test_a_connection_is_kept_and_used_again() -> None:
    async def said(request: web.Request) -> web.Response:
        return web.json_response({"length": len(await request.read())})

    app = web.Application()
    app.router.add_post("/v1/x", said)
    async with TestServer(app) as server, connections() as http:
        url = str(server.make_url("")).rstrip("/")
        first = await http.ask("POST", url, "/v1/x", {}, b"{}")
        assert await read_whole(first) == b'{"length": 2}'
        second = await http.ask("POST", url, "/v1/x", {}, None)
        assert await read_whole(second) == b'{"length": 0}' and first._connection is second._connection
        second.close()  # too late to matter
        third = await http.ask("POST", url, "/v1/x", {}, None)
        assert third._connection is first._connection
        third.close()  # unread
        assert (await http.ask("POST", url, "/v1/x", {}, None)).status == 200


async def test_a_connection_is_given_on_before_the_first_one_has_read_its_answer() -> None:
    """The answer came whole in one read, so the connection is free before who asked has heard of it."""

    async def said(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application()
    app.router.add_post("/", said)
    async with TestServer(app) as server, connections() as http:
        url = str(server.make_url("")).rstrip("/")

        async def ask(text: bytes, times: int) -> None:
            for _ in range(times):
                answer = await http.ask("POST", url, "/", {}, text)
                await asyncio.sleep(0)
                assert await read_whole(answer) == text

        async def given_up() -> None:
            for _ in range(50):
                task = asyncio.create_task(ask(b"left", 1))
                await asyncio.sleep(0.001)
                task.cancel()

        async with asyncio.timeout(30):
            await asyncio.gather(*(ask(b"%d" % n, 50) for n in range(8)), given_up())


@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000,
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
async def test_what_is_not_http_is_an_error(raw: RecordedBackend, head: bytes) -> None:
    raw.answer = [head]
    async with connections() as http:
        with pytest.raises(NoHttp):
            await http.ask("POST", raw.url, "/", {}, b"{}", unpack=True)


async def test_one_that_closes_without_a_word_and_one_that_is_not_there(raw: RecordedBackend) -> None:
    raw.answer = []
    async with connections() as http:
        with pytest.raises((Disconnected, ConnectionResetError)):
            await http.ask("POST", raw.url, "/", {}, b"{}")
        with pytest.raises(NotConnected):
            await http.ask("POST", "http://127.0.0.1:1", "/", {}, b"{}")


async def test_one_that_is_silent(talker: Talker) -> None:
    app = web.Application()
    app.router.add_get("/", talker.answer)
    async with TestServer(app) as server, connections(0.05) as http:
        answer = await http.ask("GET", str(server.make_url("")).rstrip("/"), "/", {}, None)
        talker.says.put_nowait(b"first")
        assert await answer.some(5.0) == b"first"
        with pytest.raises(BackendBroke):
            await answer.some(5.0)
        assert isinstance(answer._broke, Silent)
        talker.says.put_nowait(b"")


async def test_a_continue_is_no_answer_and_an_end_may_be_the_connections(raw: RecordedBackend) -> None:
    raw.answer = [b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\nall of it"]
    async with connections() as http:
        answer = await http.ask("POST", raw.url, "/", {}, b"{}")
        assert answer.status == 200 and "x" not in answer.headers
        assert await read_whole(answer) == b"all of it"


async def test_no_header_of_ours_has_a_line_end_in_it(raw: RecordedBackend) -> None:
    async with connections() as http:
        with pytest.raises(ValueError, match="line end"):
            await http.ask("POST", raw.url, "/", {"x": "a\r\nhost: b"}, b"{}")


async def test_a_large_body_goes_out_whole() -> None:
    async def length(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 100_000

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/", length)
    async with TestServer(app) as server, connections() as http:
        url = str(server.make_url("")).rstrip("/")
        assert await read_whole(await http.ask("POST", url, "/", {}, b"x" * 5_000_000)) == b"5000000"
        assert await read_whole(await http.ask("POST", url, "/", {}, pieces())) == b"5000000"


async def test_an_answer_to_a_question_that_its_server_did_not_read_is_not_lost() -> None:
    """It answers, and closes with most of the question unread. Here the next write fails before anything was read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refused = threading.Thread(target=_refuse, args=(listener,))
        refused.start()

        async def body() -> AsyncIterator[bytes]:
            yield b"x" * 1000
            refused.join()  # no turn of the loop: nothing is read meanwhile
            for _ in range(9):
                yield b"x" * 1000

        async with connections() as http:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            answer = await http.ask("POST", url, "/", CIMultiDict({"content-length": "10000"}), body())
            assert (answer.status, await read_whole(answer)) == (413, b"no")
    refused.join()


def _refuse(listener: socket.socket) -> None:
    taken, _ = listener.accept()
    with taken:
        head = taken.recv(1)
        assert head == b"P"
        taken.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
