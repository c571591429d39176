"""An answer of the backend: its head, and its body as it comes.

Owns what has come and was not read yet, what a packed body becomes, and what is said of one that is cut. Not here: the
connection (backend_http).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

from multidict import CIMultiDict

from proxy.core.errors import as_broke_off
from proxy.core.http_message import CODINGS, NoHttp, Unpacking

LOOK_S: Final = 60.0  # a beat, where nobody is told of silences
READ_AHEAD: Final = 1 << 18  # bytes that wait for a slow reader before no more are read


class Sender(Protocol):
    """The connection that an answer comes by."""

    loop: asyncio.AbstractEventLoop

    def pause(self) -> None: ...

    def read_on(self) -> None: ...

    def close(self) -> None: ...


class Answer:
    """An answer of the backend. Its body is read once, by one task."""

    def __init__(self, connection: Sender, *, unpack: bool, headless: bool) -> None:
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.until_closed = False  # its end is the connection's
        self.headless = headless  # it has a head alone
        self.paused = False
        self._connection = connection
        self._unpack = unpack
        self._unpacking: Unpacking | None = None
        self._has_packed = False  # more can be unpacked of what has come
        self._chunks: list[bytes] = []
        self._size = 0
        self.is_whole = False  # its last byte has come
        self._broke: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._since = 0.0  # of the read that is waited for
        self._beat: asyncio.TimerHandle | None = None

    @property
    def is_here(self) -> bool:
        """Tell whether all that is left of it can be taken at once."""
        return self.is_whole and not self._has_packed

    @property
    def is_read(self) -> bool:
        return self.is_whole and not self._chunks

    async def some(self, beat_s: float) -> bytes | None:
        """All that has come since; b"" at the end, and None where nothing came for `beat_s`.

        Raises BrokeOff, so that it cannot be taken for a client that went away; after all that has come.
        """
        if not self._chunks and not self.is_whole and self._broke is None:
            loop = self._connection.loop
            self._waiting, self._since = loop.create_future(), loop.time()
            if self._beat is None:
                self._beat = loop.call_later(beat_s, self._look, beat_s)
            try:
                await self._waiting
            finally:
                self._waiting = None
        if self._chunks:
            return self.drain()
        if self._broke is not None:
            raise as_broke_off(self._broke) from self._broke
        return b"" if self.is_whole else None

    def drain(self) -> bytes:
        """Bytes that have come and were not read yet. Of a packed body it is a part; the next is there then."""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._has_packed and (error := self._unpack_more()) is not None:
            if not self.is_whole:  # else the connection is another answer's by now
                self._connection.close()
            self.is_whole, self._broke = False, error
        if self.paused and not self._chunks:
            self.paused = False
            self._connection.read_on()
        return data

    def give_back(self, data: bytes) -> None:
        """Put bytes that were taken back, for the next read."""
        if data:
            self._chunks.insert(0, data)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, however long the silences are. Raises BrokeOff, after all that has come."""
        while (piece := await self.some(LOOK_S)) != b"":
            if piece is not None:
                yield piece

    def close(self) -> None:
        """Nobody reads it any more: it must stop costing the backend."""
        if not self.is_whole and self._broke is None:
            self.ended(ConnectionError("nobody reads it any more"))
            self._connection.close()

    def _look(self, beat_s: float) -> None:
        """One timer for all reads: it costs more than a read."""
        self._beat = None
        if self._waiting is None or self._waiting.done():
            return  # the next one sets it again
        due, loop = self._since + beat_s, self._connection.loop
        if loop.time() < due:
            self._beat = loop.call_at(due, self._look, beat_s)
        else:
            self._waiting.set_result(None)

    # What the connection says

    def begin(self, status: int) -> None:
        self.status = status
        kind = self.headers.get("transfer-encoding", "").lower()
        bodiless = self.headless or status in (204, 304)
        self.until_closed = not bodiless and "chunked" not in kind and "content-length" not in self.headers
        coding = ", ".join(self.headers.getall("content-encoding", ())).strip().lower()
        if self._unpack and coding in CODINGS:
            self._unpacking = Unpacking(coding)
        elif self._unpack and coding not in ("", "identity"):
            raise NoHttp(f"its body is in {coding}, which nobody asked for")

    def take(self, data: bytes) -> None:
        if self._unpacking is None:
            self._chunks.append(data)
            self._size += len(data)
        elif (error := self._unpack_more(data)) is not None:
            raise error

    def _unpack_more(self, data: bytes = b"") -> zlib.error | None:
        """Unpack a part of what has come, once all that was unpacked is read."""
        assert self._unpacking is not None
        try:
            unpacked = self._unpacking.unpacked(data, 0 if self._chunks else READ_AHEAD)
        except zlib.error as error:
            return error
        if unpacked:
            self._chunks.append(unpacked)
            self._size += len(unpacked)
        self._has_packed = self._unpacking.has_more
        return self._unpacking.lacking() if self.is_whole else None

    def tell(self) -> None:
        """All that one read has brought is here."""
        if self._chunks and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        elif (self._size > READ_AHEAD or self._has_packed) and not (self.paused or self.is_whole or self._broke):
            self.paused = True
            self._connection.pause()

    def ended(self, error: Exception | None) -> None:
        if error is None and self._unpacking is not None:
            error = self._unpacking.lacking()
        self.is_whole, self._broke = error is None, error
        if self._beat is not None:
            self._beat.cancel()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
