"""mlx_lm.server over a real socket, with no model behind it.

Faithful to the recorded answers of mlx-lm 0.32.2 in what a swap meets:

- An adapter is a folder that a request names, read with the first request that names it and not again.
- One adapter is applied at a time, and a request for another one waits until the running ones have ended.
- `default_model` ignores adapters.
- Whatever fails is a 404.
- The list of models is empty where the hub's cache was never used.
- Streams have keepalive comments, and no log-probs.

Every word of a reply is the name of what answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from scripts.fakes.listening import Listening

MODEL = "fake"
WORDS = 6


class FakeMlx(Listening):
    def __init__(self) -> None:
        self.listed: list[str] | None = [MODEL]  # None: nothing is answered, as where there is no cache of the hub
        self.requests: list[dict[str, Any]] = []
        self.reloads: list[str | None] = []  # the adapter folders, as they were read
        self.pause_s = 0.0
        self.read: dict[str, str] = {}  # what was found in a folder when it was read first
        self._worn: str | None = None
        self._running = 0
        self._door = asyncio.Lock()  # who wants another adapter lets nobody in before it
        self._changed = asyncio.Condition()

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.on_response_prepare.append(_as_http_server)
        app.add_routes([
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._chat),
        ])  # fmt: skip
        await self.listen(app, port)

    async def stop(self) -> None:
        """Stop, and forget what was read, as a process that ends does."""
        await super().stop()
        self._worn, self._running = None, 0
        self.read.clear()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _models(self, request: web.Request) -> web.Response:
        if self.listed is None:
            return web.Response(content_type="application/json")
        data = [{"id": name, "object": "model", "created": 1} for name in self.listed]
        return web.json_response({"object": "list", "data": data})

    @contextlib.asynccontextmanager
    async def _wearing(self, folder: str | None) -> AsyncIterator[None]:
        async with self._door, self._changed:
            await self._changed.wait_for(lambda: self._worn == folder or not self._running)
            if folder != self._worn:
                if folder is not None:
                    self.read.setdefault(folder, _name(Path(folder)))
                self.reloads.append(folder)
                self._worn = folder
            self._running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._running -= 1
                self._changed.notify_all()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        folder = None if body["model"] == "default_model" else body.get("adapters")
        if body["model"] not in (MODEL, "default_model"):
            return _error(f"Repository Not Found for url: {body['model']}")
        if folder is not None and not Path(folder).exists():
            return _error(f"The adapter path does not exist: {folder}")
        async with self._wearing(folder):
            name = MODEL if folder is None else self.read[folder]
            if body.get("stream"):
                return await self._stream(request, body, name)
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [{"id": n, "logprob": -0.5} for n in range(WORDS)]}
            choice["message"] = {"role": "assistant", "content": f"{name} " * WORDS}
            usage = {"prompt_tokens": 3, "completion_tokens": WORDS, "total_tokens": WORDS + 3}
            whole = {"id": "chatcmpl-x", "object": "chat.completion", "model": body["model"], "created": 1}
            return web.json_response({**whole, "choices": [choice], "usage": usage})

    async def _stream(self, request: web.Request, body: dict[str, Any], name: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(request)
        await response.write(b": keepalive 3/3\n\n")
        for n in range(WORDS + 1):
            delta = {"role": "assistant"} | ({"content": f"{name} "} if n < WORDS else {})
            choice = {"index": 0, "finish_reason": "stop" if n == WORDS else None, "delta": delta}
            chunk = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await asyncio.sleep(self.pause_s)
        await response.write(b"data: [DONE]\n\n")
        return response


async def _as_http_server(request: web.Request, response: web.StreamResponse) -> None:
    """It is Python's own http.server, and says so."""
    response.headers["server"] = "BaseHTTP/0.6 Python/3.11.2"


def _name(folder: Path) -> str:
    """Name of the version that the test's converter wrote this folder from."""
    try:
        return Path(json.loads((folder / "adapter_config.json").read_text())["from"]).name
    except ValueError as error:
        raise web.HTTPNotFound(text=json.dumps({"error": str(error)}), content_type="application/json") from error


def _error(message: str) -> web.Response:
    return web.json_response({"error": message}, status=404)
