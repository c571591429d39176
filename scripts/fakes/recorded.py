"""A server on a raw socket that answers with given bytes, cut where the test says: for recorded and broken answers.

It speaks no more HTTP than a request's end needs, so that a test decides every byte of the answer, headers included.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

from proxy.backends.vllm import ASK
from proxy.training.weights_compare import CHATS

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
MODELS = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{"data":[{"id":"golden"}]}'


class RecordedBackend:
    def __init__(self) -> None:
        # What is written, piece by piece, before the connection is closed; a number is so many seconds of silence.
        self.answer: Sequence[bytes | float] = ()
        self.resets = False  # it ends with a reset instead
        self.by_text: dict[str, Sequence[bytes | float]] = {}  # to requests with a text in them, before `answer`
        self.requests: list[tuple[str, Any]] = []  # route and body
        self.url = ""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            if (route := head.split(" ")[1]) == "/v1/models":  # no client's: rlproxy looks what the server is
                writer.write(MODELS)
                return await writer.drain()
            parsed = json.loads(body) if body else None
            # No client's: rlproxy looks at the model.
            if isinstance(parsed, dict) and parsed.get("messages") in (*CHATS, ASK):
                writer.write(NOT_FOUND)
                return await writer.drain()
            self.requests.append((route, parsed))
            pieces = next((a for text, a in self.by_text.items() if text.encode() in body), self.answer)
            for i, piece in enumerate(pieces):
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                    continue
                if i:
                    await asyncio.sleep(0)  # a piece is seen before the next one is there, mostly
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the proxy went away
        finally:
            self._open.discard(writer)
            if self.resets:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()


def http_answer(status: int, headers: dict[str, str], pieces: Sequence[bytes]) -> list[bytes]:
    """The answer as it goes over the wire: in the server's own framing, each piece a chunk where it has chunks."""
    head = f"HTTP/1.1 {status} Recorded\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    if "content-length" not in headers and headers.get("transfer-encoding") != "chunked":
        head += "connection: close\r\n"
    if headers.get("transfer-encoding") == "chunked":
        return [
            head.encode() + b"\r\n",
            *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece),
            b"0\r\n\r\n",
        ]
    return [head.encode() + b"\r\n", *pieces]
