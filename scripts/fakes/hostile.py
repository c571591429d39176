"""A model server that answers every request with a head and a body of a test's choosing, and notes what it gets.

Owns the bytes: a head may say what no well-behaved server says. Not here: servers that answer as models do (backend).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


@dataclass
class HostileServer:
    status: int = 200
    head: Sequence[str] = ()  # lines of the answer's head, without its length
    body: bytes = b"{}"
    regular: Mapping[str, bytes] = field(default_factory=lambda: {"/v1/models": MODELS})  # JSON answers by path
    url: str = ""
    requests: list[str] = field(default_factory=list)  # method and path of each
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                await self._read_body(reader, head)
                method, path, _ = head.split(" ", 2)
                self.requests.append(f"{method} {path}")
                writer.write(self._answer(method, path))
                await writer.drain()
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read_body(self, reader: asyncio.StreamReader, head: str) -> None:
        lines = head.lower().split("\r\n")
        if any(line.startswith("transfer-encoding:") for line in lines):
            await reader.readuntil(b"0\r\n\r\n")
            return
        length = next((line.partition(":")[2] for line in lines if line.startswith("content-length:")), "0")
        await reader.readexactly(int(length))

    def _answer(self, method: str, path: str) -> bytes:
        status, head, body = self.status, self.head, self.body
        if path in self.regular:
            status, head, body = 200, ("content-type: application/json",), self.regular[path]
        lines = [f"HTTP/1.1 {status} Odd", *head, f"content-length: {len(body)}", "connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1") + (b"" if method == "HEAD" else body)
