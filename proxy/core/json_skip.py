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


def _nested(left: int) -> bytes:
    inner = rb"|" + _nested(left - 1) if left else b""
    return rb'[{\[](?:[^"{}\[\]]++|%s%s)*+[}\]]' % (_STRING, inner)


_CONTAINER: Final = re.compile(_nested(_DEEP), re.DOTALL)
# What neither opens nor closes the one that it is in.
_WITHIN: Final = re.compile(rb'(?:[^"{}\[\]]++|%s|%s)*+' % (_STRING, _nested(_DEEP)), re.DOTALL)
_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BARE: Final = re.compile(rb'[^\s,:"{}\[\]]++')
_WHITE: Final = re.compile(rb"[ \t\r\n]*+")
_EARLY: Final = "the JSON ends too early"


def past_white(raw: bytes, at: int) -> int:
    """The first byte from `at` on that is not white space. Raises ValueError where there is none."""
    if at < len(raw) and raw[at] > 0x20:  # nearly always
        return at
    found = _WHITE.match(raw, at)
    assert found is not None
    if found.end() >= len(raw):
        raise ValueError(_EARLY)
    return found.end()


def past(raw: bytes, at: int) -> int:
    """The byte after the value that begins at `at`. Raises ValueError where it has no end, or nothing begins there."""
    first = raw[at]
    if first == 0x22:  # "
        return past_text(raw, at + 1)
    if first in b"{[":
        found = _CONTAINER.match(raw, at, at + STEP)
        return past_rest(raw, at + 1) if found is None else found.end()
    found = _BARE.match(raw, at)
    if found is None:
        raise ValueError(f"there is no value at byte {at} of the JSON")
    return found.end()


def past_text(raw: bytes, at: int) -> int:
    """The byte after the string that `at` is in, which is not an escaped character. Raises ValueError."""
    while at < len(raw):
        stop = at + STEP
        quote = raw.find(b'"', at, stop)
        escape = raw.find(b"\\", at, stop if quote < 0 else quote)
        if escape >= 0:
            found = _TEXT.match(raw, escape, escape + STEP)
            assert found is not None
            at = found.end()
            if at == escape:  # the last byte
                break
        elif quote >= 0:
            return quote + 1
        else:
            at = stop
    raise ValueError(_EARLY)


def past_rest(raw: bytes, at: int) -> int:
    """The byte after the list or object that `at` is in, between two of its tokens. Raises ValueError."""
    depth = 1
    while depth:
        found = _WITHIN.match(raw, at, at + STEP)
        assert found is not None
        at = found.end()
        if at >= len(raw):
            raise ValueError(_EARLY)
        mark = raw[at]
        if mark == 0x22:  # it goes on where the expression had to stop
            at = past_text(raw, at + 1)
        elif mark in b"{[":  # so does this, or it is deeper
            depth += 1
            at += 1
        elif mark in b"}]":
            depth -= 1
            at += 1
    return at
