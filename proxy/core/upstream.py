"""The backend's side of a request as HTTP: paths, headers, and a body that comes in pieces.

Owns nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from proxy.core import ndjson, sse
from proxy.core.errors import BackendBroke, BrokeOff
from proxy.core.json_edit import loads

# RFC 9110, 7.6.1, and what older clients say to a proxy; lengths and encodings are ours to set anew.
HOP: Final = frozenset({
    "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
# aiohttp says RuntimeError where it is asked for more of a connection that broke a moment ago.
CUT: Final = (TimeoutError, aiohttp.ClientError, OSError, RuntimeError)
LOOK_S: Final = 3.0  # how often to see whether the connection of a silent backend still is one
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))  # only what is not a character of a path is encoded
_STREAMS: Final[Mapping[str, type[sse.EventSplitter]]] = {
    "text/event-stream": sse.EventSplitter,
    "application/x-ndjson": ndjson.NdjsonSplitter,
}


def upstream_path(request: web.Request) -> str:
    """The path at the backend: without `/s/<session>`, with the query as it came."""
    path = request.raw_path
    if "session" in request.match_info:
        path = "/" + path.split("/", 3)[3]
    return path


def upstream_url(base: str, request: web.Request) -> URL:
    """Sent as it is, since the guard has decided on these bytes (roles); yarl puts in order what it gets as text."""
    target = quote(upstream_path(request), safe=_ASCII, errors="surrogateescape")
    return URL(str(URL(base)).rstrip("/") + target, encoded=True)


def end_to_end(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """All but what belongs to one connection only. There may be several `Connection` headers, each with a list."""
    lists = (*headers.getall("connection", ()), *headers.getall("proxy-connection", ()))
    named = {name.strip().lower() for listed in lists for name in listed.split(",")}
    kept = [(k, v) for k, v in headers.items() if k.lower() not in HOP and k.lower() not in named]
    return CIMultiDict(kept)


def splitter_for(upstream: aiohttp.ClientResponse) -> sse.EventSplitter | None:
    """The cutter of this body into events; None for a plain body."""
    kind = _STREAMS.get(upstream.content_type)
    return None if kind is None else kind()


async def chunks(upstream: aiohttp.ClientResponse, beat_s: float) -> AsyncIterator[bytes | None]:
    """The body as it comes, and None whenever nothing came for `beat_s`.

    Raises BrokeOff, so that it cannot be taken for a client that went away; after all that has come.
    """
    gone, patience = False, _Patience(beat_s)
    try:
        while True:
            chunk: bytes | None = None
            broke: BaseException | None = None
            try:
                chunk = await patience.read(upstream.content)
            except CUT as error:
                # Gone for a whole beat: what had come before that has been read by now.
                if not isinstance(error, _Silent) or (gone and _gone(upstream)):
                    broke, chunk = error, _left(upstream.content)
                gone = _gone(upstream)
            if chunk != b"":
                yield chunk
            if broke is not None:
                raise cut(broke) from broke
            if chunk == b"":
                return
    finally:
        patience.end()


def _left(content: aiohttp.StreamReader) -> bytes:
    """Bytes that had come before the connection broke, and nobody had read.

    aiohttp's reader raises what broke it before it hands out what it holds: all that came while its reader was busy
    with a slow client. Without that exception `read_nowait` has it. A queue of our own that always reads would cost a
    task for each answer, and a switch for each chunk.
    """
    content.set_exception(None)  # type: ignore[arg-type]
    held = []
    while piece := content.read_nowait():  # more than once: reading lets the parser go on with what it held back
        held.append(piece)
    return b"".join(held)


class _Silent(TimeoutError):
    """Nothing came for a beat."""


class _Patience:
    """Act as `asyncio.timeout` around every read of one task, with one timer for all of them: it costs more than a
    read."""

    def __init__(self, beat_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._beat_s, self._task, self._before = beat_s, task, task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = None  # of the read that is waited for
        self._late = False

    async def read(self, content: aiohttp.StreamReader) -> bytes:
        """The next bytes; empty at the end. Raises _Silent."""
        self._since = self._loop.time()
        if self._timer is None:
            self._look()
        try:
            return await content.readany()
        except asyncio.CancelledError:
            late, self._late = self._late, False
            if late and self._task.uncancel() <= self._before:  # else somebody else has ended it, too
                raise _Silent from None
            raise
        finally:
            self._since = None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return  # the next read sets it again
        due = self._since + self._beat_s
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._late = True
            self._task.cancel()


def _gone(upstream: aiohttp.ClientResponse) -> bool:
    """Tell whether nothing more can come: after a bad chunk the connection is closed, and nobody told the reader."""
    transport = upstream.connection.transport if upstream.connection is not None else None
    return (transport is None or transport.is_closing()) and not upstream.content.is_eof()


async def pieces(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes, however long the silences are. Raises BrokeOff, after all that has come."""
    async for chunk in chunks(upstream, LOOK_S):
        if chunk is not None:
            yield chunk


async def whole(upstream: aiohttp.ClientResponse) -> bytes:
    """All of it. Raises BrokeOff; not where only the end of the HTTP around a whole JSON object is missing."""
    if upstream.content.is_eof() and upstream.content.exception() is None:  # it came with its head, as most
        return await upstream.content.read()
    came = []
    try:
        async for piece in pieces(upstream):
            came.append(piece)
    except BrokeOff:
        if not _is_closed(body := b"".join(came)):
            raise
        return body
    return b"".join(came)


def _is_closed(body: bytes) -> bool:
    """Tell whether this is JSON that nothing but blanks can follow. A number, for one, could have gone on."""
    try:
        return isinstance(loads(body), dict | list)
    except ValueError:
        return False


def cut(error: BaseException | None) -> BrokeOff:
    why = f" ({error or type(error).__name__})" if error is not None else ""
    return BrokeOff(f"The backend broke off before its answer was whole{why}; what came is kept. Ask again.")


def no_http(error: aiohttp.ClientError) -> BackendBroke:
    return BackendBroke(f"The backend did not answer in HTTP ({type(error).__name__}).")


def message_in(answer: bytes) -> str:
    """The message of a backend's error, in whichever of the usual shapes."""
    try:
        body = loads(answer)
        found = body.get("error") or body
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer[:200].decode("utf-8", "replace")
