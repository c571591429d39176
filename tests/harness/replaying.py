"""A proxy with a raw socket behind it, on a loop of a thread of its own, so that hypothesis can ask it many times."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from config.settings import load
from proxy.app import make_app
from proxy.backends import make_backend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.recorded import RecordedBackend
from store.records import Completion
from store.store import Store
from tests.harness.polling import Polls

T = TypeVar("T")


@dataclass
class Got:
    status: int
    headers: dict[str, str]
    body: bytes
    id: str  # what the client may rate by; empty where nothing was captured
    sent: tuple[str, Any]  # what reached the backend: route and body


class Replaying:
    """`kind` says which backend rlproxy takes the raw socket for."""

    def __init__(self, home: Path, kind: str) -> None:
        self._home, self._kind = home, kind
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.upstream = RecordedBackend()

    def __enter__(self) -> Replaying:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self) -> None:
        await self.upstream.start()
        # The model that trains has no defaults of its own for sampling: then captures are exact.
        model = self._home / "model"
        await asyncio.to_thread(model.mkdir, parents=True, exist_ok=True)
        flags = {"home": self._home, "backend.kind": self._kind, "backend.url": self.upstream.url}
        flags |= {"backend.model": "golden", "train.weights": str(model), "train.start_at": 10**6}
        settings = load(flags, environ={}).settings
        launcher = FakeLauncher()
        self.store = await Store.open(settings.home)
        self._runner = web.AppRunner(
            make_app(settings, self.store, make_backend(settings, launcher), launcher),
            handler_cancellation=True,
            shutdown_timeout=1,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._http = aiohttp.ClientSession(base_url=self.url)

    async def _stop(self) -> None:
        await self._http.close()
        await self._runner.cleanup()
        await self.store.close()
        await self.upstream.stop()

    async def ask(self, route: str, body: Any, answer: Sequence[bytes], *, more: dict[str, str] | None = None) -> Got:
        """Ask once; the backend answers these bytes. `body` is sent as it is where it is bytes."""
        self.upstream.answer = answer
        said = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self._http.post(route, headers=more, **said) as response:
            raw = await response.read()
        id = response.headers.get("x-rl-completion-id", "")
        # What rlproxy asks of its own accord of itself: whether an adapter would be taken, how a prompt reads.
        asked = [one for one in self.upstream.requests if not one[0].endswith(("_lora_adapter", "/tokenize"))]
        sent = asked[-1] if asked else ("", None)
        headers = {k.lower(): v for k, v in response.headers.items()}
        return Got(response.status, headers, raw, id, sent)

    async def captured(self, id: str) -> Completion:
        """When it has ended: a plain body can be read whole a moment before the row of its twin is there."""
        async for _ in Polls():
            found = await self.store.completions.get(id)
            if found is not None and found.status != "pending":
                return found
        raise AssertionError(f"{id} was never stored")
