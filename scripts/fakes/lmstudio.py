"""LM Studio over a real socket, with no model behind it: fake, after the documentation of REST API v1 of April 2026.

Faithful in what a swap meets:

- It looks through a folder `publisher/model/file.gguf` when it lists.
- Keys are in small letters.
- Instances have names of their own, and it may drop them.
- A route that it does not have is a 200 and an error.
- Another model answers for a name that it does not know.

Every word of a reply is the name of what answered.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from scripts.fakes.listening import Listening

MODEL = "fake"
WORDS = 4


class FakeLMStudio(Listening):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "someone" / "Fake-GGUF" / "Fake-Q4_K_M.gguf"
        self.file.parent.mkdir(parents=True)
        self.file.write_bytes(b"GGUF the person's own model" * 100)
        self.instances: dict[str, str] = {MODEL: MODEL}  # loaded: the key of each
        self.contexts: dict[str, int] = {MODEL: 8192}
        self.api = 1  # 0: an older one, without REST API v1
        self.refuse = ""  # a word of the model that it does not load
        self.clings = False  # says that it unloads, and does not
        self.blind = False  # does not see new files
        self.loads: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.add_routes([
            web.get("/api/v1/models", self._list),
            web.post("/api/v1/models/load", self._load),
            web.post("/api/v1/models/unload", self._unload),
            web.get("/v1/models", self._models),
            web.post("/v1/chat/completions", self._chat),
            web.route("*", "/{rest:.*}", self._unknown),
        ])  # fmt: skip
        await self.listen(app, port)

    async def stop(self) -> None:
        self.instances.clear()
        await super().stop()

    def _keys(self) -> dict[str, Path]:
        keys = {}
        for file in sorted(self.folder.glob("*/*/*.gguf")):
            if not (self.blind and file != self.file):
                keys[file.parent.name.lower().removesuffix("-gguf")] = file
        return keys

    async def _unknown(self, request: web.Request) -> web.Response:
        return web.json_response({"error": f"Unexpected endpoint or method. ({request.method} {request.path})"})

    async def _list(self, request: web.Request) -> web.Response:
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        if not self.api:
            return await self._unknown(request)
        models = []
        for key, file in self._keys().items():
            mine = [i for i, of in self.instances.items() if of == key]
            # `parallel` it says and does not take.
            loaded = [
                {"id": i, "config": {"context_length": self.contexts[i], "flash_attention": True, "parallel": 4}}
                for i in mine
            ]
            about = {"type": "llm", "publisher": file.relative_to(self.folder).parts[0], "key": key, "format": "gguf"}
            models.append({**about, "size_bytes": file.stat().st_size, "loaded_instances": loaded})
        models.append({"type": "embedding", "publisher": "x", "key": "embed", "loaded_instances": [], "format": "gguf"})
        return web.json_response({"models": models})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.loads.append(body)
        key = body["model"]
        if unknown := body.keys() - {"model", "context_length", "flash_attention"}:
            return _error(400, "invalid_request", f"Unrecognized key(s) in object: {', '.join(unknown)}")
        if key not in self._keys():
            return _error(404, "model_not_found", f"Model {key} not found.")
        if self.refuse and self.refuse in key:
            return _error(500, "model_load_failed", "Not enough memory to load the model.")
        instance = next(n for n in (key, *(f"{key}:{i}" for i in range(2, 99))) if n not in self.instances)
        self.instances[instance] = key
        self.contexts[instance] = body.get("context_length", 4096)
        return web.json_response({"type": "llm", "instance_id": instance, "load_time_seconds": 0.1, "status": "loaded"})

    async def _unload(self, request: web.Request) -> web.Response:
        instance = (await request.json())["instance_id"]
        if self.clings and instance in self.instances:
            return web.json_response({"instance_id": instance})
        if self.instances.pop(instance, None) is None:
            return _error(404, "model_not_found", f"No instance {instance}.")
        return web.json_response({"instance_id": instance})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": key, "object": "model"} for key in self._keys()]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        name = body["model"]
        if name not in self.instances:
            if name in self._keys():
                self.instances[name], self.contexts[name] = name, 4096  # just in time
            else:
                name = next(iter(self.instances))  # what is loaded answers for what it does not know
        head = {"id": "chatcmpl-x", "model": body["model"], "created": 1}
        if not body.get("stream"):
            message = {"role": "assistant", "content": f"{name} " * WORDS}
            return web.json_response({**head, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for n in range(WORDS):
            choice = {"index": 0, "delta": {"content": f"{name} "}, "finish_reason": "stop" if n == WORDS - 1 else None}
            await response.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        return response


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": {"type": kind, "message": message}}, status=status)
