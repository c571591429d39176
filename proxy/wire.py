"""JSON on the wire: read it, and change single values without touching any other byte.

Owns byte-exact edits. A client must get the backend's bytes but for the values that rlproxy owns, so a body is
never parsed and dumped again: spaces, escapes, key order and number formats stay as they came.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, Final

import orjson

# Strings whole, so that brackets inside them are not seen; then what gives JSON its structure. A string without an end
# takes all the rest, or each quote in it would begin another search.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\],:]', re.DOTALL)
STEP: Final = 1 << 18  # bytes: the expression holds up all other threads
_WHITE: Final = b" \t\r\n"
LONG: Final = 20  # characters of an integer of 64 bits
DEEPEST: Final = 128  # levels; orjson writes 254, and some are put around what came

_HALF: Final = re.compile("[\ud800-\udfff]")

EACH: Final = "*"  # in a rule: every element of a list


class _Hidden(bytes):
    """A replacement for what only we asked for: an empty list has nothing to hide, and stays."""


HIDDEN: Final = _Hidden(b"null")

# A tree of rules: key -> replacement bytes | None (remove the member) | a tree for what lies below.
Rules = Mapping[str, "bytes | Rules | None"]


def deeper(value: Any, most: int) -> bool:
    """Lists and objects are nested in more levels than that. Looked at a level at a time: no text is deep enough to
    exhaust the stack."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for one in level
            if type(one) is dict or type(one) is list
            for inner in (one.values() if type(one) is dict else one)
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
        try:
            found = json.loads(raw, parse_int=_number)
            # Half of an emoji, as JavaScript writes it where a text was cut: no UTF-8 has it, nor has a database.
            return json.loads(_HALF.sub("\ufffd", json.dumps(found, ensure_ascii=False)), parse_int=_number)
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None


def _number(text: str) -> int | float:
    """An integer as orjson reads it: a float where it has more than 64 bits."""
    if len(text) <= LONG:
        value = int(text)
        if -(2**63) <= value < 2**64:
            return value
    return float(text)


class Answer:
    """A whole answer; what it says is parsed once, by whoever asks first."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @cached_property
    def parsed(self) -> Any:
        """Raises ValueError."""
        return loads(self.raw)


def dumps(value: Any, *, in_order: bool = False) -> bytes:
    """As JSON; `in_order` with sorted keys, so that equal values are equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if in_order else None)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, sort_keys=in_order).encode()


def rewrite(raw: bytes, rules: Rules, add: Mapping[str, bytes] | None = None) -> bytes:
    """`raw` (a JSON object) with the values named by `rules` replaced or removed, and `add` put at its end.

    A key of `add` that is present already is replaced instead. Keys with escapes in them are not matched.
    Raises ValueError where `raw` is no JSON object.
    """
    found = _Spans(raw)
    if not found or raw[found[0][0] : found[0][0] + 1] != b"{":
        raise ValueError("not a JSON object")
    edits: list[tuple[int, int, bytes]] = []
    missing = dict(add) if add else {}
    top: dict[str, Any] = {**rules, **missing}
    try:
        last, keys = _object(raw, found, 0, top, edits)
    except IndexError as error:
        raise ValueError("the JSON ends too early") from error
    extra = b",".join(b'"' + k.encode() + b'":' + v for k, v in missing.items() if k not in keys)
    if extra:
        close = found[last][0]
        kept = len(keys - {k for k, rule in top.items() if rule is None})
        edits.append((close, close, (b"," if kept else b"") + extra))
    out, at = bytearray(), 0
    for start, end, new in edits:
        out += raw[at:start] + new
        at = end
    return bytes(out + raw[at:])


class _Spans:
    """All of `tokens`, by their number. As two numbers each: pairs of a list would take eight times the memory."""

    def __init__(self, raw: bytes) -> None:
        self._flat = array("q", chain.from_iterable(tokens(raw)))

    def __len__(self) -> int:
        return len(self._flat) // 2

    def __getitem__(self, at: int) -> tuple[int, int]:
        return self._flat[2 * at], self._flat[2 * at + 1]


def tokens(raw: bytes, at: int = 0) -> Iterator[tuple[int, int]]:
    """Where each string, bracket, comma and colon begins and ends, from `at` on, which is in no string.

    Raises ValueError where a string has no end.
    """
    while at < len(raw):
        stop = min(at + STEP, len(raw))
        spans = [found.span() for found in _TOKEN.finditer(raw, at, stop)]
        at = stop
        if spans and spans[-1][1] == stop and raw[spans[-1][0]] == 0x22:  # " of a string that may go on
            start, _ = spans.pop()
            at = _end_of_string(raw, start)
            spans.append((start, at))
        yield from spans


def _end_of_string(raw: bytes, start: int) -> int:
    end = start
    while (end := raw.find(b'"', end + 1)) >= 0:
        before = end - 1
        while raw[before] == 0x5C:  # \\
            before -= 1
        if (end - before) % 2:  # no backslash, or each escapes another one
            return end + 1
    raise ValueError("the JSON ends too early")


def _object(
    raw: bytes, tokens: _Spans, i: int, rules: Rules, edits: list[tuple[int, int, bytes]]
) -> tuple[int, set[str]]:
    """Walk the object whose `{` is token i; returns the token of its `}` and the keys seen."""
    keys: set[str] = set()
    comma: int | None = None  # where the comma before this member is
    kept = False  # whether a member before this one stays
    i += 1
    while raw[tokens[i][0]] != 0x7D:  # }
        start, end = tokens[i]
        key = raw[start + 1 : end - 1].decode("utf-8", "replace")
        keys.add(key)
        value_at, value_end, after = _value(raw, tokens, i + 1)
        more = raw[tokens[after][0]] == 0x2C  # ,
        if key not in rules:
            kept = True
        elif (rule := rules[key]) is None:
            if kept and comma is not None:
                edits.append((comma, value_end, b""))
            else:
                edits.append((start, _skip_white(raw, tokens[after][1]) if more else value_end, b""))
        else:
            kept = True
            _apply(raw, tokens, i + 2, value_at, value_end, rule, edits)
        comma = tokens[after][0]
        i = after + 1 if more else after
    return i, keys


def _apply(
    raw: bytes,
    tokens: _Spans,
    i: int,
    start: int,
    end: int,
    rule: bytes | Rules,
    edits: list[tuple[int, int, bytes]],
) -> None:
    if isinstance(rule, bytes):
        if rule is HIDDEN and raw[start:end] == b"[]":
            return
        edits.append((start, end, rule))
    elif raw[start] == 0x7B:  # {
        _object(raw, tokens, i, rule, edits)
    elif raw[start] == 0x5B and EACH in rule:  # [
        below = rule[EACH]
        i += 1
        while raw[tokens[i][0]] != 0x5D:  # ]
            if raw[tokens[i][0]] == 0x7B and isinstance(below, Mapping):
                i, _ = _object(raw, tokens, i, below, edits)
            i += 1


def _value(raw: bytes, tokens: _Spans, colon: int) -> tuple[int, int, int]:
    """The value after token `colon`: its first byte, the byte after it, the token after it."""
    start = _skip_white(raw, tokens[colon][1])
    i = colon + 1
    first = raw[start]
    if first in b"{[":
        depth = 0
        while True:
            mark = raw[tokens[i][0]]
            if mark in b"{[":
                depth += 1
            elif mark in b"}]":
                depth -= 1
                if depth == 0:
                    return start, tokens[i][1], i + 1
            i += 1
    if first == 0x22:  # "
        return start, tokens[i][1], i + 1
    end = tokens[i][0]
    while raw[end - 1] in _WHITE:
        end -= 1
    return start, end, i


def _skip_white(raw: bytes, at: int) -> int:
    while raw[at] in _WHITE:
        at += 1
    return at
