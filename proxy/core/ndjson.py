"""Lines as a stream, of JSON or of events: cut at line ends, at any chunk boundary, and nothing joined.

Owns where a line ends. The same interface as `proxy.core.sse`: every byte that goes in comes out in some `Line.raw` or
in `remainder()`; meaning belongs to the dialects.
"""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from proxy.core import sse
from proxy.core.sse import Event


class Line(Event):
    """One line, with its line end."""

    __slots__ = ()

    def _read(self) -> bytes | None:
        """The JSON on the line; None for an empty one. The first line of a stream may begin with a byte-order mark."""
        return self.raw.removeprefix(sse.BOM).strip(b" \t\r\n") or None

    def with_data(self, data: bytes) -> bytes:
        body = self.data
        if not body:
            return data + self.raw
        start = self.raw.index(body)
        return self.raw[:start] + data + self.raw[start + len(body) :]


class _LineSplitter(sse.EventSplitter):
    """Feed chunks, get whole lines: all of them as one piece (`whole`), and each by itself (`events`)."""

    gap: ClassVar[bytes] = b"\n"

    def whole(self, chunk: bytes) -> bytes:
        """All lines that have come to their end with this chunk, as they came."""
        # JSON has no line end inside a value, so LF alone ends a line.
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._buffer += chunk
            return b""
        whole = bytes(self._buffer) + chunk[:end]
        self._buffer = bytearray(chunk[end:])
        return whole


class DataLineSplitter(_LineSplitter):
    """Events of servers that send no blank line between them: each line of data is one."""

    @property
    def is_plain(self) -> bool:
        return False

    def events(self, whole: bytes) -> list[Event]:
        lines = whole.split(b"\n")[:-1]
        return [Event(line + b"\n", first=self._first and place == 0) for place, line in enumerate(lines)]


class NdjsonSplitter(_LineSplitter):
    def events(self, whole: bytes) -> list[Event]:
        return [Line(line + b"\n") for line in whole.split(b"\n")[:-1]]

    @staticmethod
    def objects(whole: bytes) -> list[Any] | None:
        """Lines, parsed in one go; None where one of them is not JSON."""
        texts = whole.split(b"\n")[:-1]
        try:
            values = orjson.loads(b"[%s]" % b",".join(texts))
        except orjson.JSONDecodeError:
            return None
        return list(values) if len(values) == len(texts) else None
