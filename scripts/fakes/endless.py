"""A model server whose answers have no end, or become very much: each in one of a few ways, and so many bytes of it.

In plain sockets, since no framework sends such things. It counts what it could send.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

MODEL: Final = "fake"
LIST: Final = b'{"object":"list","data":[{"id":"fake","object":"model"}]}'
CHUNK: Final = (
    b'data: {"id":"up-1","object":"chat.completion.chunk","created":1,"model":"fake",'
    b'"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
)
PIECE: Final = 1 << 16
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

Pieces = AsyncIterator[bytes]


async def _repeated(size: int, piece: bytes, head: bytes = b"", tail: bytes = b"") -> Pieces:
    """`head`, as many pieces as are about so many bytes, `tail`."""
    yield head
    for _ in range(max(1, size // len(piece))):
        yield piece
    if tail:
        yield tail


async def _gzipped(size: int) -> Pieces:
    """A whole answer of which a thousandth is sent."""
    text = b'{"id":"up-1","model":"fake","choices":[{"index":0,"message":{"role":"assistant","content":"'
    end = b'"},"finish_reason":"stop"}]}'
    for piece in (text, *[b"x" * (1 << 20)] * (size >> 20), end):  # gzip may have several members
        yield gzip.compress(piece)


SSE: Final = b"content-type: text/event-stream"
NDJSON: Final = b"content-type: application/x-ndjson"
JSON: Final = b"content-type: application/json"
LINE: Final = b'{"model":"fake","message":{"role":"assistant","content":"%s"},"done":false}\n'
TEXT: Final = b"x" * 4000
# By name: status, headers, and the body of so many bytes. An answer has an end, so that its client can count.
ANSWERS: Final[dict[str, tuple[int, bytes, Callable[[int], Pieces]]]] = {
    "event": (200, SSE, lambda size: _repeated(size, b"x" * PIECE, b'data: {"id":"', b'"}\n\n')),
    "line": (200, NDJSON, lambda size: _repeated(size, b"x" * PIECE, b'{"message":{"content":"', b'"}}\n')),
    "stream": (200, SSE, lambda size: _repeated(size, CHUNK % TEXT * 16, tail=b"data: [DONE]\n\n")),
    "lines": (200, NDJSON, lambda size: _repeated(size, LINE % TEXT * 16, tail=b'{"done":true}\n')),
    "comments": (200, SSE, lambda size: _repeated(size, b": " + b"x" * PIECE + b"\n\n", tail=b"data: [DONE]\n\n")),
    "answer": (
        200, JSON, lambda size: _repeated(
            size, b"x" * PIECE, b'{"id":"up-1","choices":[{"index":0,"message":{"role":"assistant","content":"',
            b'"},"finish_reason":"stop"}]}',
        ),
    ),
    "things": (200, JSON, lambda size: _repeated(size, b"{}," * 20_000, b'{"choices":[', b"{}]}")),
    "packed": (200, JSON + b"\r\ncontent-encoding: gzip", _gzipped),
    "missing": (404, JSON, lambda size: _repeated(size, b"x" * PIECE, b'{"error":{"message":"', b'"}}')),
    "refused": (500, JSON, lambda size: _repeated(size, b"x" * PIECE, b'{"error":{"message":"', b'"}}')),
}  # fmt: skip


class EndlessBackend:
    """`mood` is the name of an answer to questions, or "silent"; `lists` of one to control requests; None: as it should
    be."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.mood: str | None = None
        self.lists: str | None = None
        self.endless_head = False
        self.sent = 0  # bytes of bodies that were taken
        self.url = ""
        self._server: asyncio.Server

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError),
        ):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if (length := _LENGTH.search(head)) is not None:
                    await reader.readexactly(int(length[1]))
                if self.mood == "silent" and head.startswith(b"POST"):
                    await reader.read()  # until who asks goes away
                    return
                await self._answer(head.startswith(b"POST"), writer)

    async def _answer(self, is_question: bool, writer: asyncio.StreamWriter) -> None:
        mood = self.mood if is_question else self.lists
        if self.endless_head:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            await self._send(writer, _repeated(self.size, b"x-more: " + b"y" * 1000 + b"\r\n"), chunked=False)
            raise ConnectionError
        if mood is None:
            writer.write(b"HTTP/1.1 200 OK\r\n%s\r\ncontent-length: %d\r\n\r\n%s" % (JSON, len(LIST), LIST))
            return
        status, headers, pieces = ANSWERS[mood]
        writer.write(b"HTTP/1.1 %d X\r\n%s\r\ntransfer-encoding: chunked\r\n\r\n" % (status, headers))
        await self._send(writer, pieces(self.size), chunked=True)

    async def _send(self, writer: asyncio.StreamWriter, pieces: Pieces, *, chunked: bool) -> None:
        async for piece in pieces:
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                self.sent += len(piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
