"""An rlproxy that goes away in the middle of an answer, as a killed one does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def chunks(*pieces: bytes) -> bytes:
    """A chunked answer with these chunks, and never the chunk that ends them."""
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces)


def whole(body: bytes) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body)


class Breaking:
    """Answers with these, in their order, the last one again and again; each connection ends with it."""

    def __init__(self, *answers: bytes, reset: bool = False) -> None:
        self._answers = list(answers)
        self._reset = reset

    async def __aenter__(self) -> Breaking:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = str(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
            await writer.drain()
            if self._reset:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
