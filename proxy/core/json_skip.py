"""Where a value of JSON ends, without a look at each of its tokens: of a body of megabytes a few members are wanted.

Owns the search for ends, at the speed of the expression engine and in time proportional to what is passed over. It
needs JSON that is valid; of anything else it says some end, or raises ValueError. What is edited there belongs to wire.
"""

from __future__ import annotations

import re
from typing import Final

STEP: Final = 1 << 18  # bytes for one expression, which holds up all other threads
_DEEP: Final = 3  # levels that are passed over in one go

_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def _nested(levels: int) -> bytes:
    inner = rb"|" + _nested(levels - 1) if levels else b""
    return rb'[{\[](?:[^"{}\[\]]++|%s%s)*+[}\]]' % (_STRING, inner)


_CONTAINER: Final = re.compile(_nested(_DEEP), re.DOTALL)
# What neither opens nor closes the one that it is in.
_WITHIN: Final = re.compile(rb'(?:[^"{}\[\]]++|%s|%s)*+' % (_STRING, _nested(_DEEP)), re.DOTALL)
_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BARE: Final = re.compile(rb'[^\s,:"{}\[\]]++')
_WHITE: Final = re.compile(rb"[ \t\r\n]*+")
_EARLY: Final = "the JSON ends too early"


def skip_white(raw: bytes, start: int) -> int:
    """The first byte from `start` on that is not white space. Raises ValueError where there is none."""
    if start < len(raw) and raw[start] > 0x20:  # nearly always
        return start
    match = _WHITE.match(raw, start)
    assert match is not None
    if match.end() >= len(raw):
        raise ValueError(_EARLY)
    return match.end()


def skip_value(raw: bytes, start: int) -> int:
    """The byte after the value that begins at `start`. Raises ValueError where it has no end or no beginning."""
    first = raw[start]
    if first == 0x22:  # "
        return skip_text(raw, start + 1)
    if first in b"{[":
        match = _CONTAINER.match(raw, start, start + STEP)
        return skip_rest(raw, start + 1) if match is None else match.end()
    match = _BARE.match(raw, start)
    if match is None:
        raise ValueError(f"there is no value at byte {start} of the JSON")
    return match.end()


def skip_text(raw: bytes, position: int) -> int:
    """The byte after the string that `position` is in, which is not an escaped character. Raises ValueError."""
    while position < len(raw):
        stop = position + STEP
        quote = raw.find(b'"', position, stop)
        escape = raw.find(b"\\", position, stop if quote < 0 else quote)
        if escape >= 0:
            match = _TEXT.match(raw, escape, escape + STEP)
            assert match is not None
            position = match.end()
            if position == escape:  # the last byte
                break
        elif quote >= 0:
            return quote + 1
        else:
            position = stop
    raise ValueError(_EARLY)


def skip_rest(raw: bytes, position: int) -> int:
    """The byte after the list or object that `position` is in, between two of its tokens. Raises ValueError."""
    depth = 1
    while depth:
        match = _WITHIN.match(raw, position, position + STEP)
        assert match is not None
        position = match.end()
        if position >= len(raw):
            raise ValueError(_EARLY)
        mark = raw[position]
        if mark == 0x22:  # it goes on where the expression had to stop
            position = skip_text(raw, position + 1)
        elif mark in b"{[":  # so does this, or it is deeper
            depth += 1
            position += 1
        elif mark in b"}]":
            depth -= 1
            position += 1
    return position
