"""Bodies as they go over the wire: a question's in pieces or chunks, an answer's unpacked as it comes.

Owns how much one read may become, so that a few bytes cannot fill the memory. Sources: RFC 9112, 7.1; RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

PIECE: Final = 1 << 16  # bytes of a large body that are written at once
CODINGS: Final = ("gzip", "x-gzip", "deflate")
LIMIT: Final = 1 << 24  # bytes that one read may become
_GZIP: Final = 16 + zlib.MAX_WBITS


Body = bytes | AsyncIterator[bytes] | None


async def framed(body: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces to write: of bytes as they are, since their length is said; else chunks."""
    if isinstance(body, bytes):
        view = memoryview(body)
        for at in range(0, len(body), PIECE):
            yield bytes(view[at : at + PIECE])
        return
    async for piece in body:
        if piece:  # an empty chunk is the end
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


class Unpacking:
    """One packed body of an answer."""

    def __init__(self, coding: str) -> None:
        """`coding`: one of CODINGS."""
        self._is_gzip = coding != "deflate"
        self._from: Any = None  # zlib's type has no name

    @property
    def is_whole(self) -> bool:
        """Tell whether it may end here. An empty body is not packed."""
        return self._from is None or self._from.eof

    def unpacked(self, data: bytes) -> bytes:
        """Raises zlib.error, also for what becomes too much."""
        found, room = [], LIMIT
        while data:
            if self._from is None:
                headless = not self._is_gzip and data[0] & 15 != 8  # as some send deflate: without RFC 1950's head
                self._from = zlib.decompressobj(_GZIP if self._is_gzip else zlib.MAX_WBITS * (-1 if headless else 1))
            elif self._from.eof:
                if not self._is_gzip or data[0] != 0x1F:
                    break  # padding
                self._from = zlib.decompressobj(_GZIP)  # gzip may have several members
            found.append(self._from.decompress(data, room))
            room -= len(found[-1])
            if room <= 0:
                raise zlib.error(f"one read of it becomes over {LIMIT} bytes")
            data = self._from.unused_data
        return b"".join(found)
