"""A whole proxy on loopback in this process; behind it a fake backend and a fake trainer, or real ones.

Owns the proxy's start and end. Not here: its fixtures (tests/conftest), a process of its own (serving).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from config.settings import load
from proxy.access.security import LOCAL
from proxy.app import make_app
from proxy.backends import make_backend
from proxy.backends.installed_versions import mark_of
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.vllm import VLLM
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from store.file.db_key import Secret
from store.store import Store
from trainer.launch import LocalLauncher


class Proxy:
    """A proxy that tests can stop and start again on the same home."""

    def __init__(self, home: Path, backend: FakeBackend, launcher: FakeLauncher) -> None:
        self.home = home
        self.backend = backend
        self.launcher = launcher
        self.secret: Secret | None = None  # of an encrypted home
        self.kind: type[OpenAICompatible] | None = VLLM  # None: as the settings say
        self.flags: dict[str, Any] = {"home": home, "backend.kind": "vllm", "backend.url": backend.url}
        self.flags |= {"train.weights": "/nowhere", "train.start_at": 4, "train.min_free_memory_gb": 0}
        self.flags["train.nice"] = 0  # or a real run would wait for all other tests

    @property
    def mark(self) -> str:
        """The mark in the names that this home gives to its versions at a server."""
        return mark_of(self.home)

    async def start(self, **flags: Any) -> None:
        settings = load({**self.flags, **{k.replace("__", "."): v for k, v in flags.items()}}, environ={}).settings
        self.store = await Store.open(settings.home, self.secret, url=settings.store.address)
        backend = self.kind(settings.backend) if self.kind else make_backend(settings, self.launcher)
        self.app_backend = backend
        self.app = app = make_app(settings, self.store, backend, self.launcher)
        self.local = app[LOCAL]
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.http = aiohttp.ClientSession(base_url=self.url)

    async def stop(self) -> None:
        await self.http.close()
        await self._runner.cleanup()
        await self.store.close()

    async def chat(self, *texts: str, headers: dict[str, str] | None = None, **fields: Any) -> aiohttp.ClientResponse:
        """A conversation of user and assistant messages by turns, the first by the user."""
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        body = {"model": "fake", "messages": messages, **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def say(self, *texts: str, **fields: Any) -> str:
        answer = await (await self.chat(*texts, **fields)).json()
        return str(answer["choices"][0]["message"]["content"])

    async def rate(self, **body: Any) -> tuple[int, dict[str, Any]]:
        async with self.http.post("/v1/feedback", json=body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> Any:
        async with self.http.get(path) as response:
            return await response.json()

    async def post(self, path: str) -> tuple[int, Any]:
        async with self.http.post(path) as response:
            return response.status, await response.json()


def proxy_before(home: Path, **flags: Any) -> Proxy:
    """A proxy that asks the server of its settings and trains for real; the fake in it is asked by nobody."""
    proxy = Proxy(home, FakeBackend(), LocalLauncher())  # type: ignore[arg-type]
    proxy.kind = None
    proxy.flags |= {name.replace("__", "."): value for name, value in flags.items()}
    return proxy
