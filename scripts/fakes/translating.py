"""A server that answers every dialect from one scripted chat completion, through the dialect's own translation.

It stands where the proxy's engine stands, for tests of what client libraries make of rlproxy's bytes. It has the same
routes and the same order of calls, but no store and no backend. With chat completions alone it is a backend that speaks
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from proxy.conversation.user_text import command_of
from proxy.core.errors import BackendBroke, ProxyError
from proxy.dialects import DIALECTS, Dialect

PIECE = 3  # characters a chunk


class TranslatingServer:
    def __init__(self, dialects: Sequence[Dialect] = DIALECTS) -> None:
        self._dialects = dialects
        self.reply: dict[str, Any] = {"role": "assistant", "content": "Hello there."}
        self.finish_reason = "stop"
        self.error: ProxyError | None = None  # instead of an answer
        self.breaks = False  # in the middle of a stream
        self.asked: list[dict[str, Any]] = []  # chat completions, as a backend would get them
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.post(path, self._handler(d)) for d in self._dialects for path in d.paths])
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def _handler(self, dialect: Dialect) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await self._answer(request, dialect)
            except ProxyError as error:
                return web.json_response(dialect.error(error), status=error.status)

        return handle

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        body = await request.json()
        parsed = dialect.parse(body)
        if command_of(parsed.messages[-1]) is not None:
            kind, pieces = dialect.answer("rlproxy: rated good.", id="rl-1", parsed=parsed, created=1)
            return await self._send(request, kind, pieces)
        self.asked.append(dialect.to_chat(body, parsed))
        if self.error is not None:
            raise self.error
        say = dialect.renderer(id="rl-1", parsed=parsed, created=1)
        if not parsed.stream:
            return web.Response(body=say.whole(self._whole()), content_type="application/json")
        pieces = [piece for chunk in self._chunks() for piece in say.chunk(chunk)]
        if self.breaks:
            pieces = [*pieces[:4], dialect.error_event(BackendBroke("It broke off."))]
        else:
            head, last = say.end()
            pieces += [*head, last]
        kind = "text/event-stream" if dialect.framing == "sse" else "application/x-ndjson"
        return await self._send(request, kind, pieces)

    async def _send(self, request: web.Request, kind: str, pieces: list[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    def _whole(self) -> dict[str, Any]:
        choice = {"index": 0, "message": self.reply, "logprobs": None, "finish_reason": self.finish_reason}
        return {"id": "chatcmpl-7", "object": "chat.completion", "created": 1, "choices": [choice], "usage": USAGE}

    def _chunks(self) -> Iterator[dict[str, Any]]:
        def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
            return {"id": "chatcmpl-7", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        yield chunk({"role": "assistant", "content": ""})
        for key in ("reasoning_content", "content"):
            yield from (chunk({key: piece}) for piece in _cut(self.reply.get(key) or ""))
        for i, call in enumerate(self.reply.get("tool_calls") or ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield chunk({"tool_calls": [{**call, "index": i, "function": {"name": name, "arguments": ""}}]})
            for piece in _cut(arguments):
                yield chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
        yield chunk({}, self.finish_reason)
        yield {"id": "chatcmpl-7", "choices": [], "usage": USAGE}


USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _cut(text: str) -> list[str]:
    return [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
