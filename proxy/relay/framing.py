"""How an answer is framed: as events, as lines of JSON, or as one body.

Owns that decision, and whether an answer begins with an error. What was asked for and the first bytes tell; a content
type says anything. The splitters cut what is framed (proxy.core).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Any, Final

from proxy.core.backend_answer import Answer
from proxy.core.errors import BrokeOff
from proxy.core.json_edit import loads, loads_server_json
from proxy.core.ndjson import DataLineSplitter, NdjsonSplitter
from proxy.core.sse import BOM, Event, EventSplitter
from proxy.core.upstream import error_in, splitter_for
from proxy.dialects import Dialect

OK: Final = (200, 201, 202, 203)  # statuses of answers
AT_ONCE_S: Final = 1.0  # in which a server that refuses a member under HTTP 200 has said so
MOST: Final = 1 << 16  # bytes without a line end, after which an object is a whole body
MOST_DATA: Final = 1 << 13  # bytes in which a first line of data is looked for
_WHITE: Final = b" \t\r\n"
_DATA: Final = b"data:"
_FIELDS: Final = (_DATA, b"event:", b":", b"id:", b"retry:", b"error:")  # how a line of an event begins


class Framing(Enum):
    EVENTS = auto()
    LINES = auto()
    DATA_LINES = auto()  # events without a blank line between them
    WHOLE = auto()
    OPEN = auto()  # more bytes have to tell


SPLITTERS: Final[Mapping[Framing, type[EventSplitter]]] = {
    Framing.EVENTS: EventSplitter,
    Framing.LINES: NdjsonSplitter,
    Framing.DATA_LINES: DataLineSplitter,
}


def framing_of(head: bytes, dialect: Dialect, *, is_streaming: bool, has_ended: bool) -> Framing:
    """By the first bytes of an answer. `is_streaming`: a stream was asked for; `has_ended`: there are no more bytes."""
    text = head.removeprefix(BOM).lstrip(_WHITE)
    if text.startswith(_DATA):
        return _framing_of_data(text, has_ended=has_ended)
    if text.startswith(_FIELDS):
        return Framing.EVENTS
    if text.startswith(b"{"):
        return _framing_of_objects(text, dialect, is_streaming=is_streaming, has_ended=has_ended)
    may_go_on = not has_ended and any(field.startswith(text) for field in _FIELDS)
    return Framing.OPEN if may_go_on else Framing.WHOLE


def _framing_of_data(text: bytes, *, has_ended: bool) -> Framing:
    """Two objects on two lines are two events: the data of one event is their lines joined."""
    line, end, remainder = text.partition(b"\n")
    may_go_on = not has_ended and len(text) <= MOST_DATA and _DATA.startswith(remainder)
    if not end or len(remainder) < len(_DATA):
        return Framing.OPEN if may_go_on else Framing.EVENTS
    if not remainder.startswith(_DATA):
        return Framing.EVENTS
    try:
        return Framing.DATA_LINES if isinstance(loads_server_json(line[len(_DATA) :]).value, dict) else Framing.EVENTS
    except ValueError:
        return Framing.EVENTS


def _framing_of_objects(text: bytes, dialect: Dialect, *, is_streaming: bool, has_ended: bool) -> Framing:
    end = text.find(b"\n")
    if end < 0:
        return Framing.WHOLE if has_ended or len(text) > MOST else Framing.OPEN
    remainder = text[end:].lstrip(_WHITE)
    following = remainder[:1]
    if is_streaming and dialect.framing == "sse" and remainder.startswith(_FIELDS):
        return Framing.EVENTS  # a line of something else before them
    try:
        first = loads_server_json(text[:end]).value
    except ValueError:  # an object of several lines
        return Framing.WHOLE
    is_event = is_streaming and dialect.is_event(first)
    if following == b"{" or (is_event and (not following or dialect.framing == "ndjson")):
        return Framing.LINES
    return Framing.WHOLE if has_ended or following else Framing.OPEN


async def splitter_of(
    answer: Answer, dialect: Dialect, beat_s: float, beat: Callable[[], Awaitable[None]], *, is_streaming: bool
) -> EventSplitter | None:
    """The cutter of this body into events; None for a plain body. Nothing of it is taken away. `beat` is called after
    each `beat_s` of silence."""
    head, has_ended = b"", False
    while (kind := framing_of(head, dialect, is_streaming=is_streaming, has_ended=has_ended)) is Framing.OPEN:
        if len(head) > 2 * MOST:  # blanks tell nothing, however many there are
            kind = Framing.WHOLE
            break
        pieces, has_ended = await _telling(answer, head.lstrip(_WHITE), beat_s, beat)
        head += pieces
    answer.give_back(head)
    if kind is Framing.WHOLE:
        declared = splitter_for(answer)
        is_ndjson = is_streaming and isinstance(declared, NdjsonSplitter)
        if not head.lstrip(_WHITE).startswith(b"{") or (is_ndjson and _begins_with_broken_line(head)):
            return declared  # bytes that tell nothing
    return SPLITTERS[kind]() if kind in SPLITTERS else None


def _begins_with_broken_line(head: bytes) -> bool:
    """Tell whether the first line is an object that is not JSON, and not the beginning of one of several lines."""
    line, end, remainder = head.lstrip(_WHITE).partition(b"\n")
    if not (end and line.rstrip(_WHITE).endswith(b"}") and remainder.lstrip(_WHITE)[:1] in (b"", b"{")):
        return False
    try:
        loads_server_json(line)
    except ValueError:
        return True
    return False


async def _telling(
    answer: Answer, head: bytes, beat_s: float, beat: Callable[[], Awaitable[None]]
) -> tuple[bytes, bool]:
    """The bytes that come next, up to a piece that may tell more than `head` does; and whether that is the end. Blanks
    tell nothing, but for the first line end behind an object: a server may send them one by one."""
    is_line_open = bool(head) and (b"\n" not in head or head.startswith(_DATA))
    pieces = bytearray()
    while len(pieces) <= 2 * MOST:
        try:
            piece = await answer.some(beat_s)
        except BrokeOff:  # whoever reads it is told
            piece = b""
        if piece is None:
            await beat()
            continue
        pieces += piece
        if not piece or piece.strip(_WHITE) or (is_line_open and b"\n" in piece):
            return bytes(pieces), not piece or (answer.is_here and answer.is_read)
    return bytes(pieces), False


def is_whole(event: Event) -> bool:
    """Tell whether all that is lacking is the blank line."""
    try:
        return event.data is None or bool(loads(event.data))
    except ValueError:
        return False


async def error_at_once(answer: Answer) -> str | None:
    """The message of an error with which an answer begins, whatever its status says; None where it begins with none,
    or nothing comes at once. Nothing of it is taken away."""
    try:
        head = await answer.some(AT_ONCE_S)
    except BrokeOff:  # whoever reads it is told
        return None
    if not head:
        return None
    answer.give_back(head)
    text = head.removeprefix(BOM).lstrip(_WHITE)
    event = next((event for event in EventSplitter().feed(text) if event.data is not None or event.is_error), None)
    try:
        first = _first_object(text) if event is None else _event_object(event)
    except ValueError:
        return None
    return error_in(first) if isinstance(first, dict) else None


def _event_object(event: Event) -> Any:
    """Raises ValueError."""
    error = loads_server_json(event.data or event.raw.partition(b":")[2]).value
    return {"error": error} if event.is_error and isinstance(error, dict) and error_in(error) is None else error


def _first_object(text: bytes) -> Any:
    """Raises ValueError."""
    try:
        return loads_server_json(text).value
    except ValueError:
        return loads_server_json(text.partition(b"\n")[0]).value
