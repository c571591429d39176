"""Recorded answers and requests, broken in every way that comes to mind, by a seed.

Owns the mutations: of bytes, of events, of JSON members and their types, and of the HTTP around them.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.fakes.recorded import http_answer
from scripts.golden.corpus import Answer, Case

# What parsers trip over: wrong types, what JSON has and Python or SQLite have not, and what no UTF-8 is.
ODD: tuple[bytes, ...] = (
    b"null", b"true", b"false", b"0", b"-1", b"1e400", b"NaN", b"-Infinity", b"1e-7", b"18446744073709551617",
    b"99999999999999999999999999999999", b'""', b'"x"', b'"\\u0000"', b'"\\ud800"', b'"\\udc00 tail"', b"[]", b"{}",
    b"[null]", b"[[]]", b"[{}]", b'[""]', b'{"type":null}', b'{"":{}}', b"[1,2,[3]]", b'{"content":[{"type":7}]}',
    b"[" * 60 + b"]" * 60, b"[" * 3000 + b"]" * 3000, b'"' + b"x" * 70_000 + b'"',
)  # fmt: skip
JUNK: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\xc3", b"\r", b"\n", b"\n\n", b"\r\n\r\n", b"data:", b"data: ", b": ", b'"', b"\\",
    b"{", b"}", b",",
    "é".encode(), "😀".encode(), b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xef\xbb\xbf",
)  # fmt: skip
EVENTS: tuple[bytes, ...] = (
    b": keepalive\n\n", b"\n\n", b"data: [DONE]\n\n", b"data: {}\n\n", b"data: []\n\n", b"data: null\n\n",
    b"data: \n\n",
    b"event: ping\ndata: {\"type\": \"ping\"}\n\n", b"id: 7\nretry: 3\n\n", b"data: {\ndata: }\n\n", b"{}\n", b"null\n",
    b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', b'data: {"error": "plain"}\n\n',
    b'data: {"error": null}\n\n', b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n',
    b'{"error": "out of memory"}\n', b'data: {"choices": [{}]}\n\n', b'data: {"choices": {"0": 1}}\n\n',
    b'data: {"choices": [{"index": "a", "delta": []}]}\n\n', b'data: {"type": "response.completed"}\n\n',
    b'data: {"type": "message_stop"}\n\n', b'{"done": true}\n', b'{"message": null, "done": false}\n',
    b"\x1f\x8b\x08\x00",
)  # fmt: skip


def mutated(dice: random.Random, raw: bytes) -> bytes:
    """One to three mutations, one after the other."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        raw = dice.choice(MUTATIONS)(dice, raw)
    return raw


# Bytes


def _drop(dice: random.Random, raw: bytes) -> bytes:
    a, b = _span(dice, raw)
    return raw[:a] + raw[b:]


def _duplicate(dice: random.Random, raw: bytes) -> bytes:
    a, b = _span(dice, raw)
    return raw[:b] + raw[a:]


def _swap(dice: random.Random, raw: bytes) -> bytes:
    a, b = _span(dice, raw)
    c = dice.randint(b, len(raw))
    return raw[:a] + raw[b:c] + raw[a:b] + raw[c:]


def _truncate(dice: random.Random, raw: bytes) -> bytes:
    return raw[: dice.randrange(len(raw) + 1)]


def _flip(dice: random.Random, raw: bytes) -> bytes:
    flipped = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        if flipped:
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
    return bytes(flipped)


def _insert(dice: random.Random, raw: bytes) -> bytes:
    position = dice.randint(0, len(raw))
    return raw[:position] + dice.choice(JUNK) + raw[position:]


def _span(dice: random.Random, raw: bytes) -> tuple[int, int]:
    a = dice.randint(0, len(raw))
    return a, min(len(raw), a + dice.choice((1, 2, 7, 40, 400)))


# Events


def _events(raw: bytes) -> list[bytes]:
    end = b"\n\n" if b"\n\n" in raw else b"\n"
    parts = raw.split(end)
    return [part + end for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _reorder(dice: random.Random, raw: bytes) -> bytes:
    events = _events(raw)
    if not events:
        return raw
    match dice.randrange(5):
        case 0:
            del events[dice.randrange(len(events))]
        case 1:
            events.insert(dice.randint(0, len(events)), dice.choice(events))
        case 2:
            dice.shuffle(events)
        case 3:
            a, b = dice.randrange(len(events)), dice.randrange(len(events))
            events[a], events[b] = events[b], events[a]
        case _:
            events = events[: dice.randrange(len(events) + 1)]
    return b"".join(events)


def _foreign(dice: random.Random, raw: bytes) -> bytes:
    events = _events(raw)
    events.insert(dice.randint(0, len(events)), dice.choice(EVENTS))
    return b"".join(events)


# JSON members


class _Raw:
    """JSON that Python would not write."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


def _member(dice: random.Random, raw: bytes) -> bytes:
    """One value somewhere in one event or body becomes another one, goes, or gets another name."""
    events = _events(raw)
    index = dice.randrange(len(events)) if events else 0
    if not events or (start := events[index].find(b"{")) < 0:
        return raw
    try:
        value, end = json.JSONDecoder().raw_decode(events[index][start:].decode())
    except (ValueError, RecursionError):
        return raw
    tail = events[index][start + len(events[index][start:].decode()[:end].encode()) :]
    holders: list[Any] = []
    _walk(value, holders)
    if holders:
        _break(dice, dice.choice(holders))
    events[index] = events[index][:start] + _dumped(value) + tail
    return b"".join(events)


def _walk(value: Any, holders: list[Any]) -> None:
    """Each object and list that holds something."""
    if isinstance(value, dict | list) and value:
        holders.append(value)
        for member in value.values() if isinstance(value, dict) else value:
            _walk(member, holders)


def _break(dice: random.Random, holder: Any) -> None:
    key = dice.choice(list(holder)) if isinstance(holder, dict) else dice.randrange(len(holder))
    match dice.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(key) + "x"] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder.append(holder[key])
        case _:
            holder[key] = _Raw(dice.choice(ODD))


def _dumped(value: Any) -> bytes:
    raws: list[_Raw] = []

    def mark(raw: Any) -> Any:
        raws.append(raw)
        return f"\x01{len(raws) - 1}\x01"

    text = json.dumps(value, default=mark, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for i, raw in enumerate(raws):
        text = text.replace(b'"\\u0001%d\\u0001"' % i, raw.raw)
    return text


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _drop, _duplicate, _swap, _truncate, _flip, _insert, _reorder, _reorder, _foreign, _foreign,
    _member, _member, _member, _member, _member,
)  # fmt: skip


def pieces(dice: random.Random, raw: bytes) -> list[bytes]:
    cuts = sorted(dice.randrange(len(raw) + 1) for _ in range(dice.choice((0, 1, 3, 20))))
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]


# HTTP


@dataclass(frozen=True)
class Wire:
    """An answer as it goes over a socket."""

    parts: list[bytes]
    body: bytes  # as the server meant it
    intact: bool  # whether the HTTP around it is sound, so that the client must get all of it


def on_the_wire(dice: random.Random, case: Case, kind: str) -> Wire:
    """A mutated body in sound HTTP, or the other way round, or both broken."""
    answer: Answer = case.best(kind)
    headers, status = dict(answer.headers), 200
    headers = {k: v for k, v in headers.items() if k in ("content-type", "transfer-encoding", "server")}
    body = mutated(dice, answer.body) if dice.random() < 0.8 else answer.body
    chunks = pieces(dice, body)
    if "transfer-encoding" not in headers:
        headers["content-length"] = str(len(body))
    match dice.randrange(12):
        case 0:  # closed in the middle
            whole = b"".join(http_answer(status, headers, chunks))
            head = whole.index(b"\r\n\r\n") + 4
            cut = dice.randrange(head, max(head + 1, len(whole)))
            return Wire([whole[:cut]], body, False)
        case 1:  # a length that is not true
            headers.pop("transfer-encoding", None)
            headers["content-length"] = str(max(0, len(body) + dice.choice((-7, -1, 1, 50))))
            return Wire(http_answer(status, headers, chunks), body, False)
        case 2:  # said to be packed, and is not
            headers["content-encoding"] = dice.choice(("gzip", "deflate"))
            return Wire(http_answer(status, headers, chunks), body, False)
        case 3:  # packed well, though nobody asked for it
            headers["content-encoding"] = "gzip"
            packed = gzip.compress(body, mtime=0)
            if "content-length" in headers:
                headers["content-length"] = str(len(packed))
            return Wire(http_answer(status, headers, pieces(dice, packed)), body, True)
        case 4:  # a chunk whose size is none
            headers.pop("content-length", None)
            headers["transfer-encoding"] = "chunked"
            sound = http_answer(status, headers, chunks)
            index = dice.randrange(1, len(sound))
            sound[index] = dice.choice((b"zz\r\nab\r\n", b"-1\r\n\r\n", b"fffffffffffffffff\r\nx", b"\r\n"))
            return Wire(sound, body, False)
        case 5:
            headers["content-type"] = dice.choice(
                ("application/json", "text/event-stream", "application/x-ndjson", "x")
            )
        case 6:
            status = dice.choice((200, 204, 301, 400, 404, 429, 500, 503))
    return Wire(http_answer(status, headers, chunks), body, status != 204)
