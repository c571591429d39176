"""The body of a request, from its bytes to what its dialect makes of them.

Owns its limit, its packing, and that it is JSON. What it means belongs to the dialects.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from aiohttp import web

from proxy.conversation.incremental_json import Body, KnownPrefix, SaidBefore
from proxy.core.errors import BadRequest, TooLarge
from proxy.core.json_edit import DEEPEST, deeper
from proxy.dialects import Asked, Dialect

MOST: Final = 20_000  # messages; agents' conversations reach a few thousand
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # as zlib wants them


async def read(request: web.Request, limit: int) -> bytes:
    """The body, unpacked. Raises TooLarge, BadRequest."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limit) from None
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return raw
    if encoding not in _WINDOWS:
        raise BadRequest(f"A body in content-encoding {encoding} is not read here; send it plain, or as gzip.")
    return await asyncio.to_thread(_unpacked, raw, encoding, limit)


def _unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    unpack = zlib.decompressobj(_WINDOWS[encoding])
    try:
        body = unpack.decompress(raw, limit)
    except zlib.error as error:
        raise BadRequest(f"The body is no {encoding} ({error}).") from None
    if unpack.unconsumed_tail:
        raise _too_large(limit)
    return body


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is over {limit} bytes; raise server.max_body_bytes to allow it.")


def parsed(raw: bytes, before: SaidBefore, known: KnownPrefix, dialect: Dialect) -> tuple[Body, Asked]:
    """Raises BadRequest."""
    try:
        body = before.read(raw, known)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON ({error}).") from None
    if len(raw) > DEEPEST and deeper(body.fresh, DEEPEST):
        raise BadRequest(f"The body is nested over {DEEPEST} levels deep; nothing was passed on.")
    return body, bounded(dialect.parse(body.parsed))


def bounded(asked: Asked) -> Asked:
    """Raises BadRequest where there are more messages than any conversation has. Each is a row of the store, and all
    others wait for the last of them."""
    if (count := len(asked.messages)) > MOST:
        raise BadRequest(
            f"The conversation has {count:,} messages, and rlproxy takes {MOST:,} at most; nothing was passed on. "
            "Send fewer of them: begin it anew, or sum up what was said."
        )
    return asked
