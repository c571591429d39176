"""Server-sent events by bytes: cut a stream into events, at any chunk boundary, and join nothing.

Owns where an event ends and what its data is. Every byte that goes in comes out again in some `Event.raw`
or in `rest()`; meaning belongs to the dialects.
Source: WHATWG HTML, "Server-sent events", 9.2.5 and 9.2.6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.wire import loads

# A blank line: two line ends in a row. A lone CR needs one more byte to tell it from CR LF.
_END = re.compile(rb"(?:\r\n|\n|\r(?=[^\n]))(?:\r\n|\n|\r(?=[^\n]))")
_LINE = re.compile(rb"\r\n|\n|\r")


_UNREAD: Final = object()


@dataclass(slots=True, init=False)
class Event:
    """One event; what it says is read once, by whoever asks first."""

    raw: bytes  # as it came, with its blank line
    # The data lines joined by LF; None for comments and other events without data.
    data: bytes | None = field(repr=False, compare=False)
    _json: Any = field(repr=False, compare=False)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.data = self._read()
        self._json = _UNREAD

    def json(self) -> Any:
        """The data, parsed. Raises ValueError."""
        if self._json is _UNREAD:
            self._json = loads(self.data or b"")
        return self._json

    def _read(self) -> bytes | None:
        raw = self.raw
        if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.count(b"\n") == 2 and b"\r" not in raw:
            return raw[6:-2]  # what nearly every event looks like
        found = [line[5:].removeprefix(b" ") for line in _LINE.split(self.raw) if line.startswith(b"data:")]
        return b"\n".join(found) if found else None

    def with_data(self, data: bytes) -> bytes:
        """The same event with one data line instead of its own; other lines and line ends stay."""
        if self.raw == b"data: %s\n\n" % self.data:
            return b"data: %s\n\n" % data
        out, done, at = bytearray(), False, 0
        for end in _LINE.finditer(self.raw):
            line = self.raw[at : end.start()]
            if not line.startswith(b"data:"):
                out += line + end[0]
            elif not done:
                out += b"data: " + data + end[0]
                done = True
            at = end.end()
        return bytes(out) + self.raw[at:]


class Splitter:
    """Feed chunks, get whole events."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._returns = False  # a CR has come

    def feed(self, chunk: bytes) -> list[Event]:
        self._returns = self._returns or b"\r" in chunk
        # The end of an event can lie across the seam, at most 3 bytes back.
        look = max(0, len(self._kept) - 3)
        whole: bytes | bytearray = chunk  # nearly always it has whole events only
        if self._kept:
            self._kept += chunk
            whole = self._kept
        events, at = [], 0
        while end := self._end(whole, look):
            events.append(Event(bytes(whole[at:end])))
            at = look = end
        if whole is self._kept:
            del self._kept[:at]
        else:
            self._kept += chunk[at:]
        return events

    def _end(self, whole: bytes | bytearray, look: int) -> int:
        """Where the next event ends, 0 if it does not yet."""
        if not self._returns:
            found = whole.find(b"\n\n", look)
            return 0 if found < 0 else found + 2
        end = _END.search(whole, look)
        return 0 if end is None else end.end()

    def rest(self) -> bytes:
        """What is left when the stream ends without a blank line."""
        left = bytes(self._kept)
        self._kept.clear()
        return left


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
