"""One request to the backend and its answer: ask, pass on, and leave the completion stored, whatever happens.

Owns the order in which bytes and commits leave, and what happens when either side goes away in the middle. What the
bytes mean belongs to the dialects, what is stored to capture, which requests come here to relay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from config.settings import Settings
from proxy.backends.base import Backend
from proxy.backends.openai import down
from proxy.capture import Capture, Health
from proxy.dialects import Asked, Dialect
from proxy.errors import BackendBroke, Conflict, ProxyError
from proxy.lifecycle import Tasks
from proxy.metrics import Metrics
from proxy.security import outgoing_headers
from proxy.sse import Event, Splitter
from proxy.swap import Lease, Swap
from proxy.wire import Rules, dumps, rewrite
from store.errors import DuplicateCompletion
from store.records import NewCompletion
from store.store import Store

# RFC 9110, 7.6.1; lengths and encodings are ours to set anew.
HOP: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()  # noqa: SIM905
)
GONE: Final = (aiohttp.ClientConnectionResetError, ConnectionResetError, BrokenPipeError)


@dataclass
class Parts:
    """What an exchange works with; the same for all of them."""

    settings: Settings
    store: Store
    backend: Backend
    swap: Swap
    metrics: Metrics
    tasks: Tasks
    health: Health
    http: aiohttp.ClientSession | None = None  # set at start-up, when there is a loop

    def request_headers(self, request: web.Request) -> CIMultiDict[str]:
        return outgoing_headers(
            end_to_end(request.headers), settings=self.settings.server, backend=self.backend.headers()
        )


class Exchange:
    """One request to the backend and its answer."""

    def __init__(
        self,
        parts: Parts,
        request: web.Request,
        dialect: Dialect,
        asked: Asked,
        lease: Lease,
        started: float,
    ) -> None:
        self._parts = parts
        self._request = request
        self._dialect = dialect
        self._asked = asked
        self._lease = lease
        self._started = started
        self._capture: Capture | None = None
        self._finished = False
        self._overhead_ms = 0.0

    async def capture_as(self, row: NewCompletion) -> None:
        """Raises Conflict where the client chose an id that exists."""
        own_id = "x-rl-completion-id" in self._request.headers
        self._capture = Capture(
            self._parts.store, self._parts.metrics, self._parts.health, self._dialect, row, self._asked.n
        )
        try:
            await self._capture.begin(wait=own_id)
        except DuplicateCompletion:
            self._capture = None
            raise Conflict(
                f"The completion id {row.request_id} exists already; choose another.",
                param="x-rl-completion-id",
            ) from None

    async def run(self, raw: bytes, add: Mapping[str, bytes]) -> web.StreamResponse:
        """Ask, pass the answer on, and leave the completion stored, whatever happens."""
        error: str | None = None
        try:
            upstream = await self._ask(raw, add)
            try:
                if upstream.content_type == "text/event-stream":
                    return await self._stream(upstream)
                return await self._whole(upstream)
            finally:
                upstream.close()  # a reply nobody reads any more must stop costing the backend
        except ProxyError as failed:
            error = failed.message
            raise
        except (asyncio.CancelledError, *GONE):
            error = "the client went away"
            raise
        finally:
            if self._capture is not None and not self._finished:
                status = "partial" if error == "the client went away" else "error"
                # In a task of its own: this one may have been cancelled.
                self._parts.tasks.spawn(
                    f"finish-{self._capture.id}",
                    self._capture.finish(status, error=error),  # type: ignore[arg-type]
                )

    # Asking

    async def _ask(self, raw: bytes, add: Mapping[str, bytes]) -> aiohttp.ClientResponse:
        """Send it; once more where the backend had lost the adapter, or closed an idle connection under us."""
        upstream = await self._send(raw, add)
        version = self._lease.version
        if upstream.status == 404 and version:
            await upstream.read()
            await self._parts.swap.lost(version)
            upstream = await self._send(raw, add)
        return upstream

    async def _send(self, raw: bytes, add: Mapping[str, bytes]) -> aiohttp.ClientResponse:
        parts = self._parts
        headers = parts.request_headers(self._request)
        headers["accept-encoding"] = "identity"  # the answer has to be read here
        headers["content-type"] = "application/json"
        body = rewrite(raw, {}, {**add, "model": dumps(self._lease.model)})
        url = parts.backend.url + upstream_path(self._request)
        overhead = time.perf_counter() - self._started
        parts.metrics.overhead.observe(overhead)
        self._overhead_ms = overhead * 1000
        assert parts.http is not None
        for last_try in (False, True):
            try:
                return await parts.http.post(
                    url, data=body, headers=headers, allow_redirects=False, auto_decompress=True
                )
            except aiohttp.ServerDisconnectedError as error:
                if last_try:
                    raise down(parts.backend.url, error) from error
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise down(parts.backend.url, error) from error
        raise AssertionError("unreachable")

    # Answering

    def _headers(self, upstream: aiohttp.ClientResponse) -> CIMultiDict[str]:
        headers = end_to_end(upstream.headers)
        for name in ("content-length", "content-encoding", "x-request-id"):
            headers.popall(name, None)
        if self._capture is not None:
            headers["x-rl-completion-id"] = self._capture.id
        headers["x-rl-adapter"] = self._lease.label
        headers["x-rl-overhead-ms"] = f"{self._overhead_ms:.2f}"
        headers["x-accel-buffering"] = "no"
        return headers

    def _rules(self) -> Rules:
        """The client sees the model it asked for; an adapter's own name stays between us and the backend."""
        model = self._asked.model if self._lease.version is not None and self._asked.model else None
        if self._capture is None:
            return {"model": dumps(model)} if model else {}
        return self._dialect.rules(id=self._capture.id, model=model, asked=self._asked)

    async def _whole(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        try:
            body = await upstream.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _cut(error) from error
        good = upstream.status == 200
        body_out = _rewritten(body, self._rules()) if good else body  # an error of the backend as it is
        if self._capture is not None:
            if good:
                await self._finish("done", whole=body)
            else:
                await self._finish("error", error=f"the backend answered {upstream.status}: {body[:300]!r}")
        return web.Response(status=upstream.status, body=body_out, headers=self._headers(upstream))

    async def _stream(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=self._headers(upstream))
        await response.prepare(self._request)
        splitter, rules = Splitter(), self._rules()
        try:
            async for chunk in _chunks(upstream):
                out = bytearray()
                for event in splitter.feed(chunk):
                    if self._dialect.terminal(event):
                        if out:
                            await response.write(bytes(out))
                            out.clear()
                        await self._finish("done")
                        out += event.raw
                    else:
                        out += self._pass(event, rules)
                if out:
                    await response.write(bytes(out))
            if rest := splitter.rest():
                await response.write(self._pass(Event(rest), rules))
        except BackendBroke as error:
            await self._broken_off(response, error)
        else:
            if not self._finished:
                await self._ended_without_terminal(response)
        await response.write_eof()
        return response

    def _pass(self, event: Event, rules: Rules) -> bytes:
        data = event.data
        if data is None or not data.startswith(b"{"):
            return event.raw
        if self._capture is not None and not self._finished:
            self._capture.add(data)
        changed = _rewritten(data, rules)
        return event.raw if changed is data else event.with_data(changed).raw

    async def _ended_without_terminal(self, response: web.StreamResponse) -> None:
        """Some servers just close. With a finish reason for every choice the answer is whole all the same."""
        if self._capture is None:
            return
        replies = self._capture.replies()
        if len(replies) == self._asked.n and all(r.finish_reason for r in replies):
            await self._finish("done")
        else:
            await self._broken_off(response, _cut(None))

    async def _broken_off(self, response: web.StreamResponse, error: ProxyError) -> None:
        await self._finish("partial", error=error.message)
        await response.write(self._dialect.error_event(error))

    async def _finish(self, status: Any, *, whole: bytes | None = None, error: str | None = None) -> None:
        if self._capture is None or self._finished:
            return
        self._finished = True
        replies = self._capture.whole(whole) if whole is not None else None
        # Shielded: a client that goes away in this moment does not undo what it has already been sent.
        await asyncio.shield(self._capture.finish(status, replies, error=error))


def upstream_path(request: web.Request) -> str:
    """The path at the backend: without `/s/<session>`, with the query as it came."""
    path = request.raw_path
    if "session" in request.match_info:
        path = "/" + path.split("/", 3)[3]
    return path


async def _chunks(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes. Raises BackendBroke, so that it cannot be taken for a client that went away."""
    try:
        async for chunk in upstream.content.iter_any():
            yield chunk
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise _cut(error) from error


def end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """All but what belongs to one connection only."""
    named = {h.strip().lower() for h in headers.get("connection", "").split(",")}
    kept = [(k, v) for k, v in headers.items() if k.lower() not in HOP and k.lower() not in named]
    return CIMultiDict(kept)


def _rewritten(data: bytes, rules: Rules) -> bytes:
    """Garbage is passed on as garbage; the capture has marked it."""
    try:
        return rewrite(data, rules)
    except ValueError:
        return data


def _cut(error: BaseException | None) -> BackendBroke:
    why = f" ({error or type(error).__name__})" if error is not None else ""
    return BackendBroke(f"The backend broke off before its answer was whole{why}; what came is kept. Ask again.")
