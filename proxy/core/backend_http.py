"""HTTP/1.1 towards the backend: a question, the head of its answer, and the body as it comes.

Owns connections and their keeping, and what is said of one that breaks. A body's pieces are joined once a read of the
socket, and one task waits for them. No piece has a queue, a timer, or an object of its own. httptools (llhttp)
parses. Not here: which headers are sent, and what the bytes mean. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache
from typing import Any, Final

import aiohappyeyeballs  # asyncio's own leaks sockets where who waits is cancelled
import httptools

from proxy.core.backend_answer import READ_AHEAD, Answer
from proxy.core.http_message import (
    AT_ONCE,
    Body,
    NoHttp,
    ServerAddress,
    address_of,
    frame_chunks,
    header_lines,
)
from proxy.core.server_url import route_path

KEEPALIVE_S: Final = 4.0  # below uvicorn's 5 s, else a connection may be closed under a request
HEAD_LIMIT: Final = 256 * 1024  # bytes of an answer's head, and of all that has no byte of the body in it
_BODILESS: Final = ("GET", "HEAD", "OPTIONS", "DELETE")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


class NotConnected(OSError):
    """Nobody took the question."""


class Disconnected(ConnectionError):
    """The connection was closed without a word of an answer: it had been kept open, or the server ended."""


class Silent(TimeoutError):
    """The question was taken, and nothing came for `backend.read_timeout_s`."""


class Connections:
    """Those to all servers; what is free is kept for KEEPALIVE_S."""

    def __init__(self, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._free: dict[tuple[str, int, bool], list[tuple[float, _Connection]]] = {}
        self._all: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def ask(
        self,
        method: str,
        url: str,
        target: str,
        headers: Mapping[str, str] | bytes,
        body: Body,
        *,
        unpack: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> Answer:
        """The head of the answer. `target`: the route as at a server's root, in the bytes that are sent. `on_sent` is
        called once the question is on its way.

        A question that changes nothing is asked once more where a connection that was kept has just been closed.

        Raises NotConnected, Disconnected, Silent, NoHttp, OSError, TimeoutError; with `unpack` a body in gzip is one
        without.
        """
        address = address_of(url)
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        if isinstance(body, bytes):
            length = b"content-length: %d\r\n" % len(body)
        elif body is None:
            length = b"" if method in _BODILESS else b"content-length: 0\r\n"
        else:
            length = b"transfer-encoding: chunked\r\n"
        route = f"{method} {route_path(address.path, target)} HTTP/1.1\r\n".encode()
        head = b"%s%s%s%s\r\n" % (route, address.head, lines, length)
        free = self._free.get(address[:3])
        while free:
            since, idle = free.pop()
            if self._loop.time() - since >= KEEPALIVE_S or idle.to.is_closing():
                idle.close()
                continue
            try:
                return await idle.ask(method, head, body, unpack, on_sent)
            except (Disconnected, ConnectionResetError, BrokenPipeError):
                if method not in _SAFE or body is not None:
                    raise
                break
        connection = await self._connected(address)
        return await connection.ask(method, head, body, unpack, on_sent)

    async def _connected(self, address: ServerAddress) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                addresses = await self._loop.getaddrinfo(address.host, address.port, type=1)
                sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=0.25, interleave=1)
                security: dict[str, Any] = {"ssl": _tls(), "server_hostname": address.host} if address.tls else {}
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self, address), sock=sock, **security
                )
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {self._connect_timeout_s:g} s") from error
        except OSError as error:
            raise NotConnected(error.errno, error.strerror or str(error)) from error
        except UnicodeError as error:
            raise NotConnected(f"{address.host} is not the name of a machine") from error
        return connection

    def add(self, connection: _Connection) -> None:
        self._all.add(connection)

    def keep(self, connection: _Connection) -> None:
        self._free.setdefault(connection.address[:3], []).append((self._loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(KEEPALIVE_S, self._sweep)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)

    def _sweep(self) -> None:
        self._sweeper, due = None, self._loop.time() - KEEPALIVE_S
        for address, free in list(self._free.items()):
            for since, connection in free:
                if since <= due:
                    connection.close()
            self._free[address] = [entry for entry in free if entry[0] > due]
            if not self._free[address]:
                del self._free[address]
        if self._free:
            self._sweeper = self._loop.call_later(KEEPALIVE_S, self._sweep)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._free.clear()
        for connection in list(self._all):
            connection.close()
        await asyncio.sleep(0)


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Connection(asyncio.Protocol):
    """One connection; what httptools calls has the names that it wants."""

    def __init__(self, pool: Connections, address: ServerAddress) -> None:
        self.address = address
        self.to: asyncio.Transport
        self._pool = pool
        self.loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []  # of an answer's body, since the read of the socket began
        self.on_body = self._pieces.append  # without a Python call for each piece
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._answer: Answer | None = None  # the one that is awaited or comes
        self._head: asyncio.Future[Answer] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._last_received = 0.0  # when something came last
        self._timer: asyncio.TimerHandle | None = None
        self._bodiless = 0  # bytes that came since a byte of the body, or since the question

    async def ask(
        self, method: str, head: bytes, body: Body, unpack: bool, on_sent: Callable[[], None] | None = None
    ) -> Answer:
        self._answer = answer = Answer(self, unpack=unpack, headless=method == "HEAD")
        head_future: asyncio.Future[Answer] = self.loop.create_future()
        self._head = head_future
        self._last_received, self._bodiless = self.loop.time(), 0
        if self._timer is None:
            self._timer = self.loop.call_later(self._pool.read_timeout_s, self._look)
        if body is None:
            self.to.write(head)
        elif isinstance(body, bytes) and len(body) < AT_ONCE:
            self.to.write(head + body)
        else:
            self._sending = self.loop.create_task(self._send(head, body))
        try:
            if on_sent is not None:
                on_sent()
            return await head_future
        except BaseException:
            if self._answer is answer:  # else another one's is awaited by now
                self.close()
            raise

    async def _send(self, head: bytes, body: bytes | AsyncIterator[bytes]) -> None:
        """A body in pieces, so that others are served between them; as far as its server wants it."""
        try:
            self.to.write(head)
            async for piece in frame_chunks(body):
                if self.to.is_closing():
                    return  # `connection_lost` tells whoever waits
                self.to.write(piece)
                await (self._drained or asyncio.sleep(0))
                self._last_received = self.loop.time()
        except Exception as error:
            self._fail(error)

    def pause(self) -> None:
        self.to.pause_reading()

    def read_on(self) -> None:
        self._last_received = self.loop.time()
        self.to.resume_reading()

    def close(self) -> None:
        """Whoever still waits for an answer is told."""
        self._fail(ConnectionAbortedError("it was closed here"))

    # What the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.to = transport
        self._pool.add(self)

    def pause_writing(self) -> None:
        self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._last_received = self.loop.time()
        answer = self._answer
        if answer is None:  # nobody asked
            self.to.abort()
            return
        self._bodiless += len(data)
        try:
            try:
                self._parser.feed_data(data)
            finally:
                if self._pieces:
                    self._pass_on()
        except httptools.HttpParserUpgrade:
            self._fail(NoHttp("it wants another protocol"))
        except (httptools.HttpParserError, zlib.error, NoHttp) as error:
            self._fail(NoHttp(str(error.__context__ or error)))
        if self._bodiless > HEAD_LIMIT:
            excess = "its head is" if self._head is not None else "what is no part of its body is"
            self._fail(NoHttp(f"{excess} over {HEAD_LIMIT} bytes"))
        answer.tell()

    def eof_received(self) -> None:
        if self.to.get_write_buffer_size():  # else the transport waits for it to be taken
            self.to.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lost(self)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(error, ConnectionError) and self._head is not None and not self.address.tls:
            self._read_rest()
        if self._answer is None:
            return
        if error is None and self._answer.until_closed:
            self.on_message_complete()
        elif error is not None:
            self._fail(error)
        elif self._head is None or self._bodiless:
            self._fail(ConnectionError("the connection was closed in the middle of it"))
        else:
            self._fail(Disconnected("the connection was closed"))

    def _read_rest(self) -> None:
        """Take what came before a write failed: a server may answer a question that it does not read to its end."""
        with contextlib.suppress(OSError):
            descriptor = self.to.get_extra_info("socket").fileno()  # it is closed after this
            while self._answer is not None and (data := os.read(descriptor, READ_AHEAD)):
                self.data_received(data)

    def _look(self) -> None:
        """Break off where it is silent for too long; a slow reader or question is not its doing."""
        self._timer = None
        if self._answer is None:
            return
        asks = self._sending is not None and not self._sending.done() and self._drained is None
        if self._answer.paused or asks:
            self._last_received = self.loop.time()
        due = self._last_received + self._pool.read_timeout_s
        if due > self.loop.time():
            self._timer = self.loop.call_at(due, self._look)
        else:
            self._fail(Silent(f"nothing came for {self._pool.read_timeout_s:g} s"))

    def _fail(self, error: Exception) -> None:
        (answer, head), self._answer, self._head = (self._answer, self._head), None, None
        if head is not None and not head.done():
            head.set_exception(error)
        if answer is not None:
            answer.ended(error)
        if self._sending is not None:
            self._sending.cancel()
        self.to.abort()

    # What httptools says

    def on_message_begin(self) -> None:
        if self._answer is None:  # nobody asked
            self.to.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        if answer is not None and not answer.status:  # else it is a trailer
            answer.headers.add(name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None or status < 200:
            return
        answer.begin(status)
        head, self._head = self._head, None
        if head is not None and not head.done():
            head.set_result(answer)
        if answer.headless:
            self._end(keep=False)

    def _pass_on(self) -> None:
        """The answer has all pieces of its body that have come."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._bodiless = 0
        if self._answer is not None:
            self._answer.take(data)

    def on_message_complete(self) -> None:
        if self._pieces:
            self._pass_on()
        answer = self._answer
        if answer is None:
            return
        if not answer.status:  # 100 Continue, and the like
            answer.headers.clear()
            return
        sent = self._sending is None or self._sending.done()
        self._end(keep=sent and not answer.until_closed and self._parser.should_keep_alive())

    def _end(self, *, keep: bool) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.ended(None)
        self._sending = self._sending if self._sending is not None and not self._sending.done() else None
        if keep and not self.to.is_closing():
            self._pool.keep(self)
        else:
            self.close()
