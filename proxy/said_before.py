"""The bodies of requests, parsed from where they say something new: an agent sends its whole history with every turn.

Owns when what was read of one body holds for another: where both are byte for byte the same up to the end of an item of
a list (`messages`, `input`), whose items until there are those of the earlier body. Not here: how many are remembered
(running), what the items mean (dialects), what follows from them (history).
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from proxy.running import Running, common
from proxy.wire import loads, tokens

LEAST: Final = 16 * 1024  # bytes that have to be the same: fewer are parsed sooner than they are looked up

_NEW: Final = f"new-{secrets.token_hex(8)}"  # a name that no body has, for the list from there on


class Place(NamedTuple):
    """The list of a body that grows from turn to turn."""

    name: str
    before: tuple[str, ...]  # the members that come before it
    start: int  # the byte after its bracket
    ends: list[int]  # the byte after each of its first items


_NOWHERE: Final = Place("", (), 0, [])


@dataclass(frozen=True, slots=True)
class Body:
    """A body, read."""

    raw: bytes
    parsed: Any
    place: Place | None = None  # None: not looked for yet
    items: tuple[int, int] | None = None  # where those of this list begin and end, if that is known
    went_on: Body | None = None  # the one that it says again


class Known(NamedTuple):
    """How far a body is the same as an earlier one."""

    earlier: Body | None
    bytes: int


class SaidBefore:
    """May be used from any thread but `remember`."""

    def __init__(self) -> None:
        self._bodies: Running[Body] = Running()

    def known(self, raw: bytes) -> Known:
        found = Known(None, 0)
        if len(raw) >= LEAST:
            for body in self._bodies:
                more = max(LEAST, found.bytes + 1)
                if raw.startswith(memoryview(body.raw)[:more]) and len(body.raw) >= more:  # nearly no other one
                    found = Known(body, _common(body.raw, raw))
        return found

    def read(self, raw: bytes, known: Known) -> Body:
        """As `wire.loads` reads it. Raises ValueError."""
        if known.earlier is not None and (found := _read_on(raw, known.earlier, known.bytes)) is not None:
            return found
        try:
            return Body(raw, orjson.loads(raw))
        except orjson.JSONDecodeError:
            return Body(raw, loads(raw), _NOWHERE)  # it reads long integers otherwise: nothing to go on with

    def remember(self, body: Body) -> None:
        """In place of the one that it goes on with."""
        if len(body.raw) >= LEAST:
            self._bodies.remember(replace(body, went_on=None), len(body.raw), body.went_on)

    def clear(self) -> None:
        self._bodies.clear()


def _common(one: bytes, other: bytes) -> int:
    """How many of their first bytes are the same."""
    seen = memoryview(other)
    return common(min(len(one), len(other)), lambda start, end: one.startswith(seen[start:end], start))


def _read_on(raw: bytes, earlier: Body, same: int) -> Body | None:
    """`raw`, of which the first `same` bytes are those of `earlier`. None where it has to be parsed as any other."""
    place = earlier.place or _place(earlier.raw, same)
    count = bisect_right(place.ends, same) if place is not None else 0
    if place is None or count == 0 or (at := place.ends[count - 1]) < LEAST:
        return None
    try:
        rest = orjson.loads(b'{"%s":[{}%s' % (_NEW.encode(), memoryview(raw)[at:]))
    except orjson.JSONDecodeError:
        return None  # whatever is wrong is said of the whole body
    new = rest.pop(_NEW)
    if place.name in rest or not rest.keys().isdisjoint(place.before):
        return None  # which of the two counts is for the parser to say
    was = earlier.parsed
    items = [*was[place.name][:count], *new[1:]]
    more, end = _ends(raw, at)
    ends = [*place.ends[:count], *more]
    parsed = {**{name: was[name] for name in place.before}, place.name: items, **rest}
    if len(ends) != len(items):  # some of them are no objects
        ends = ends[:count]
    went_on = earlier if count >= len(was[place.name]) - 1 else None  # or says its last item in other words
    return Body(raw, parsed, place._replace(ends=ends), (place.start, end), went_on)


def _place(raw: bytes, at: int) -> Place | None:
    """The list of the object `raw` in which its byte `at` lies; None where that is in none, or no list of objects, or
    where a member comes twice."""
    names: list[str] = []
    ends: list[int] = []
    depth = commas = begun = 0
    listed, word = False, b""
    place: Place | None = None
    for start, end in tokens(raw):
        if place is None and start >= at:
            if depth < 2 or not listed:
                return None
            place = Place(names[-1], tuple(names[:-1]), begun, ends)
        mark = raw[start]
        if mark == 0x22:  # "
            word = raw[start + 1 : end - 1]
        elif mark in b"{[":
            depth += 1
            if depth == 2:
                listed, commas, begun, ends = mark == 0x5B and bool(names), 0, end, []
        elif mark in b"}]":
            depth -= 1
            if depth == 2 and place is None:
                ends.append(end)
        elif depth == 1 and mark == 0x3A:  # :
            if b"\\" in word:
                return None
            names.append(word.decode())
        elif depth == 2 and mark == 0x2C:  # ,
            commas += 1
            listed = listed and len(ends) == commas
    return place if len(set(names)) == len(names) else None


def _ends(raw: bytes, at: int) -> tuple[list[int], int]:
    """Where the objects end that follow in a list, from the end of one of its items; and where the list does."""
    ends: list[int] = []
    depth = 1
    for start, end in tokens(raw, at):
        mark = raw[start]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth == 0:
                return ends, start
            if depth == 1:
                ends.append(end)
    raise AssertionError("the list of a body that was parsed has an end")
