"""SGLang over a real socket, with no model behind it: written after sglang 0.5.23 as it is in its wheel, no recording.

Faithful in what a swap meets:

- An adapter is named behind a colon, `model:adapter`, and one that was never loaded is a 400 before the first byte.
- A load and an unload answer `{success, error_message, loaded_adapters}`, with 400 where they failed.
- A load under a name that is loaded is refused, and so is a rank over the server's.
- An unload waits for what runs on the adapter.
- An adapter that was unloaded comes back by itself when it is asked for.
- A chat stream that asks for token ids is refused.

Every word of a reply is the name of what answered.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from aiohttp import web

from scripts.fakes.listening import Listening

MODEL = "fake"
WORDS = 6


class FakeSGLang(Listening):
    def __init__(self) -> None:
        self.lora = True  # --enable-lora
        self.largest_rank = True  # whether --max-lora-rank is large enough
        self.args: dict[str, Any] | None = None  # that it says it was started with
        self.key: str | None = None
        self.adapters: dict[str, str] = {}
        self.ever_loaded: dict[str, str] = {}  # ever loaded, and not forgotten by an unload
        self.requests: list[dict[str, Any]] = []
        self.pause_s = 0.0
        self._running: Counter[str] = Counter()

    async def start(self, port: int = 0) -> None:
        app = web.Application(middlewares=[self._may])
        app.add_routes([
            web.get("/v1/models", self._models),
            web.get("/get_server_info", self._info),
            web.post("/load_lora_adapter", self._load),
            web.post("/unload_lora_adapter", self._unload),
            web.post("/v1/chat/completions", self._chat),
        ])  # fmt: skip
        await self.listen(app, port)

    async def stop(self) -> None:
        """A process that ended has no adapters."""
        await super().stop()
        self.adapters.clear()
        self.ever_loaded.clear()

    @web.middleware
    async def _may(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _models(self, request: web.Request) -> web.Response:
        data = [{"id": MODEL, "object": "model", "owned_by": "sglang", "root": MODEL, "parent": None}]
        data += [{"id": name, "object": "model", "root": path, "parent": MODEL} for name, path in self.adapters.items()]
        return web.json_response({"object": "list", "data": data})

    async def _info(self, request: web.Request) -> web.Response:
        return _error("Not Found") if self.args is None else web.json_response(self.args)

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, reason = body["lora_name"], None
        if not self.lora:
            reason = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
        elif name in self.adapters:
            reason = f"Failed to load LoRA adapter {name} because it is already loaded"
        elif not self.largest_rank:
            reason = (
                f"LoRA adapter {name} with rank 16 is incompatible with the current LoRA memory pool configuration. "
                "Please ensure that the LoRA adapter's rank is within the configured `--max-lora-rank` and that the "
                "target modules are included in `--lora-target-modules`."
            )
        else:
            self.adapters[name] = self.ever_loaded[name] = body["lora_path"]
        return self._changed(reason)

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return self._changed(f"LoRA with name {name} does not exist. Loaded LoRAs: {self.adapters.keys()}")
        while self._running[name]:
            await asyncio.sleep(0.005)
        return self._changed(None)

    def _changed(self, reason: str | None) -> web.Response:
        loaded = dict(self.adapters) if reason is None else None
        answer = {"rid": None, "success": reason is None, "error_message": reason, "loaded_adapters": loaded}
        return web.json_response(answer, status=200 if reason is None else 400)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if body.get("stream") and body.get("return_token_ids"):
            return _error("return_token_ids is not supported with streaming on /v1/chat/completions.")
        _, _, adapter = str(body["model"]).partition(":")
        if adapter and adapter not in self.adapters:
            if adapter not in self.ever_loaded:
                return _error(f"Got LoRA adapter that has never been loaded: {adapter}")
            self.adapters[adapter] = self.ever_loaded[adapter]
        self._running[adapter] += 1
        try:
            name = adapter or MODEL
            if body.get("stream"):
                return await self._stream(request, body, name)
            message = {"role": "assistant", "content": f"{name} " * WORDS}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "matched_stop": 2}
            return web.json_response({"id": "x", "object": "chat.completion", "model": body["model"],
                                      "choices": [choice], "usage": {"prompt_tokens": 3}})  # fmt: skip
        finally:
            self._running[adapter] -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any], name: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for n in range(WORDS + 1):
            delta = {"content": f"{name} "} if n < WORDS else {}
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": "stop" if n == WORDS else None}
            chunk = {"id": "x", "object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await asyncio.sleep(self.pause_s)
        await response.write(b"data: [DONE]\n\n")
        return response


def _error(message: str) -> web.Response:
    error = {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": 400}
    return web.json_response(error, status=400)
