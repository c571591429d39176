"""llama-server over a real socket, with no model behind it: a router over presets, or a plain server.

Faithful to the recorded answers of b10434 in what a swap meets:

- A preset file is read only when told to.
- Instances take a while to load.
- An unload cuts running streams, and so does a full router's choice of one to drop.
- An unknown model is a 400.
- `/lora-adapters` takes a `path` in silence and changes nothing.
- The prompt cache knows nothing of scales.

Every word of a reply is the name of what answered.
As a program it is a plain server: `python -m scripts.fakes.llamacpp --port N [--lora FILE] …`.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from scripts.fakes.listening import Listening

MODEL = "fake"
WORDS = 6


class FakeLlama(Listening):
    def __init__(self, presets: Path | None = None, places: int = 3, loras: tuple[str, ...] = ()) -> None:
        self.presets = presets
        self.places = places
        self.loras = list(loras)  # of a plain server, by number
        self.sections: dict[str, dict[str, str]] = {}
        self.loaded: dict[str, str] = {}  # loading, loaded; the least recently used first
        self.started: list[tuple[str, str | None]] = []  # the instances that were started, and the LoRA of each
        self.refuse: set[str] = set()  # names that fail to load
        self.cut: list[str] = []  # streams that were broken off
        self.requests: list[dict[str, Any]] = []
        self.stuck = self.chokes = ""  # a prompt with this word in it is never answered, or with an error
        self.silent: Callable[[], bool] = lambda: False  # no prompt is answered
        self.pause_s = 0.0
        self.load_s = 0.02
        self.defaults: dict[str, Any] = {}  # how it samples where nobody says otherwise
        self.key: str | None = None  # --api-key, or LLAMA_API_KEY
        self.file = "fake.gguf"  # that it says to have loaded
        self.cached: tuple[str, str] | None = None  # a prompt, and what it was read with
        self._streams: set[tuple[str, Any]] = set()

    async def start(self, port: int = 0) -> None:
        self._read()
        app = web.Application(middlewares=[self._authorised])
        app.add_routes([
            web.get("/health", self._health),
            web.get("/props", self._props),
            web.get("/v1/models", self._models),
            web.get("/models", self._models),
            web.post("/models/load", self._load),
            web.post("/models/unload", self._unload),
            web.get("/lora-adapters", self._loras),
            web.post("/lora-adapters", self._scale),
            web.post("/v1/chat/completions", self._chat),
        ])  # fmt: skip
        await self.listen(app, port)

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Any) -> Any:
        """Let everybody reach these few paths, as llama-server does; all others need the key."""
        free = request.path in ("/health", "/v1/health", "/models", "/v1/models")
        if self.key is None or free or request.headers.get("authorization") == f"Bearer {self.key}":
            return await handler(request)
        return _error(401, "Invalid API Key")

    def _read(self) -> None:
        if self.presets is not None:
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(self.presets.read_text())
            self.sections = {name: dict(parser[name]) for name in parser.sections() if name != "*"}
            for name in [n for n in self.loaded if n not in self.sections]:
                self._drop(name)

    def _drop(self, name: str) -> None:
        self.loaded.pop(name, None)
        for stream in [s for s in self._streams if s[0] == name]:
            self.cut.append(name)
            stream[1].abort()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _props(self, request: web.Request) -> web.Response:
        if self.presets is None or request.query.get("model") in self.loaded:
            about = {"model_alias": MODEL, "model_path": self.file, "total_slots": 4}
            return web.json_response({**about, "default_generation_settings": self.defaults})
        return web.json_response({"role": "router", "max_instances": self.places, "models_autoload": True})

    async def _models(self, request: web.Request) -> web.Response:
        if self.presets is None:
            return web.json_response(
                {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "llamacpp"}]}
            )
        if request.query.get("reload"):
            self._read()
        data = [
            {"id": n, "object": "model", "status": {"value": self.loaded.get(n, "unloaded")}} for n in self.sections
        ]
        return web.json_response({"object": "list", "data": data})

    async def _load(self, request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        if name not in self.sections:
            return _error(404, "File Not Found")
        if name in self.loaded:
            return _error(400, "model is already running")
        self._begin(name)
        return web.json_response({"success": True})

    def _begin(self, name: str) -> None:
        while len(self.loaded) >= self.places:
            self._drop(next(iter(self.loaded)))
        self.loaded[name] = "loading"
        self.started.append((name, self.sections[name].get("lora")))
        asyncio.get_running_loop().call_later(self.load_s, self._ended, name)

    def _ended(self, name: str) -> None:
        if name in self.refuse:
            self._drop(name)
        elif name in self.loaded:
            self.loaded[name] = "loaded"

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        if name not in self.loaded:
            return _error(400, "model is not running")
        self._drop(name)
        return web.json_response({"success": True})

    async def _loras(self, request: web.Request) -> web.Response:
        return web.json_response([{"id": i, "path": path, "scale": 0.0} for i, path in enumerate(self.loras)])

    async def _scale(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True})  # whatever it was told

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        while (self.stuck and self.stuck in json.dumps(body["messages"])) or self.silent():
            await asyncio.sleep(0.01)
        if self.chokes and self.chokes in json.dumps(body["messages"]):
            return _error(500, "Compute error.")
        name = str(body["model"])
        if self.presets is None:
            name = self._wears(body)
        elif name not in self.sections:
            return _error(400, f"model '{name}' not found")
        else:
            if name not in self.loaded:
                self._begin(name)
            while self.loaded.get(name) == "loading":
                await asyncio.sleep(0.005)
            if name not in self.loaded:
                return _error(500, f"model name={name} failed to load")
            self.loaded[name] = self.loaded.pop(name)  # the most recently used is last
        if not body.get("stream"):
            message = {"role": "assistant", "content": f"{name} " * WORDS}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response({"id": "chatcmpl-x", "model": body["model"], "choices": [choice]})
        return await self._stream(request, body, name)

    def _wears(self, body: dict[str, Any]) -> str:
        """Name what a plain server answers with: this request's scales, or a cached prompt of other ones."""
        chosen = [scale["id"] for scale in body.get("lora") or () if scale["scale"]]
        name = f"lora-{chosen[0]}" if chosen else MODEL
        if len(self.loras) == 1 and "lora" not in body and "--lora" in sys.argv:  # a process of its own
            name = Path(self.loras[0]).name.partition("-")[0]
        prompt = json.dumps(body["messages"])
        if body.get("cache_prompt", True) and self.cached and self.cached[0] == prompt:
            return self.cached[1]
        self.cached = (prompt, name)  # also of a request that did not look there
        return name

    async def _stream(self, request: web.Request, body: dict[str, Any], name: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        stream = (name, request.transport)
        self._streams.add(stream)
        try:
            for n in range(WORDS):
                choice = {"index": 0, "delta": {"content": f"{name} "}, "finish_reason": None}
                choice |= {"finish_reason": "stop"} if n == WORDS - 1 else {}
                chunk = {"id": "chatcmpl-x", "model": body["model"], "choices": [choice]}
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                await asyncio.sleep(self.pause_s)
            await response.write(b"data: [DONE]\n\n")
        finally:
            self._streams.discard(stream)
        return response


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"code": status, "message": message}}, status=status)


async def _main() -> None:
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    fake = FakeLlama(loras=(options["--lora"],) if "--lora" in options else ())
    if os.path.exists(options["-m"] + ".broken") and "--lora" in options:
        sys.exit("failed to load the LoRA")
    fake.key = os.environ.get("LLAMA_API_KEY")
    fake.silent = lambda: "--lora" in options and os.path.exists(options["-m"] + ".silent")
    await fake.start(int(options["--port"]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
