"""HTTP messages as they go over the wire: a question's headers and body, and an answer's body unpacked as it comes.

Owns a server's address, and how much one read may become, so that a few bytes cannot fill the memory. Not here: the
connection (backend_http), which headers are sent (upstream). Sources: RFC 9112, RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from yarl import URL

PIECE: Final = 1 << 16  # bytes of a large body that are written at once
AT_ONCE: Final = 1 << 18  # bytes of a body that is not large: a turn of the loop costs more than to send them
CODINGS: Final = ("gzip", "x-gzip", "deflate")
STEP: Final = 1 << 12  # bytes that are unpacked at once: zlib copies what follows, for each member of gzip
_GZIP: Final = 16 + zlib.MAX_WBITS

Body = bytes | AsyncIterator[bytes] | None


class NoHttp(ValueError):
    """The bytes that came are not HTTP."""


class ServerAddress(NamedTuple):
    """A server, as its URL names it."""

    host: str
    port: int
    tls: bool
    path: str  # of its API's base; empty for a server's root
    head: bytes  # headers that each question to it has


@lru_cache(maxsize=64)
def address_of(url: str) -> ServerAddress:
    """Raises ValueError."""
    parts = URL(url)
    tls = parts.scheme == "https"
    head = f"host: {parts.raw_authority.rpartition('@')[2]}\r\n"
    port = parts.port or (443 if tls else 80)
    return ServerAddress(parts.raw_host or "", port, tls, parts.raw_path.rstrip("/"), head.encode())


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent. Raises ValueError for a header with a line end in it."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    if "user-agent" not in headers:
        lines.append("user-agent: rlproxy\r\n")
    if any(line.count("\n") != 1 or line.count("\r") != 1 for line in lines):
        raise ValueError("A header has a line end in it; nothing was sent.")
    return "".join(lines).encode("utf-8", "surrogateescape")


async def frame_chunks(body: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces to write: of bytes as they are, since their length is said; else chunks."""
    if isinstance(body, bytes):
        view = memoryview(body)
        for start in range(0, len(body), PIECE):
            yield bytes(view[start : start + PIECE])
        return
    async for piece in body:
        if piece:  # an empty chunk is the end
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


class Unpacking:
    """One packed body of an answer. It is unpacked as it is read, so that a few bytes cannot fill the memory."""

    def __init__(self, coding: str) -> None:
        """`coding`: one of CODINGS."""
        self._is_gzip = coding != "deflate"
        self._from: Any = None  # zlib's type has no name
        self._packed = b""
        self._offset = 0  # of what is not unpacked yet
        self.has_more = False  # more can be unpacked of what has come

    def lacking(self) -> zlib.error | None:
        """The error of a body that ends here and may not. An empty one is not packed."""
        may_end = self.has_more or self._from is None or self._from.eof
        return None if may_end else zlib.error("its end is missing")

    def unpacked(self, data: bytes, most: int) -> bytes:
        """Up to so many bytes of all that has come, these ones last. Raises zlib.error."""
        self._packed = self._packed[self._offset :] + data
        self._offset = 0
        pieces, room = [], most
        while (self._offset < len(self._packed) or self.has_more) and room > 0:
            self.has_more = False
            step = self._packed[self._offset : self._offset + STEP]
            if self._from is None:
                headless = not self._is_gzip and step[0] & 15 != 8  # some send deflate without RFC 1950's head
                self._from = zlib.decompressobj(_GZIP if self._is_gzip else zlib.MAX_WBITS * (-1 if headless else 1))
            elif self._from.eof:
                if not self._is_gzip or step[0] != 0x1F:
                    self._packed = b""  # padding
                    break
                self._from = zlib.decompressobj(_GZIP)  # gzip may have several members
            pieces.append(self._from.decompress(step, room))
            room -= len(pieces[-1])
            unread = self._from.unused_data if self._from.eof else self._from.unconsumed_tail
            self._offset += len(step) - len(unread)
            self.has_more = room <= 0 and not self._from.eof  # zlib may hold some of it
        self.has_more = self.has_more or self._offset < len(self._packed)
        return b"".join(pieces)
