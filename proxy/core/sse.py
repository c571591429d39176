"""Server-sent events by bytes: cut a stream into events, at any chunk boundary, and join nothing.

Owns where an event ends, what its data is, and how data of several lines is written. Every byte that goes in comes out
again in some `Event.raw` or in `remainder()`; meaning belongs to the dialects.
Source: WHATWG HTML, "Server-sent events", 9.2.5 and 9.2.6.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from proxy.core.json_edit import loads_server_json

# A blank line: two line ends in a row. A lone CR needs one more byte to tell it from CR LF.
_END = re.compile(rb"(?:\r\n|\n|\r(?=[^\n]))(?:\r\n|\n|\r(?=[^\n]))")
_LINE = re.compile(rb"\r\n|\n|\r")
_WHITE: Final = b" \t\r\n"
BOM: Final = b"\xef\xbb\xbf"  # may begin a stream, and is no part of its first line


_UNREAD: Final = object()


class _Unreadable(NamedTuple):
    reason: str


@dataclass(slots=True, init=False)
class Event:
    """One event; what it says is read once, by whoever asks first."""

    raw: bytes  # as it came, with its blank line
    # The data lines joined by LF; None for comments and other events without data.
    data: bytes | None = field(repr=False, compare=False)
    is_utf8: bool = field(repr=False, compare=False)  # what `json` returned, and next: it has halves of characters
    has_halves: bool = field(repr=False, compare=False)
    _json: Any = field(repr=False, compare=False)
    _start: int = field(repr=False, compare=False)  # of its first line

    def __init__(self, raw: bytes, *, first: bool = False) -> None:
        self.raw = raw
        self._start = len(BOM) if first and raw.startswith(BOM) else 0
        self.data = self._read()
        self.is_utf8, self.has_halves = True, False
        self._json = _UNREAD

    def json(self) -> Any:
        """The data, parsed. Raises ValueError."""
        if self._json is _UNREAD:
            try:
                self._json, self.is_utf8, self.has_halves = loads_server_json(self.data or b"")
            except ValueError as error:
                self._json = _Unreadable(str(error))
        if isinstance(self._json, _Unreadable):
            raise ValueError(self._json.reason)
        return self._json

    @property
    def begins_object(self) -> bool:
        """Tell whether its data may be a JSON object."""
        data = self.data
        return data is not None and data.lstrip(_WHITE).startswith(b"{")

    @property
    def is_error(self) -> bool:
        """Tell whether its name, or the name of its only field, says that it is an error."""
        return self.raw.startswith((b"event: error", b"event:error", b"error:"))

    @property
    def says_done(self) -> bool:
        """Tell whether it ends a stream of OpenAI's. Their libraries look at how its data begins."""
        data = self.data
        return data is not None and data.lstrip(_WHITE).startswith(b"[DONE]")

    def _read(self) -> bytes | None:
        raw = self.raw
        if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.count(b"\n") == 2 and b"\r" not in raw:
            return raw[6:-2]  # what nearly every event looks like
        parts = [line[5:].removeprefix(b" ") for line, _ in self._lines() if _has_data(line)]
        return b"\n".join(parts) if parts else None

    def with_data(self, data: bytes) -> bytes:
        """The same event with `data`, a data line for each of its lines, in the place of the last one there was. Other
        lines and line ends stay."""
        if self.data is not None and self.raw == b"data: %s\n\n" % self.data:
            return event(data)
        lines = list(self._lines())
        # The last one, so that what follows has the same end before it: CR before a LF that is a blank line hides it.
        place = max((index for index, (line, _) in enumerate(lines) if _has_data(line)), default=-1)
        out = bytearray(self.raw[: self._start])
        for index, (line, end) in enumerate(lines):
            if index == place:
                out += _data_lines(data, end or b"\n") + end
            elif not _has_data(line):
                out += line + end
        return bytes(out)

    def _lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Each line and its end; the last one may have none, where the stream was cut."""
        position = self._start
        for end in _LINE.finditer(self.raw, position):
            yield self.raw[position : end.start()], end[0]
            position = end.end()
        if position < len(self.raw):
            yield self.raw[position:], b""


class EventSplitter:
    """Feed chunks, get whole events: all of them as one piece (`whole`), and each by itself (`events`)."""

    gap: ClassVar[bytes] = b"\n\n"  # what ends an event

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._returns = False  # a CR has come
        self._looked = 0  # bytes of what is kept in which no event ends
        self._first = True  # no event has come

    @property
    def is_plain(self) -> bool:
        """Tell whether nothing but `gap` has ended an event so far."""
        return not self._returns

    @property
    def waiting(self) -> int:
        """Bytes of an event that has not come to its end."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[Event]:
        return self.events(self.whole(chunk))

    def whole(self, chunk: bytes) -> bytes:
        """All events that have come to their end with this chunk, as they came."""
        self._returns = self._returns or b"\r" in chunk
        if not self._buffer and not self._returns and chunk.endswith(b"\n\n"):
            return chunk  # nearly always
        # The end of an event can lie across the seam, at most 3 bytes back.
        self._looked = max(0, len(self._buffer) - 3)
        self._buffer += chunk
        if self._returns and not _END.search(self._buffer, self._looked):
            return b""
        # A lone CR needs the byte after it to tell it from CR LF, so `events` says where the last one ends.
        end = len(self._buffer) if self._returns else self._buffer.rfind(b"\n\n", self._looked) + 2
        whole = bytes(self._buffer[: end if end > 1 else 0])
        del self._buffer[: len(whole)]
        return whole

    def events(self, whole: bytes) -> list[Event]:
        """The events of what `whole` returned last."""
        events, start = [], 0
        look = self._looked if self._returns else 0
        while end := self._end(whole, look):
            events.append(Event(whole[start:end], first=self._first))
            self._first = False
            start = look = end
        if start < len(whole):
            self._buffer[:0] = whole[start:]  # it begins the next event
        return events

    def _end(self, whole: bytes, look: int) -> int:
        """Where the next event ends, 0 if it does not yet."""
        if not self._returns:
            gap = whole.find(b"\n\n", look)
            return 0 if gap < 0 else gap + 2
        end = _END.search(whole, look)
        return 0 if end is None else end.end()

    @staticmethod
    def objects(whole: bytes) -> list[Any] | None:
        """Events, parsed in one go; None where one of them is not a line of JSON."""
        if not whole.startswith(b"data: ") or not whole.endswith(b"\n\n"):
            return None
        texts = whole[6:-2].split(b"\n\ndata: ")
        if whole.count(b"\n") != 2 * len(texts):  # an event has more lines
            return None
        try:
            values = orjson.loads(b"[%s]" % b",".join(texts))
        except orjson.JSONDecodeError:
            return None
        return list(values) if len(values) == len(texts) else None

    def remainder(self) -> bytes:
        """The rest when the stream ends without a blank line."""
        remainder = bytes(self._buffer)
        self._buffer.clear()
        return remainder


def read_all(events: Iterable[Event]) -> None:
    """Have each of them parsed, where that is JSON."""
    for item in events:
        with contextlib.suppress(ValueError):
            item.json()


def event(data: bytes) -> bytes:
    return _data_lines(data, b"\n") + b"\n\n"


def _data_lines(data: bytes, end: bytes) -> bytes:
    """A line of data for each line of `data`, or a reader takes the second one for a field of another name."""
    if b"\n" not in data and b"\r" not in data:
        return b"data: " + data
    return end.join(b"data: " + line for line in _LINE.split(data))


def _has_data(line: bytes) -> bool:
    return line.startswith(b"data:") or line == b"data"
