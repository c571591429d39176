"""The bodies of requests, parsed from where they say something new: an agent sends its whole history with every turn.

Owns when what was read of one body holds for another. Both are byte for byte the same up to the end of an item of a
list (`messages`, `input`). The list's items until there are those of the earlier body. Not here: how many are
remembered (bounded_cache), what the items mean (dialects), what follows from them (history_cache).
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.bounded_cache import Running, common
from proxy.core.json_edit import loads, member
from proxy.core.json_skip import past, past_rest, past_white
from proxy.core.offload import LARGE, LIGHT, Marks, marks, weight

LEAST: Final = 16 * 1024  # bytes that have to be the same: fewer are parsed sooner than they are looked up

_NEW: Final = f"new-{secrets.token_hex(8)}"  # a name that no body has, for the list from there on


class JsonPlace(NamedTuple):
    """The list of a body that grows from turn to turn."""

    name: str
    before: tuple[str, ...]  # the members that come before it
    start: int  # the byte after its bracket
    ends: list[int]  # the byte after each of its first items, as long as they are objects


_NOWHERE: Final = JsonPlace("", (), 0, [])


@dataclass(slots=True)
class Body:
    """A body, read. Nobody changes it; to freeze it would cost each request as much as to parse a short one."""

    raw: bytes
    parsed: Any
    fresh: Any  # as much of it as no earlier body has: in as many levels
    marks: Marks | None  # of all of it; None where it is large
    place: JsonPlace | None = None  # None: not looked for yet
    items: tuple[int, int] | None = None  # where those of this list begin and end, if that is known
    went_on: Body | None = None  # the one that it says again


class KnownPrefix(NamedTuple):
    """How far a body is the same as an earlier one."""

    earlier: Body | None
    bytes: int
    marks: Marks | None  # of the whole body; None where it is large, and nobody wants to know
    weight: int  # bytes that the whole body counts as


class SaidBefore:
    """May be used from any thread but `remember`."""

    def __init__(self) -> None:
        self._bodies: Running[Body] = Running()

    def known(self, raw: bytes) -> KnownPrefix:
        if len(raw) < LIGHT and len(raw) < LEAST:
            return KnownPrefix(None, 0, Marks(raw.count(b"{"), raw.count(b"["), raw.count(b",")), len(raw))
        earlier, same = None, 0
        if len(raw) >= LEAST:
            for body in self._bodies:
                more = max(LEAST, same + 1)
                if raw.startswith(memoryview(body.raw)[:more]) and len(body.raw) >= more:  # nearly no other one
                    earlier, same = body, _common(body.raw, raw)
        if len(raw) >= LARGE:
            return KnownPrefix(earlier, same, None, len(raw))
        found = marks(raw) if earlier is None else _marks(raw, earlier, same)
        return KnownPrefix(earlier, same, found, weight(raw, found))

    def read(self, raw: bytes, known: KnownPrefix) -> Body:
        """Read it as `wire.loads` does. Raises ValueError."""
        if known.earlier is not None and (found := _read_on(raw, known, known.earlier)) is not None:
            return found
        try:
            whole = orjson.loads(raw)
            return Body(raw, whole, whole, known.marks)
        except orjson.JSONDecodeError:
            whole = loads(raw)
            # It reads long integers otherwise: nothing to go on with.
            return Body(raw, whole, whole, known.marks, _NOWHERE)

    def remember(self, body: Body) -> None:
        """In place of the one that it goes on with."""
        if len(body.raw) >= LEAST:
            kept = Body(body.raw, body.parsed, None, body.marks, body.place)
            self._bodies.remember(kept, len(body.raw), body.went_on)

    def clear(self) -> None:
        self._bodies.clear()


def _common(one: bytes, other: bytes) -> int:
    """How many of their first bytes are the same."""
    seen = memoryview(other)
    return common(min(len(one), len(other)), lambda start, end: one.startswith(seen[start:end], start))


def _marks(raw: bytes, earlier: Body, same: int) -> Marks:
    """Those of `raw`, which begins with the first `same` bytes of `earlier`: what both have is not counted again."""
    if earlier.marks is None or 2 * same < len(earlier.raw):
        return marks(raw)
    pairs = zip(earlier.marks, marks(earlier.raw, same), marks(raw, same), strict=True)
    return Marks(*(all_there - ended + new for all_there, ended, new in pairs))


def _read_on(raw: bytes, known: KnownPrefix, earlier: Body) -> Body | None:
    """`raw` from where it differs from `earlier`. None where it has to be parsed as any other."""
    same = known.bytes
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
    went_on = earlier if count >= len(was[place.name]) - 1 else None  # or says its last item in other words
    fresh = {**rest, place.name: new[1:]}
    return Body(raw, parsed, fresh, known.marks, place._replace(ends=ends), (place.start, end), went_on)


def _place(raw: bytes, at: int) -> JsonPlace | None:
    """The list of the object `raw` in which its byte `at` lies; None where that is in none, or where a member comes
    twice."""
    names: list[str] = []
    place: JsonPlace | None = None
    here = past_white(raw, past_white(raw, 0) + 1)
    while raw[here] != 0x7D:  # }
        name, value = member(raw, here)
        if "\\" in name:
            return None
        if raw[value] == 0x5B and value < at and place is None:  # [
            ends, close = _ends(raw, value + 1)
            if at <= close:
                place = JsonPlace(name, tuple(names), value + 1, ends)
            here = close + 1
        else:
            here = past(raw, value)
        names.append(name)
        here = past_white(raw, here)
        if raw[here] == 0x2C:  # ,
            here = past_white(raw, here + 1)
    return place if len(set(names)) == len(names) else None


def _ends(raw: bytes, at: int) -> tuple[list[int], int]:
    """Where the objects end that follow in a list, up to its first item that is none, and where its bracket is. It
    begins at the list's beginning, or at the end of an item."""
    ends: list[int] = []
    at = past_white(raw, at)
    while raw[at] in b"{[,":
        if raw[at] == 0x2C:
            at += 1
        else:
            at = past(raw, at)
            ends.append(at)
        at = past_white(raw, at)
    return ends, at if raw[at] == 0x5D else past_rest(raw, at) - 1
