"""Counting tokens at a backend that breaks off: once more, since a count costs and changes nothing, then an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

ASKED = {"model": "fake", "messages": [{"role": "user", "content": "hi there"}], "max_tokens": 8}


class Breaking(FakeBackend):
    """As llama.cpp; it closes the connection on so many of the requests to one route, before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.speaks |= {"tokenize", "apply-template"}
        self.breaks: dict[str, int] = {}
        self.heard: list[str] = []

    async def listen(self, app: web.Application, port: int = 0, host: str = "127.0.0.1") -> None:
        app.middlewares.append(self._breaking)
        await super().listen(app, port, host)

    @web.middleware
    async def _breaking(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.heard.append(request.path)
        if self.breaks.get(request.path, 0) > 0:
            self.breaks[request.path] -= 1
            assert request.transport is not None
            request.transport.abort()
        found: web.StreamResponse = await handler(request)
        return found


@pytest.fixture
async def breaking(tmp_path: Path) -> AsyncIterator[tuple[Proxy, Breaking]]:
    backend = Breaking()
    await backend.start()
    proxy = Proxy(tmp_path / "home", backend, FakeLauncher())
    await proxy.start()
    yield proxy, backend
    await proxy.stop()
    await backend.stop()


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/tokenize", "/apply-template"])
async def test_a_connection_that_breaks_is_tried_once_more(breaking: tuple[Proxy, Breaking], path: str) -> None:
    proxy, backend = breaking
    backend.breaks = {path: 1}
    async with proxy.http.post("/v1/messages/count_tokens", json=ASKED) as response:
        assert response.status == 200 and await response.json() == {"input_tokens": 2}


async def test_one_that_breaks_again_is_an_error_like_any_other(breaking: tuple[Proxy, Breaking]) -> None:
    proxy, backend = breaking
    backend.breaks = {"/apply-template": 2}
    async with proxy.http.post("/v1/messages/count_tokens", json=ASKED) as response:
        answer = await response.json()
    assert response.status == 503 and response.headers["retry-after"]
    assert answer["type"] == "error" and "does not answer" in answer["error"]["message"]
    assert backend.heard.count("/apply-template") == 2
