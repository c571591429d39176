"""JSON on the wire: read it, and change single values without touching any other byte.

Owns byte-exact edits. A client must get the backend's bytes but for the values that rlproxy owns, so a body is never
parsed and dumped again. Spaces, escapes, key order and number formats stay as they came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.json_skip import skip_text, skip_value, skip_white

LONG: Final = 20  # characters of an integer of 64 bits
LONGEST: Final = 300  # characters of an integer that a float still holds
DEEPEST: Final = 128  # levels; orjson writes 254, and some are put around what came

_HALF: Final = re.compile("[\ud800-\udfff]")
_HALF_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_LONG_RUN: Final = re.compile(rb"[0-9]{19}")

_TOO_DEEP: Final = "the JSON is nested too deeply"

EACH: Final = "*"  # in a rule: every element of a list


class _Hidden(bytes):
    """A replacement for what only we asked for: an empty list has nothing to hide, and stays."""


HIDDEN: Final = _Hidden(b"null")

# A tree of rules: key -> replacement bytes | None (remove the member) | a tree for what lies below.
Rules = Mapping[str, "bytes | Rules | None"]


def is_deeper(value: Any, most: int) -> bool:
    """Lists and objects are nested in more levels than that. Looked at a level at a time: no text is deep enough to
    exhaust the stack."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for item in level
            if type(item) is dict or type(item) is list
            for inner in (item.values() if type(item) is dict else item)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def loads(raw: bytes) -> Any:
    """Parse JSON. Python's own parser takes what orjson refuses and backends send: NaN, very long numbers.

    What is read can be written again: a number that no float holds becomes infinite, which `dumps` writes as null.
    Raises ValueError.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _mend(raw, _number)


class ServerJson(NamedTuple):
    """JSON as a server sent it, read as its clients read it."""

    value: Any
    is_utf8: bool = True  # else bytes of it became U+FFFD
    has_halves: bool = False  # of characters: the next event may have the other halves (`whole_characters`)


def loads_server_json(raw: bytes) -> ServerJson:
    """Parse an event of a stream, or a whole answer. Raises ValueError, also for what is nested so deeply that work on
    it exhausts the stack."""
    parsed = _server_json(raw)
    brackets = raw.count(b"[") + raw.count(b"{")  # fewer than DEEPEST cannot be nested deeper
    if brackets > DEEPEST and is_deeper(parsed.value, DEEPEST):
        raise ValueError(_TOO_DEEP)
    return parsed


def _server_json(raw: bytes) -> ServerJson:
    """Raises ValueError."""
    try:
        return ServerJson(orjson.loads(raw))
    except orjson.JSONDecodeError:
        pass
    try:
        text, is_utf8 = raw.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        text, is_utf8 = raw.decode("utf-8-sig", "replace"), False
    try:
        value = json.loads(text, parse_int=_number)
        may_have_halves = _HALF_ESCAPE.search(text) is not None
        has_halves = may_have_halves and _HALF.search(json.dumps(value, ensure_ascii=False)) is not None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return ServerJson(value, is_utf8, has_halves)


def whole_characters(value: Any) -> Any:
    """The same value with the halves of each character joined, and U+FFFD for a half that is alone."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def loads_arguments(raw: bytes) -> Any:
    """Parse the arguments of a tool call: as `loads`, but an id of 128 bits is not rounded. A number that no float
    holds is null: an argument is written by `json`, which would write Infinity. Raises ValueError."""
    return loads(raw) if _LONG_RUN.search(raw) is None else _mend(raw, _integer, lambda _: None)


def _mend(
    raw: bytes | str, number: Callable[[str], int | float], constant: Callable[[str], float | None] | None = None
) -> Any:
    try:
        value = json.loads(raw, parse_int=number)
        # Half of an emoji, as JavaScript writes it where a text was cut: no UTF-8 has it, nor has a database.
        text = _HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))
        return json.loads(text, parse_int=number, parse_constant=constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= LONGEST else float(text)


def _number(text: str) -> int | float:
    """An integer as orjson reads it: a float where it has more than 64 bits."""
    if len(text) <= LONG:
        value = int(text)
        if -(2**63) <= value < 2**64:
            return value
    return float(text)


class WholeAnswer:
    """A whole answer; what it says is parsed once, by whoever asks first."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.is_utf8 = True  # as far as it was parsed

    @property
    def parsed(self) -> Any:
        """Raises ValueError."""
        value, reason = self._parsed
        if reason is not None:
            raise ValueError(reason)
        return value

    @cached_property
    def _parsed(self) -> tuple[Any, str | None]:
        """Its value, or the error of what cannot be read."""
        try:
            value, self.is_utf8, has_halves = loads_server_json(self.raw)
        except ValueError as error:
            return None, str(error)
        return whole_characters(value) if has_halves else value, None


def dumps(value: Any, *, in_order: bool = False) -> bytes:
    """Write JSON; `in_order` with sorted keys, so that equal values are equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if in_order else None)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, sort_keys=in_order).encode()


def rewrite(raw: bytes, rules: Rules, add: Mapping[str, bytes] | None = None) -> bytes:
    """`raw` (a JSON object) with the values named by `rules` replaced or removed, and `add` put at its end.

    A key of `add` that is present already is replaced instead. Keys with escapes in them are not matched.
    Raises ValueError where `raw` is not a JSON object.
    """
    edits: list[tuple[int, int, bytes]] = []
    missing = dict(add) if add else {}
    top: dict[str, Any] = {**rules, **missing}
    start = skip_white(raw, 0)
    if raw[start] != 0x7B:  # {
        raise ValueError("not a JSON object")
    end, keys = _object(raw, start, top, edits)
    extra = b",".join(b'"' + k.encode() + b'":' + v for k, v in missing.items() if k not in keys)
    if extra:
        remaining = len(keys - {k for k, rule in top.items() if rule is None})
        edits.append((end - 1, end - 1, (b"," if remaining else b"") + extra))
    out: list[bytes | memoryview] = []
    view, position = memoryview(raw), 0
    for first, last, new in edits:
        out += (view[position:first], new)
        position = last
    return b"".join([*out, view[position:]])


def _object(raw: bytes, position: int, rules: Rules, edits: list[tuple[int, int, bytes]]) -> tuple[int, set[str]]:
    """Walk the object that begins at `position`; returns the byte after it and the keys seen."""
    keys: set[str] = set()
    comma: int | None = None  # where the comma before this member is
    has_kept = False  # whether a member before this one stays
    position = skip_white(raw, position + 1)
    while raw[position] != 0x7D:  # }
        start, (key, value) = position, member(raw, position)
        keys.add(key)
        rule = rules.get(key)
        end = _apply(raw, value, rule, edits) if rule is not None else skip_value(raw, value)
        next_mark = skip_white(raw, end)
        has_more = raw[next_mark] == 0x2C  # ,
        if not has_more and raw[next_mark] != 0x7D:
            raise ValueError(f"there is no comma at byte {next_mark} of the JSON")
        position = skip_white(raw, next_mark + 1) if has_more else next_mark
        if rule is not None or key not in rules:
            has_kept = True
        elif has_kept and comma is not None:
            edits.append((comma, end, b""))
        else:
            edits.append((start, position if has_more else end, b""))
        comma = next_mark
    return position + 1, keys


def member(raw: bytes, start: int) -> tuple[str, int]:
    """The name that begins at `start`, as it is written, and where its value begins. Raises ValueError."""
    if raw[start] != 0x22:  # "
        raise ValueError(f"there is no name at byte {start} of the JSON")
    end = skip_text(raw, start + 1)
    colon = skip_white(raw, end)
    if raw[colon] != 0x3A:  # :
        raise ValueError(f"there is no colon at byte {colon} of the JSON")
    return raw[start + 1 : end - 1].decode("utf-8", "replace"), skip_white(raw, colon + 1)


def _apply(raw: bytes, start: int, rule: bytes | Rules, edits: list[tuple[int, int, bytes]]) -> int:
    """Change the value that begins at `start`; returns the byte after it."""
    if isinstance(rule, bytes):
        end = skip_value(raw, start)
        if not (rule is HIDDEN and raw[start:end] == b"[]"):
            edits.append((start, end, rule))
        return end
    if raw[start] == 0x7B:  # {
        return _object(raw, start, rule, edits)[0]
    if raw[start] != 0x5B or not isinstance(inner_rules := rule.get(EACH), Mapping):  # [
        return skip_value(raw, start)
    position = skip_white(raw, start + 1)
    while raw[position] != 0x5D:  # ]
        end = _object(raw, position, inner_rules, edits)[0] if raw[position] == 0x7B else skip_value(raw, position)
        position = skip_white(raw, end)
        if raw[position] == 0x2C:
            position = skip_white(raw, position + 1)
    return position + 1
