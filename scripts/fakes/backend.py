"""A server that speaks vLLM's wire format over a real socket, with no model behind it.

Every word of its reply is one token. It answers `You said: <last user message>`, and does on demand what servers
do on bad days. Faithful to the recorded shapes of vLLM 0.32 (shared facts, "vLLM: runs on CPU"). It has chat
completions only, unless `speaks` names more (scripts.fakes.native, native_others).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.backends.vllm import ASK
from proxy.training.weights_compare import CHATS
from scripts.fakes import native, native_others
from scripts.fakes.listening import Listening

MODEL = "fake"


class FakeBackend(Listening):
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []  # bodies of chat completions, as they came
        self.compared: list[dict[str, Any]] = []  # those that rlproxy asks of itself, to compare with the weights
        self.headers: list[dict[str, str]] = []
        self.adapters: dict[str, str] = {}
        self.unloaded: list[str] = []
        self.cancelled = 0
        self.mood = "well"  # cut, garbage, stop-without-done, error, hang, bad-json, drop, no-http
        self.pause_s = 0.0  # between streamed tokens
        self.hold = asyncio.Event()  # cleared: answers wait
        self.hold.set()
        self.hold_lists = asyncio.Event()  # cleared: lists of models wait
        self.hold_lists.set()
        self.lists = 0  # that were asked for
        self.hold_load = asyncio.Event()  # cleared: loads and unloads wait
        self.hold_load.set()
        self.fail_next = 0  # so many answers to come are errors
        self.refuse_load = False
        self.refuses_loads: set[str] = set()  # names of adapters of another base
        self.model = MODEL
        self.unknown = 0  # requests for a model that it does not have
        self.sleeps: bool | None = None  # None: started without VLLM_SERVER_DEV_MODE=1
        self.sleep_mode = True  # --enable-sleep-mode
        self.max_cpu_loras: int | None = None  # as its routes for development tell
        self.lora: bool | None = True  # False: as vLLM without --enable-lora; None: without the routes, too
        self.max_rank = 64
        self.silent = False  # to whoever loads an adapter
        self.root = Path("/")  # of the files that it sees
        self.thinks = False
        self.has_tags = True  # whether `/api/tags` is there, which it echoes
        self.needs_user = True  # as most templates do
        self.tells_prompt_ids = True  # in streams, where it is asked to
        self.refuses: str | None = None  # the refusal that it says in place of an answer
        self.logprob_ids = False  # whether its log-probs name the ids of their tokens, too
        self.says: str | Callable[[], str] | None = None  # its answer, instead of what it was told; or what makes one
        self.script: Callable[[dict[str, Any]], str] | None = None  # its answer to each body, to the letter
        self.letter = False  # whether it says that to the letter, in one piece
        self.model_root: str | None = None  # where its model lies
        self.takes: dict[str, Any] = {}  # of that model's generation_config.json: --generation-config auto
        self.raw_logprobs = False  # as without --logprobs-mode processed_logprobs
        self._drawn = cycle((4, 0, 6))  # which first token, where log-probs are asked for
        self.window: int | None = None  # how many tokens it says to take
        self.prompt_tokens = 3  # what it says that it has read
        self.speaks = {"chat"}
        self.lacks: dict[str, Any] | None = None  # its 404 to a Responses request, though it has the route
        self.wants: Any = None  # the tool it calls, if offered, and its arguments; or what says so of a request
        self.asked: list[tuple[str, dict[str, Any]]] = []  # every request: path and body
        self.counts_items = False  # whether items of Responses have ids of their own
        self.keeps_items = False  # and an item that is named must be one of those
        self.items: set[str] = set()  # the ids of those

    def item_id(self) -> int:
        return len(self.asked) if self.counts_items else 7

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes([
            web.post("/v1/chat/completions", self._chat),
            *native.routes(self),
            *native_others.routes(self),
            web.get("/v1/models", self._models),
            web.get("/version", self._version),
            web.post("/v1/load_lora_adapter", self._load),
            web.post("/v1/unload_lora_adapter", self._unload),
            web.get("/is_sleeping", self._development),
            web.post("/sleep", self._development),
            web.post("/wake_up", self._development),
            web.get("/server_info", self._development),
            web.route("*", "/v1/echo", self._echo),
            web.get("/api/tags", self._tags),
        ])  # fmt: skip
        await self.listen(app, port, host)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def _models(self, request: web.Request) -> web.Response:
        self.lists += 1
        await self.hold_lists.wait()
        takes: dict[str, Any] = {} if self.window is None else {"max_model_len": self.window}
        takes |= {} if self.model_root is None else {"root": self.model_root}
        ours = [{"id": self.model, "object": "model", "created": 1, "owned_by": "vllm", "parent": None, **takes}]
        ours += [{"id": name, "object": "model", "created": 1, "parent": self.model} for name in self.adapters]
        return web.json_response({"object": "list", "data": ours})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _load(self, request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.sleep(60)
        if self.lora is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        if (refused := self._refused(body["lora_path"])) is not None:
            message, status = refused
            return web.json_response({"error": {"message": message, "code": status}}, status=status)
        await self.hold_load.wait()
        if self.refuse_load or body["lora_name"] in self.refuses_loads:
            return web.json_response({"error": {"message": "rank 64 is over the maximum"}}, status=400)
        if body["lora_name"] in self.adapters:
            return web.json_response({"error": {"message": "has already been loaded"}}, status=400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success: LoRA adapter added successfully.")

    def _refused(self, path: str) -> tuple[str, int] | None:
        """Before vLLM looks at any weights."""
        failed = "Call to add_lora method failed: Worker failed with error '{}', please check the stack trace above"
        if not self.lora:
            return failed.format("LoRA is not enabled. Use --enable-lora to enable LoRA."), 500
        config = self.root / path.lstrip("/") / "adapter_config.json"
        if not config.is_file():
            return "Loading lora failed: No adapter found for <path>", 404
        match = re.search(r'"r": (\d+)', config.read_text())
        rank = int(match[1]) if match else 0
        if rank > self.max_rank:
            return failed.format(f"LoRA rank {rank} is greater than max_lora_rank {self.max_rank}."), 500
        return None

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        await self.hold_load.wait()
        if self.adapters.pop(name, None) is None:
            return web.json_response({"error": {"message": "cannot be found"}}, status=404)
        self.unloaded.append(name)
        return web.Response(text="Success: LoRA adapter removed successfully.")

    async def _development(self, request: web.Request) -> web.Response:
        """Routes of VLLM_SERVER_DEV_MODE=1. Without --enable-sleep-mode it says that it sleeps and frees nothing."""
        if self.sleeps is None and (self.max_cpu_loras is None or request.path != "/server_info"):
            return web.json_response({"detail": "Not Found"}, status=404)
        self.asked.append((request.path_qs, {}))
        if request.path == "/server_info":
            lora = {"max_loras": 1, "max_cpu_loras": self.max_cpu_loras}
            model = {"enable_sleep_mode": self.sleep_mode}
            return web.json_response({"vllm_config": {"model_config": model, "lora_config": lora}})
        if request.path == "/is_sleeping":
            return web.json_response({"is_sleeping": self.sleeps})
        self.sleeps = request.path == "/sleep"
        return web.json_response({"status": "sleeping" if self.sleeps else "awake"})

    async def _echo(self, request: web.Request) -> web.Response:
        """The request, byte for byte."""
        return web.Response(
            body=await request.read(),
            headers={"openai-method": request.method, "openai-path": request.raw_path, "content-type": "audio/x-thing"},
        )

    async def _tags(self, request: web.Request) -> web.Response:
        return await self._echo(request) if self.has_tags else web.json_response({"detail": "Not Found"}, status=404)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if body["messages"] == ASK:
            return web.json_response(self._first_token(body))
        if body["messages"] in CHATS:
            self.compared.append(body)
        else:
            self.requests.append(body)
            self.asked.append((request.path, body))
            self.headers.append({k.lower(): v for k, v in request.headers.items()})
        if body["model"] != self.model and body["model"] not in self.adapters:
            self.unknown += 1
            message = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": message, "type": "NotFoundError"}}, status=404)
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.cancelled += 1
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await self.hold.wait()
        self.fail_next -= 1
        if self.mood == "error" or self.fail_next >= 0:
            return web.json_response({"error": {"message": "out of memory", "type": "server_error"}}, status=500)
        if self.mood == "bad-json":
            return web.Response(body=b"<html>oops</html>", content_type="text/html")
        if self.mood == "refuse-logprobs" and body.get("logprobs"):
            return web.json_response({"error": {"message": "logprobs are not supported"}}, status=400)
        if self.mood == "hang":
            await asyncio.sleep(60)
        if self.mood in ("drop", "no-http"):
            assert request.transport is not None
            if self.mood == "no-http":
                request.transport.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno size at all\r\n")
            request.transport.close()
        if self.needs_user and not any(message.get("role") == "user" for message in body["messages"]):
            return web.json_response({"error": {"message": "no message has the role `user`"}}, status=400)
        if not body["messages"]:
            body = {**body, "messages": [{"role": "user", "content": ""}]}
        choices = [self._words(body, i) for i in range(body.get("n") or 1)]
        if body.get("stream"):
            return await self._stream(request, body, choices)
        return web.json_response(self._whole(body, choices))

    def _first_token(self, body: dict[str, Any]) -> dict[str, Any]:
        """Colder or not. The one that was drawn stands before the likeliest, in the place of the last of them."""
        cold = 1 if self.raw_logprobs else {**self.takes, **body}.get("temperature", 1)
        odds = [math.exp(logit / cold) for logit in (3, 2, 1, 0, -1, -2, -8)]
        all_of_them = [{"token": str(i), "logprob": math.log(odd / sum(odds))} for i, odd in enumerate(odds)]
        drawn = all_of_them[next(self._drawn)]
        tops = [drawn, *(top for top in all_of_them if top is not drawn)][: body["top_logprobs"]]
        content = [{**drawn, "top_logprobs": tops}]
        return {"choices": [{"message": {"content": drawn["token"]}, "logprobs": {"content": content}}]}

    def _words(self, body: dict[str, Any], index: int) -> list[str]:
        content = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
        text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content)
        words = native.answer_words(self, text)
        if self.refuses is not None:
            words = self.refuses.split(" ")
        if body["messages"][-1]["role"] == "tool" and not self._calls(body):
            words = ["It ", "is ", native.flat(body["messages"][-1]["content"])]
        if self.script is not None:
            words = [self.script(body)]
        if body.get("response_format"):
            words = ['{"said": ', json.dumps(text), "}"]
        if index:
            words.append(f"#{index}")
        return words[: body.get("max_tokens")]

    def _thoughts(self, body: dict[str, Any]) -> list[str]:
        """The thoughts that a reasoning model says first; vLLM sends them apart from the content."""
        enabled = body.get("chat_template_kwargs", {}).get("enable_thinking")
        return ["Let ", "me ", "think. "] if enabled or self.thinks else []

    def _finish(self, body: dict[str, Any], words: list[str]) -> str:
        if self.wants is not None and self._calls(body):
            return "tool_calls"
        return "length" if len(words) == body.get("max_tokens") else "stop"

    def _read(self, body: dict[str, Any]) -> list[int]:
        """Prompt ids: always the same three; of a scripted conversation its own, so that its history is a prefix."""
        if self.script is None:
            return [1, 2, 3]
        messages = [(message["role"], str(message.get("content"))) for message in body["messages"]]
        return _ids([word for role, text in messages for word in ([text] if role == "assistant" else [role, text])])

    def _usage(self, words: list[str]) -> dict[str, int]:
        read, wrote = self.prompt_tokens, len(words)
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}

    def _whole(self, body: dict[str, Any], choices: list[list[str]]) -> dict[str, Any]:
        asked_ids = bool(body.get("return_token_ids"))
        return {
            "id": "chatcmpl-7",  # the same every time: ids of backends are not unique
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {
                    "index": i,
                    "message": {
                        "role": "assistant",
                        "content": "".join(words) if self.refuses is None else None,
                        **({"refusal": self.refuses} if self.refuses is not None else {}),
                        **({"reasoning_content": "".join(self._thoughts(body))} if self._thoughts(body) else {}),
                        **self._tools(body),
                    },
                    "logprobs": self._logprobs([*self._thoughts(body), *words]) if body.get("logprobs") else None,
                    "finish_reason": self._finish(body, words),
                    "token_ids": _ids([*self._thoughts(body), *words]) if asked_ids else None,
                }
                for i, words in enumerate(choices)
            ],
            "usage": self._usage(choices[0]),
            "prompt_token_ids": self._read(body) if asked_ids else None,
        }

    def _logprobs(self, words: list[str]) -> dict[str, Any]:
        content = [{"token": w, "logprob": -len(w) / 10, "bytes": list(w.encode())} for w in words]
        ids = _ids(words) if self.logprob_ids else []
        return {"content": [{**entry, "id": id} for entry, id in zip(content, ids, strict=True)] if ids else content}

    def _chunk(self, index: int, delta: dict[str, Any], word: str, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs([word]) if body.get("logprobs") else None,
            "finish_reason": None,
            "token_ids": _ids([word]) if body.get("return_token_ids") else None,
        }

    def _tools(self, body: dict[str, Any]) -> dict[str, Any]:
        if (calls := self._calls(body)) is None:
            return {}
        name, arguments = calls
        function = {"name": name, "arguments": arguments}
        return {"tool_calls": [{"id": _call_id(body), "type": "function", "function": function}]}

    def _calls(self, body: dict[str, Any]) -> tuple[str, str] | None:
        """The tool it wants, and its arguments as it would write them; nothing once it has a result."""
        if body.get("tool_choice") == "none":
            return None
        offered = [tool.get("function", {}).get("name", "look") for tool in body.get("tools") or ()]
        call = native.chosen_call(self, body, offered, result=body["messages"][-1]["role"] == "tool")
        return (call[0], json.dumps(call[1])) if call else None

    async def _stream(self, request: web.Request, body: dict[str, Any], choices: list[list[str]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        head = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        asked_ids = bool(body.get("return_token_ids"))

        async def send(choice: dict[str, Any], **fields: Any) -> None:
            # A space after the colon, as Python's own dumps writes it: a proxy may not tidy this.
            await response.write(b"data: " + json.dumps({**head, "choices": [choice], **fields}).encode() + b"\n\n")

        for i, words in enumerate(choices):
            first = {"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            await send(first, prompt_token_ids=self._read(body) if asked_ids and self.tells_prompt_ids else None)
            thoughts = self._thoughts(body)
            for word in thoughts:
                await send(self._chunk(i, {"reasoning_content": word}, word, body))
            if (calls := self._calls(body)) is not None:
                await self._stream_tools(send, i, _call_id(body), *calls)
            for n, word in enumerate(words):
                if self.mood == "cut" and n == 2:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if self.mood == "error-event" and n == 2:
                    await response.write(b"data: " + json.dumps(native.GAVE_UP).encode() + b"\n\ndata: [DONE]\n\n")
                    return response
                if self.mood == "garbage" and n == 2:
                    await response.write(b"data: {not json at all\n\n")
                last = n == len(words) - 1
                finish = self._finish(body, words) if last and self.mood != "stop-without-done" else None
                member = "content" if self.refuses is None else "refusal"
                await send({**self._chunk(i, {member: word}, word, body), "finish_reason": finish})
                await asyncio.sleep(self.pause_s)
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {**head, "choices": [], "usage": self._usage(choices[0])}
            await response.write(b"data: " + json.dumps(usage).encode() + b"\n\n")
        if self.mood not in ("stop-without-done", "no-done"):
            await response.write(b": a comment\n\ndata: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _stream_tools(self, send: Any, index: int, id: str, name: str, arguments: str) -> None:
        half = len(arguments) // 2
        pieces = [
            {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}},
            {"index": 0, "function": {"arguments": arguments[:half]}},
            {"index": 0, "function": {"arguments": arguments[half:]}},
        ]
        for piece in pieces:
            await send({"index": index, "delta": {"tool_calls": [piece]}, "logprobs": None, "finish_reason": None})


def _call_id(body: dict[str, Any]) -> str:
    """Another one for each call of a conversation: Claude Code takes one that it knows for the same call again."""
    return f"call-{1 + sum(m['role'] == 'tool' for m in body['messages'])}"


def _ids(words: list[str]) -> list[int]:
    return [sum(word.encode()) for word in words]
