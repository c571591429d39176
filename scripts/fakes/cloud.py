"""A cloud API over a real socket: OpenAI's wire format after its documentation, no recording, with no model behind it.

It wants a key, and an error of its own repeats the key that it refuses (some servers do, OpenAI masks the middle). It
knows no member that OpenAI does not document, sends neither token ids nor log-probs that nobody asked for, and has many
models. It answers `You said: <last user message>`.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from scripts.fakes.listening import Listening

KEY = "sk-cloud-5f2c9a77e1d04b"
MODELS = ("gpt-9-mini", "gpt-9", "text-embedding-9")
FIELDS = {"model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens", "n", "logprobs"}


class FakeCloud(Listening):
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.open = False  # it wants no key
        self.breaks = False  # streams end in an error that repeats the key
        self._count = 0

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/chat/completions", self._chat)])
        await self.listen(app)

    def _refused(self, request: web.Request) -> web.Response | None:
        authorization = request.headers.get("authorization")
        self.keys.append(authorization)
        if self.open or authorization == f"Bearer {KEY}":
            return None
        key = (authorization or "").removeprefix("Bearer ")
        return _error(401, f"Incorrect API key provided: {key}. You can find your key in your account.")

    async def _models(self, request: web.Request) -> web.Response:
        if (refused := self._refused(request)) is not None:
            return refused
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "cloud"} for name in MODELS]
        return web.json_response({"object": "list", "data": data})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if (refused := self._refused(request)) is not None:
            return refused
        if strange := set(body) - FIELDS:
            return _error(400, f"Unrecognized request argument supplied: {strange.pop()}")
        if body.get("model") not in MODELS:
            return _error(404, f"The model `{body.get('model')}` does not exist or you do not have access to it.")
        self._count += 1
        text = f"You said: {body['messages'][-1]['content']}"
        head = {"id": f"chatcmpl-{self._count}", "created": 1, "model": f"{body['model']}-2026-11-01"}
        if body.get("stream"):
            return await self._stream(request, head, text)
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _stream(self, request: web.Request, head: dict[str, Any], text: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for n, word in enumerate(text.split(" ")):
            delta = {"content": word if n == 0 else f" {word}"}
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            await _send(response, {**head, "object": "chat.completion.chunk", "choices": [choice]})
        if self.breaks:
            await _send(response, {"error": {"message": f"quota of {KEY} exceeded", "type": "insufficient_quota"}})
            return response
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        await _send(response, {**head, "object": "chat.completion.chunk", "choices": [choice]})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
    return web.json_response({"error": error}, status=status)
