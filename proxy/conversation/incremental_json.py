"""The bodies of requests, parsed from where they say something new: an agent sends its whole history with every turn.

Owns when what was read of one body holds for another. Both are byte for byte the same up to the end of an item of a
list (`messages`, `input`). The list's items until there are those of the earlier body. Not here: how many are
remembered (bounded_cache), what the items mean (dialects), what follows from them (history_cache).
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.bounded_cache import TurnCache, common
from proxy.core.json_edit import loads, member
from proxy.core.json_skip import skip_rest, skip_value, skip_white
from proxy.core.offload import LARGE, LIGHT, Marks, marks, weight

LEAST: Final = 16 * 1024  # bytes that have to be the same: fewer are parsed sooner than they are looked up

_NEW: Final = f"new-{secrets.token_hex(8)}"  # a name that no body has, for the list from there on


class JsonPlace(NamedTuple):
    """The list of a body that grows from turn to turn."""

    name: str
    preceding: tuple[str, ...]  # the members that come before it
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

    body: Body | None
    bytes: int
    marks: Marks | None  # of the whole body; None where it is large, and nobody wants to know
    weight: int  # bytes that the whole body counts as


class EarlierBodies:
    """May be used from any thread but `remember`."""

    def __init__(self) -> None:
        self._bodies: TurnCache[Body] = TurnCache()

    def find_prefix(self, raw: bytes) -> KnownPrefix:
        if len(raw) < LIGHT and len(raw) < LEAST:
            return KnownPrefix(None, 0, Marks(raw.count(b"{"), raw.count(b"["), raw.count(b",")), len(raw))
        nearest, same = None, 0
        if len(raw) >= LEAST:
            for body in self._bodies:
                length = max(LEAST, same + 1)
                if raw.startswith(memoryview(body.raw)[:length]) and len(body.raw) >= length:  # nearly no other one
                    nearest, same = body, _common(body.raw, raw)
        if len(raw) >= LARGE:
            return KnownPrefix(nearest, same, None, len(raw))
        counts = marks(raw) if nearest is None else _marks(raw, nearest, same)
        return KnownPrefix(nearest, same, counts, weight(raw, counts))

    def read(self, raw: bytes, prefix: KnownPrefix) -> Body:
        """Read it as `wire.loads` does. Raises ValueError."""
        if prefix.body is not None and (body := _read_on(raw, prefix, prefix.body)) is not None:
            return body
        try:
            whole = orjson.loads(raw)
            return Body(raw, whole, whole, prefix.marks)
        except orjson.JSONDecodeError:
            whole = loads(raw)
            # It reads long integers otherwise: nothing to go on with.
            return Body(_as_utf8(raw), whole, whole, prefix.marks, _NOWHERE)

    def remember(self, body: Body) -> None:
        """In place of the one that it goes on with."""
        if len(body.raw) >= LEAST:
            remembered = Body(body.raw, body.parsed, None, body.marks, body.place)
            self._bodies.remember(remembered, len(body.raw), body.went_on)

    def clear(self) -> None:
        self._bodies.clear()


def _common(first: bytes, second: bytes) -> int:
    """How many of their first bytes are the same."""
    view = memoryview(second)
    return common(min(len(first), len(second)), lambda start, end: first.startswith(view[start:end], start))


def _as_utf8(raw: bytes) -> bytes:
    """The same JSON in UTF-8: what is found and changed in it is ASCII. Python's servers read other encodings, too."""
    encoding = json.detect_encoding(raw)
    return raw if encoding == "utf-8" else raw.decode(encoding, "surrogatepass").encode("utf-8", "replace")


def _marks(raw: bytes, base: Body, same: int) -> Marks:
    """Those of `raw`, which begins with the first `same` bytes of `base`: what both have is not counted again."""
    if base.marks is None or 2 * same < len(base.raw):
        return marks(raw)
    pairs = zip(base.marks, marks(base.raw, same), marks(raw, same), strict=True)
    return Marks(*(all_there - ended + new for all_there, ended, new in pairs))


def _read_on(raw: bytes, prefix: KnownPrefix, base: Body) -> Body | None:
    """`raw` from where it differs from `base`. None where it has to be parsed as any other."""
    same = prefix.bytes
    place = base.place or _place(base.raw, same)
    count = bisect_right(place.ends, same) if place is not None else 0
    if place is None or count == 0 or (position := place.ends[count - 1]) < LEAST:
        return None
    try:
        members = orjson.loads(b'{"%s":[{}%s' % (_NEW.encode(), memoryview(raw)[position:]))
    except orjson.JSONDecodeError:
        return None  # whatever is wrong is said of the whole body
    new = members.pop(_NEW)
    if place.name in members or not members.keys().isdisjoint(place.preceding):
        return None  # which of the two counts is for the parser to say
    was = base.parsed
    items = [*was[place.name][:count], *new[1:]]
    new_ends, end = _ends(raw, position)
    ends = [*place.ends[:count], *new_ends]
    parsed = {**{name: was[name] for name in place.preceding}, place.name: items, **members}
    went_on = base if count >= len(was[place.name]) - 1 else None  # or says its last item in other words
    fresh = {**members, place.name: new[1:]}
    return Body(raw, parsed, fresh, prefix.marks, place._replace(ends=ends), (place.start, end), went_on)


def _place(raw: bytes, offset: int) -> JsonPlace | None:
    """The list of the object `raw` in which its byte `offset` lies; None where that is in none, or where a member comes
    twice."""
    names: list[str] = []
    place: JsonPlace | None = None
    cursor = skip_white(raw, skip_white(raw, 0) + 1)
    while raw[cursor] != 0x7D:  # }
        name, value = member(raw, cursor)
        if "\\" in name:
            return None
        if raw[value] == 0x5B and value < offset and place is None:  # [
            ends, close = _ends(raw, value + 1)
            if offset <= close:
                place = JsonPlace(name, tuple(names), value + 1, ends)
            cursor = close + 1
        else:
            cursor = skip_value(raw, value)
        names.append(name)
        cursor = skip_white(raw, cursor)
        if raw[cursor] == 0x2C:  # ,
            cursor = skip_white(raw, cursor + 1)
    return place if len(set(names)) == len(names) else None


def _ends(raw: bytes, position: int) -> tuple[list[int], int]:
    """Where the objects end that follow in a list, up to its first item that is none, and where its bracket is. It
    begins at the list's beginning, or at the end of an item."""
    ends: list[int] = []
    position = skip_white(raw, position)
    while raw[position] in b"{[,":
        if raw[position] == 0x2C:
            position += 1
        else:
            position = skip_value(raw, position)
            ends.append(position)
        position = skip_white(raw, position)
    return ends, position if raw[position] == 0x5D else skip_rest(raw, position) - 1
