"""The backend's side of a request as HTTP: paths, headers, and a body that comes in pieces.

Owns nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from proxy import ndjson, sse
from proxy.errors import BackendBroke
from proxy.wire import loads

# RFC 9110, 7.6.1; lengths and encodings are ours to set anew.
HOP: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()  # noqa: SIM905
)
# aiohttp says RuntimeError where it is asked for more of a connection that broke a moment ago.
CUT: Final = (TimeoutError, aiohttp.ClientError, OSError, RuntimeError)
LOOK_S: Final = 3.0  # how often to see whether the connection of a silent backend still is one
_STREAMS: Final[Mapping[str, type[sse.Splitter] | type[ndjson.Splitter]]] = {
    "text/event-stream": sse.Splitter,
    "application/x-ndjson": ndjson.Splitter,
}


def upstream_path(request: web.Request) -> str:
    """The path at the backend: without `/s/<session>`, with the query as it came."""
    path = request.raw_path
    if "session" in request.match_info:
        path = "/" + path.split("/", 3)[3]
    return path


def end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """All but what belongs to one connection only."""
    named = {h.strip().lower() for h in headers.get("connection", "").split(",")}
    kept = [(k, v) for k, v in headers.items() if k.lower() not in HOP and k.lower() not in named]
    return CIMultiDict(kept)


def splitter_for(upstream: aiohttp.ClientResponse) -> sse.Splitter | ndjson.Splitter | None:
    """What cuts this body into events; None for a plain body."""
    kind = _STREAMS.get(upstream.content_type)
    return None if kind is None else kind()


async def chunks(upstream: aiohttp.ClientResponse, beat_s: float) -> AsyncIterator[bytes | None]:
    """The body as it comes, and None whenever nothing came for `beat_s`.

    Raises BackendBroke, so that it cannot be taken for a client that went away.
    """
    gone = False
    while True:
        chunk: bytes | None = None
        try:
            async with asyncio.timeout(beat_s) as beat:
                chunk = await upstream.content.readany()
        except CUT as error:
            # Gone for a whole beat: what had come before that has been read by now.
            if not beat.expired() or (gone and _gone(upstream)):
                raise cut(error) from error
            gone = _gone(upstream)
        if chunk == b"":
            return
        yield chunk


def _gone(upstream: aiohttp.ClientResponse) -> bool:
    """Whether nothing more can come: after a bad chunk the connection is closed, and nobody told the reader."""
    transport = upstream.connection.transport if upstream.connection is not None else None
    return (transport is None or transport.is_closing()) and not upstream.content.is_eof()


async def pieces(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes, however long the silences are. Raises BackendBroke."""
    async for chunk in chunks(upstream, LOOK_S):
        if chunk is not None:
            yield chunk


async def whole(upstream: aiohttp.ClientResponse) -> bytes:
    """Raises BackendBroke."""
    return b"".join([piece async for piece in pieces(upstream)])


def cut(error: BaseException | None) -> BackendBroke:
    why = f" ({error or type(error).__name__})" if error is not None else ""
    return BackendBroke(f"The backend broke off before its answer was whole{why}; what came is kept. Ask again.")


def no_http(error: aiohttp.ClientError) -> BackendBroke:
    return BackendBroke(f"The backend answered with what is no HTTP ({type(error).__name__}).")


def message_in(answer: bytes) -> str:
    """What an error of a backend says, in whichever of the usual shapes."""
    try:
        body = loads(answer)
        found = body.get("error") or body
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer[:200].decode("utf-8", "replace")
