"""How much and how fast: requests at once, requests a key, the size of a head, the pace of a body.

Owns what is refused before anybody looks at what is asked, so that no client holds what others need. Sizes of bodies
once unpacked are `call`'s, who waits for the GPU is `door`'s. A head that does not come to its end is the
server's: an idle connection is closed after KEEPALIVE_S, whatever trickles in.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from config.sections import ServerSection
from proxy.access.keys import Who
from proxy.core.errors import BackendDown, TooLarge, TooMany, TooSlow

HEAD_LIMIT: Final = 64 * 1024  # bytes of all headers together, and of any one
MOST_HEADERS: Final = 128
BODY: Final = web.RequestKey("body", bytes)  # of a request that was waited for
PACE: Final = 1024  # bytes a second, below which a client is not slow but holding on
BUCKETS: Final = 10_000
SOON: Final = 1 << 14  # bytes that a transport takes without a wait
PATIENCE: Final = web.RequestKey("patience", float)  # `server.slow_client_s`, for the answer too


class PacedStream(web.StreamResponse):
    """A stream whose client has to read: what is not taken for twice its patience ends, as if the client had gone.

    While a write waits nothing else is written, so what the transport still holds can only become less.
    """

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        request = self._req
        if request is None or (transport := request.transport) is None:
            return await super().write(data)
        at_once = len(data) < SOON and not transport.get_write_buffer_size()  # as most: it waits for nobody
        if at_once or PATIENCE not in request:
            return await super().write(data)
        loop, patience = asyncio.get_running_loop(), request[PATIENCE]
        timer: asyncio.TimerHandle

        def look(before: int | None) -> None:
            nonlocal timer
            left = transport.get_write_buffer_size()
            if before is not None and before - left < patience * PACE:
                transport.abort()
                return
            timer = loop.call_later(patience, look, left)

        timer = loop.call_later(patience, look, None)
        try:
            await super().write(data)
        finally:
            timer.cancel()

    async def write_eof(self, data: bytes = b"") -> None:
        """The end, in one write with the last bytes, unless these have to wait for the client."""
        to = None if self._req is None else self._req.transport
        if data and to is not None and (len(data) >= SOON or to.get_write_buffer_size()):
            await PacedStream.write(self, data)
            data = b""
        await super().write_eof(data)


class Limits:
    def __init__(self, settings: ServerSection) -> None:
        self._settings = settings
        self.under_way = 0
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # by key: tokens, and when there were so many

    def enter(self, *, exempt: bool) -> None:
        """One more is under way, until who asked takes it off again. Raises BackendDown."""
        if not exempt and self.under_way >= self._settings.max_requests:
            raise BackendDown(
                f"{self.under_way} requests are under way already (server.max_requests); ask again in a moment.",
                retry_after=1,
            )
        self.under_way += 1

    def spend(self, who: Who) -> None:
        """One request of this key: a minute's worth may come at once. Raises TooMany."""
        rate = self._settings.requests_per_minute
        if rate == 0:
            return
        key, now = who.id or f"{who.role} of the settings", time.monotonic()
        tokens, at = self._buckets.get(key, (float(rate), now))
        tokens = min(float(rate), tokens + (now - at) * rate / 60)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        self._buckets.move_to_end(key)
        while len(self._buckets) > BUCKETS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            wait = math.ceil((1 - tokens) * 60 / rate)
            raise TooMany(
                f"This key has made its {rate} requests a minute (server.requests_per_minute); ask again in {wait} s.",
                retry_after=wait,
            )

    async def body_in(self, request: web.Request, *, stream: bool) -> None:
        """Wait until the body is here, before anything that others need is held for it; the handler finds it read.

        A body that only passes through may be larger than memory (a model's file): its pace is watched on its way.
        Raises TooLarge, TooSlow.
        """
        request[PATIENCE] = self._settings.slow_client_s
        if not request.can_read_body:
            return
        limit, length = self._settings.max_body_bytes, request.content_length
        if stream and (length is None or length > limit):
            return
        if length is not None and length > limit:
            raise _too_large(limit)
        try:
            # Nearly always it came with its head: then nothing is waited for, and no task is needed.
            request[BODY] = await (request.read() if request.content.is_eof() else self._in_time(request))
        except web.HTTPRequestEntityTooLarge:
            raise _too_large(limit) from None

    async def _in_time(self, request: web.Request) -> bytes:
        patience, before = self._settings.slow_client_s, 0
        reading = asyncio.ensure_future(request.read())
        try:
            while not (await asyncio.wait({reading}, timeout=patience))[0]:
                came = request.content.total_bytes
                if came - before < patience * PACE:
                    raise too_slow(came)
                before = came
            return reading.result()
        finally:
            reading.cancel()

    async def passing(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body of a request that passes through, piece by piece. Raises TooSlow."""
        patience, came = self._settings.slow_client_s, 0
        loop = asyncio.get_running_loop()
        due = loop.time() + patience
        while True:
            try:
                async with asyncio.timeout_at(due):
                    piece = await request.content.readany()
            except TimeoutError:
                raise too_slow(came) from None
            if not piece:
                return
            came += len(piece)
            yield piece
            # Waiting for the backend to take it is not the client's doing.
            due = max(due, loop.time()) + len(piece) / PACE
            due = min(due, loop.time() + patience)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is over {limit} bytes; raise server.max_body_bytes to allow it.")


def too_slow(came: int) -> TooSlow:
    return TooSlow(
        f"The body came too slowly ({came} bytes so far; server.slow_client_s): nothing was passed on, send it again."
    )
