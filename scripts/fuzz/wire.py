"""Requests as bytes on a socket, sound or broken, and what comes back, read to its end within a bound.

Owns HTTP/1.1 as far as a suspicious client reads it: it trusts nothing but lengths and chunks. What is asked is
`request_maker`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from scripts.fuzz.request_maker import Facts, Request

BOUND_S = 20.0  # in which each request is answered or its connection closed; for a stream, in which more of it comes
PATIENT_S = 0.05  # of a client that stops in the middle and then hangs up
EVENTS = b"text/event-stream"


@dataclass
class Answer:
    status: int  # 0: closed without a word
    headers: dict[str, str]
    body: bytes
    whole: bool
    closed: bool  # by them


class Broken(Exception):
    """The bytes that came are not HTTP."""


BREAKS = (
    "long", "short", "two-lengths", "same-lengths", "both", "bad-size", "negative", "huge-size", "no-end", "half-head",
    "half-body", "http10", "http09", "http2", "no-colon", "folded", "bare-lf", "nul", "pipelined", "garbage", "spaced",
    "plus-length", "hex-length", "byte-by-byte", "no-host", "two-hosts", "early-close",
)  # fmt: skip


def head(request: Request, facts: Facts, version: bytes = b"HTTP/1.1") -> list[bytes]:
    """The lines before the blank one, without a length."""
    lines = [request.method.encode() + b" " + request.target + b" " + version]
    if not any(name == "host" for name, _ in request.headers):
        lines.append(b"host: 127.0.0.1:%d" % facts.port)
    return lines + [name.encode() + b": " + value for name, value in request.headers]


def joined(lines: list[bytes], body: bytes = b"") -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def sound(dice: random.Random, request: Request, facts: Facts) -> bytes:
    """By its length or in chunks."""
    lines, body = head(request, facts), request.body
    if any(name == "transfer-encoding" for name, _ in request.headers):
        return joined(lines, body or b"")
    if body is None:
        return joined(lines)
    if dice.random() < 0.8:
        return joined([*lines, b"content-length: %d" % len(body)], body)
    return joined([*lines, b"transfer-encoding: chunked"], chunked(dice, body) + b"0\r\n\r\n")


def chunked(dice: random.Random, body: bytes) -> bytes:
    cuts = sorted({0, len(body), *(dice.randrange(len(body) + 1) for _ in range(3))})
    return b"".join(b"%x\r\n" % (b - a) + body[a:b] + b"\r\n" for a, b in pairwise(cuts))


def broken(dice: random.Random, request: Request, facts: Facts, how: str) -> list[bytes]:
    """Pieces to write; what ends a request early is followed by a closed socket."""
    lines, body = head(request, facts), request.body or b"{}"
    size, chunks = b"content-length: %d" % len(body), b"transfer-encoding: chunked"
    whole = joined([*lines, size], body)
    match how:
        case "long" | "no-end":
            return [joined([*lines, b"content-length: %d" % (len(body) + 9)], body)]
        case "short":
            return [joined([*lines, b"content-length: %d" % (len(body) // 2)], body)]
        case "two-lengths":
            return [joined([*lines, size, b"content-length: 3"], body)]
        case "same-lengths":
            return [joined([*lines, size, size], body)]
        case "both":
            return [joined([*lines, size, chunks], chunked(dice, body) + b"0\r\n\r\n")]
        case "bad-size":
            return [
                joined(
                    [*lines, chunks], dice.choice((b"zz\r\nab\r\n", b"\r\n", b"5;x\nhello\r\n", b"0x5\r\nhello\r\n"))
                )
            ]
        case "negative":
            return [joined([*lines, chunks], b"-5\r\nhello\r\n0\r\n\r\n")]
        case "huge-size":
            return [joined([*lines, chunks], b"f" * dice.choice((8, 16, 17, 9000)) + b"\r\nhello")]
        case "half-head":
            return [whole[: dice.randrange(len(joined(lines)))]]
        case "half-body":
            return [whole[: dice.randrange(len(joined(lines)), len(whole) + 1)]]
        case "http10":
            return [joined([*head(request, facts, b"HTTP/1.0"), size], body)]
        case "http09":
            return [b"GET " + request.target + b"\r\n"]
        case "http2":
            return [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"]
        case "no-colon":
            return [joined([*lines, b"nonsense", size], body)]
        case "folded":
            return [joined([*lines, b"x-a: b\r\n c", size], body)]
        case "bare-lf":
            return [whole.replace(b"\r\n", b"\n")]
        case "nul":
            return [joined([*lines, b"x-a: b\x00c", size], body)]
        case "pipelined":
            return [whole + whole]
        case "garbage":
            return [bytes(dice.randrange(256) for _ in range(dice.choice((1, 40, 5000))))]
        case "spaced":
            return [joined([*lines, b"content-length : %d" % len(body)], body)]
        case "plus-length":
            return [joined([*lines, b"content-length: +%d" % len(body)], body)]
        case "hex-length":
            return [joined([*lines, b"content-length: 0x%x" % len(body)], body)]
        case "byte-by-byte":
            return [whole[n : n + 1] for n in range(min(len(whole), 60))] + [whole[60:]]
        case "no-host":
            return [joined([line for line in lines if not line.startswith(b"host:")] + [size], body)]
        case "two-hosts":
            return [joined([*lines, b"host: evil.example", size], body)]
        case _:
            return [whole]


class Socket:
    """A connection that is used again while both sides keep it."""

    def __init__(self, port: int, bound_s: float = BOUND_S) -> None:
        self._port, self._bound_s = port, bound_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.opened = 0

    async def send(self, pieces: list[bytes], *, fresh: bool = False) -> None:
        if fresh or self._writer is None:
            await self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
            self.opened += 1
        assert self._writer is not None
        try:
            for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()
        except OSError:  # it has answered and closed before all was sent
            return

    async def half_close(self) -> None:
        assert self._writer is not None
        try:
            self._writer.write_eof()
        except OSError:
            return

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        self._reader = self._writer = None

    async def answer(self, method: str) -> Answer:
        """The next one. Raises Broken, TimeoutError."""
        assert self._reader is not None
        try:
            async with asyncio.timeout(self._bound_s) as bound:
                answer = await _read(self._reader, method, partial(_extend, bound, self._bound_s))
        except TimeoutError:  # an OSError, too
            raise
        except OSError:  # reset: closed, and less politely
            answer = Answer(0, {}, b"", False, True)
        if answer.closed or answer.headers.get("connection", "").lower() == "close":
            await self.close()
        return answer


def _extend(bound: asyncio.Timeout, bound_s: float) -> None:
    bound.reschedule(asyncio.get_running_loop().time() + bound_s)


async def _read(reader: asyncio.StreamReader, method: str, extend: Callable[[], None]) -> Answer:
    while True:
        try:
            top = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise Broken(f"it closed in the middle of a head: {error.partial[:200]!r}") from None
            return Answer(0, {}, b"", False, True)
        first, *lines = top[:-4].decode("latin-1").split("\r\n")
        version, _, status_text = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not status_text[:3].isdigit():
            raise Broken(f"it began with {first[:200]!r}")
        status = int(status_text[:3])
        if status != 100:
            break
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or not name:
            raise Broken(f"it has a header {line[:200]!r}")
        headers[name.lower()] = value.strip()
    if method in ("HEAD", "CONNECT") or status in (204, 304):
        return Answer(status, headers, b"", True, True)  # what did not read the method may send a body all the same
    if headers.get("content-type", "").encode().startswith(EVENTS) and "x-rl-adapter" not in headers:
        return Answer(status, headers, b"", True, True)  # of /rl/events, which has no end; a command's is short
    return await _body(reader, status, headers, extend)


async def _body(
    reader: asyncio.StreamReader, status: int, headers: dict[str, str], extend: Callable[[], None]
) -> Answer:
    """An export of the whole store may take long: each chunk has the bound anew."""
    body = b""
    try:
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int((await reader.readuntil(b"\r\n"))[:-2].partition(b";")[0], 16):
                body += await reader.readexactly(size)
                extend()
                if await reader.readexactly(2) != b"\r\n":
                    raise Broken("a chunk is longer than it says")
            if await reader.readuntil(b"\r\n") != b"\r\n":
                raise Broken("there is something after the last chunk")
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = await reader.read(-1)
            return Answer(status, headers, body, True, True)
    except (asyncio.IncompleteReadError, OSError):  # the bound is not among these: it cancels
        return Answer(status, headers, body, False, True)
    except ValueError as error:
        raise Broken(f"a size that is none: {error}") from None
    return Answer(status, headers, body, True, False)
