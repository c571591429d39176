"""The pace of a client: how much it has to send and to read in a time. None keeps its place by being slow.

Owns answers that are read too slowly, and bodies that pass through. Not here: bodies that are waited for (bodies).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from aiohttp import web

from proxy.core.errors import TooSlow

PACE: Final = 1024  # bytes a second, below which a client is not slow but holding on
SOON: Final = 1 << 14  # bytes that a transport takes without a wait
PATIENCE: Final = web.RequestKey("patience", float)  # `server.slow_client_s`


class PacedStream(web.StreamResponse):
    """A stream whose client has to read: what is not taken for twice its patience ends, as if the client had gone."""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        request = self._req
        if request is None or (transport := request.transport) is None:
            return await super().write(data)
        at_once = len(data) < SOON and not transport.get_write_buffer_size()  # as most: it waits for nobody
        if at_once or PATIENCE not in request:
            return await super().write(data)
        with _watch(transport, request[PATIENCE]):
            return await super().write(data)

    async def write_eof(self, data: bytes = b"") -> None:
        """The end, in one write with the last bytes, unless these have to wait for the client."""
        to = None if self._req is None else self._req.transport
        if data and to is not None and (len(data) >= SOON or to.get_write_buffer_size()):
            await PacedStream.write(self, data)
            data = b""
        await super().write_eof(data)


async def send_long(response: web.Response, request: web.Request) -> None:
    """Send a long answer of one body to a client that has to read it. Left to
    aiohttp it goes out after its request has left its place, without a bound of time."""
    await response.prepare(request)
    if (transport := request.transport) is not None and PATIENCE in request:
        with _watch(transport, request[PATIENCE]):
            await response.write_eof()


async def send_pieces(response: web.StreamResponse, request: web.Request, pieces: AsyncIterator[bytes]) -> None:
    """Send these as they come, and the end."""
    await response.prepare(request)
    async for piece in pieces:
        await response.write(piece)
    await response.write_eof()


@contextlib.contextmanager
def _watch(transport: asyncio.Transport, patience: float) -> Iterator[None]:
    """Break the connection off where its client takes too little. Nothing else is written meanwhile, so what the
    transport still holds can only become less."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look(previous: int | None) -> None:
        nonlocal timer
        unsent = transport.get_write_buffer_size()
        if previous is not None and previous - unsent < patience * PACE:
            transport.abort()
            return
        timer = loop.call_later(patience, look, unsent)

    timer = loop.call_later(patience, look, None)
    try:
        yield
    finally:
        timer.cancel()


async def passing(request: web.Request) -> AsyncIterator[bytes]:
    """The body of a request that passes through, piece by piece. Raises TooSlow."""
    loop, patience, size = asyncio.get_running_loop(), request[PATIENCE], 0
    due = loop.time() + patience
    while True:
        try:
            async with asyncio.timeout_at(due):
                piece = await request.content.readany()
        except TimeoutError:
            raise too_slow(size) from None
        if not piece:
            return
        size += len(piece)
        yield piece
        # Waiting for the backend to take it is not the client's doing.
        due = max(due, loop.time()) + len(piece) / PACE
        due = min(due, loop.time() + patience)


def too_slow(size: int) -> TooSlow:
    return TooSlow(
        f"The body came too slowly ({size} bytes so far; server.slow_client_s): nothing was passed on, send it again."
    )
