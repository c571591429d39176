"""JSON lines as a stream: cut at line ends, at any chunk boundary, and nothing joined.

Owns where a line ends. The same interface as `proxy.core.sse`: every byte that goes in comes out in some `Line.raw` or
in `rest()`; meaning belongs to the dialects.
"""

from __future__ import annotations

from proxy.core.sse import Event


class Line(Event):
    """One line, with its line end."""

    __slots__ = ()

    def _read(self) -> bytes | None:
        """The JSON on the line; None for an empty one."""
        return self.raw.strip(b" \t\r\n") or None

    def with_data(self, data: bytes) -> bytes:
        body = self.raw.strip(b" \t\r\n")
        if not body:
            return data + self.raw
        at = self.raw.index(body)
        return self.raw[:at] + data + self.raw[at + len(body) :]


class Splitter:
    """Feed chunks, get whole lines."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, chunk: bytes) -> list[Event]:
        # JSON has no line end inside a value, so LF alone ends a line.
        seen = len(self._kept)
        self._kept += chunk
        if self._kept.find(b"\n", seen) < 0:
            return []
        *whole, rest = bytes(self._kept).split(b"\n")
        self._kept = bytearray(rest)
        return [Line(line + b"\n") for line in whole]

    def rest(self) -> bytes:
        """What is left when the stream ends without a line end."""
        left = bytes(self._kept)
        self._kept.clear()
        return left
