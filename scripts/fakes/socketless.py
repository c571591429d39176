"""A relay with no sockets on either side: aiohttp's own ends are replaced, everything of ours is real, the store too.

For many thousand requests in a minute. What sockets do on top (framing, lengths, closes) is not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from config.settings import load
from proxy.access.bodies import BODY
from proxy.access.keys import Principal
from proxy.access.security import HEAD, PRINCIPAL, read_head
from proxy.app import make_app
from proxy.backends import make_backend
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.sampling_defaults import NEUTRAL, Defaults
from proxy.dialects import Dialect, dialect_at
from proxy.relay.relay import Relay
from scripts.fakes.launcher import FakeLauncher
from store.store import Store


class Written(AbstractStreamWriter):
    """A writer that keeps the bytes that a client would have been sent after the head."""

    def __init__(self) -> None:
        self.raw = b""

    async def write(self, chunk: Any) -> None:
        self.raw += bytes(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.raw += chunk

    async def drain(self) -> None: ...
    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None: ...
    def enable_chunking(self) -> None: ...
    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None: ...


class Answering:
    """The backend's end: `Connections` and its answer, as far as an exchange uses them."""

    def __init__(self, status: int, kind: str, pieces: Iterable[bytes]) -> None:
        self.status = status
        self.headers = CIMultiDict({"content-type": kind})
        self.is_whole = self.is_read = self.is_here = False  # its last byte is still to be read
        self._pieces: Iterator[bytes] = iter(pieces)

    async def some(self, beat_s: float) -> bytes:
        return next(self._pieces, b"")

    def give_back(self, data: bytes) -> None:
        self._pieces = chain([data], self._pieces) if data else self._pieces

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    def close(self) -> None: ...


class _Connections:
    """In the place of all connections."""

    def __init__(self, answer: ContextVar[Answering]) -> None:
        self._answer = answer

    async def ask(self, *args: Any, on_sent: Callable[[], None], **options: Any) -> Answering:
        on_sent()
        return self._answer.get()


class Socketless:
    def __init__(self, home: Path, kind: str) -> None:
        self._home, self._kind = home, kind
        self._answer: ContextVar[Answering] = ContextVar("answer")  # each request has its own, at the same time

    async def start(self) -> None:
        flags = {"home": self._home, "backend.kind": self._kind, "backend.url": "http://127.0.0.1:1"}
        flags |= {"backend.model": "golden", "train.weights": "/nowhere", "train.start_at": 10**6}
        settings = load(flags, environ={}).settings
        launcher = FakeLauncher()
        self.store = await Store.open(settings.home)
        backend = make_backend(settings, launcher)
        if isinstance(backend, OpenAICompatible):  # there is no server to look at
            backend._defaults = Defaults(NEUTRAL, "the test says so")
        with mock.patch("proxy.web.handlers.Relay", side_effect=self._keep):
            make_app(settings, self.store, backend, launcher)
        self.relay.parts.connections = _Connections(self._answer)  # type: ignore[assignment]

    def _keep(self, *args: Any) -> Relay:
        self.relay = Relay(*args)
        return self.relay

    async def stop(self) -> None:
        await self.relay.parts.tasks.drain_named("finish-", 10.0)
        await self.store.close()

    async def ask(self, route: str, body: bytes, answer: Answering, **headers: str) -> tuple[web.StreamResponse, bytes]:
        """One request. What the backend answers is `answer`, whatever is asked; raises what the relay raises."""
        loop = asyncio.get_running_loop()
        payload = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
        payload.feed_data(body)
        payload.feed_eof()
        writer = Written()
        request = make_mocked_request(
            "POST", route, headers={"content-type": "application/json", **headers}, payload=payload, writer=writer,
            client_max_size=2**26,
        )  # fmt: skip
        request[PRINCIPAL], request[HEAD], request[BODY] = Principal("admin"), read_head(request, {}), body
        self._answer.set(answer)
        dialect: Dialect | None = dialect_at(route)
        assert dialect is not None
        response = await self.relay.data(request, dialect)
        if not response.prepared:
            assert isinstance(response, web.Response) and isinstance(response.body, bytes)
            writer.raw = response.body
        return response, writer.raw
