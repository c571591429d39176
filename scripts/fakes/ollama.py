"""Ollama over a real socket, with no model behind it.

It answers as the recordings do (tests/scripts/fakes/test_ollama_contract.py asks it what was asked of the real one):
status, content type, members, words of errors. Faithful in what a swap meets:

- Blobs are on disk, by their digest.
- `create` has `adapters` before 0.34.1 and none since.
- Names without a tag mean `:latest`.
- A model that is deleted takes its blobs along.
- A model has to be loaded before it answers.
- Ids collide.
- With a template of the GGUF's own (`own_template`) its llama-server answers, which refuses log-probs beside tools.

Every word of a reply is the name of what answered. `version` decides which Ollama it is. Not here: what it says of a
model, and prompts (ollama_texts).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from scripts.fakes import ollama_texts as texts
from scripts.fakes.listening import Listening

MODEL = "fake:latest"
TEMPLATE = "{{ .System }}\n{{ .Prompt }}"
LICENSE = 'Take "it"\nand FROM here on it is yours'
WORDS = 4
TIMESTAMP = "2026-11-23T15:20:01.696987091Z"
SIZE = 270_898_672  # bytes of a file, as of smollm2:135m
NO_TEXT = "json: cannot unmarshal object into Go struct field .messages.tool_calls.function.arguments of type string"
# What Ollama passes on of its llama-server's error, in streams and whole answers (llm/llama_server.go, August 2026).
NO_LOGPROBS = (
    '{"error":{"code":400,"message":"logprobs is not supported with tools + stream","type":"invalid_request_error"}}'
)
_NAME = re.compile(r"[\w./:-]+")


class FakeOllama(Listening):
    def __init__(self, folder: Path, version: str = "0.34.4") -> None:
        self.version = version
        self.lora: bool | None = None  # whether it takes LoRA files; None: as its version says
        self.blobs = folder / "blobs"
        self.blobs.mkdir(parents=True)
        self.models: dict[str, dict[str, Any]] = {}
        self.loaded: list[str] = []
        self.own_template = False  # models have a template of the GGUF's own, which knows tools
        self.calls: list[dict[str, Any]] = []  # of tools, in whole chat completions that have some
        self.mood = "well"  # cut, full, refuse-create, no-memory, clings (an unload that it answers and does not do)
        self.unload_s = 0.0  # after it has said that it unloads
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.cut: list[str] = []  # models that went, or lost their memory, in the middle of an answer
        self._answering: list[str] = []
        self.uploads = 0
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.pause_s = 0.0
        self.room = 1000  # messages that fit its context; the oldest but the system text are left out of more
        self.rendered: list[tuple[str, dict[str, Any]]] = []  # what was asked for its prompt alone
        self.about: dict[str, Any] = {}  # `details` and `model_info` of what it shows
        self.made_for: dict[str, str] = {}  # an adapter's digest, and that of the only file which it fits
        self.add(
            MODEL, self.keep(b"GGUF the person's own model" * 100), template=f'{TEMPLATE} "quoted"\n',
            system="You are fake.", parser="qwen3", license=[LICENSE], messages=[{"role": "user", "content": "Hello"}],
        )  # fmt: skip

    def _is_before(self, *version: int) -> bool:
        numbers = tuple(map(int, self.version.split(".")))
        return any(numbers) and numbers < version

    def keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / f"sha256-{digest}").write_bytes(content)
        return f"sha256:{digest}"

    def add(self, name: str, *digests: str, **fields: Any) -> None:
        self.models[name] = {
            "files": list(digests),
            "adapters": [],
            "parameters": {"top_k": 20, "stop": ["<|end|>"]},
            "template": texts.CHATML,
            **fields,
        }

    def blob(self, digest: str) -> Path:
        return self.blobs / digest.replace(":", "-")

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=2**30)
        app.add_routes([
            web.get("/", self._root),
            web.get("/api/version", self._version),
            web.get("/api/tags", self._tags),
            web.get("/api/ps", self._in_memory),
            web.post("/api/show", self._show),
            web.head("/api/blobs/{digest}", self._has_blob),
            web.post("/api/blobs/{digest}", self._take_blob),
            web.post("/api/create", self._create),
            web.delete("/api/delete", self._delete),
            web.post("/api/embed", self._embed),
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._one_model),
            *(web.post(path, self._answer) for path in _ANSWERS),
        ])  # fmt: skip
        await self.listen(app, port)

    async def stop(self) -> None:
        self.loaded.clear()  # what it had in memory; models and blobs are on its disk
        await super().stop()

    @property
    def ours(self) -> set[str]:
        return {name for name in self.models if "-rl:" in name}

    def _find(self, name: str) -> str | None:
        full = _full(name)
        return full if full in self.models else None

    # About models

    async def _root(self, request: web.Request) -> web.Response:
        return web.Response(text="Ollama is running")

    async def _version(self, request: web.Request) -> web.Response:
        return _api({"version": self.version})

    async def _tags(self, request: web.Request) -> web.Response:
        return _api({"models": [self._tag(name, model) for name, model in self.models.items()]})

    def _tag(self, name: str, model: dict[str, Any]) -> dict[str, Any]:
        entry = {"name": name, "model": name, "modified_at": TIMESTAMP, "size": SIZE, "digest": digest(model)}
        sizes = {} if self._is_before(0, 33, 0) else {"context_length": 2048, "embedding_length": 256}
        entry["details"] = {**texts.details(model), **sizes}
        return entry if self._is_before(0, 33, 0) else {**entry, "capabilities": texts.capabilities(model)}

    async def _in_memory(self, request: web.Request) -> web.Response:
        return _api({"models": [self._loaded_entry(name, self.models[name]) for name in self.loaded]})

    def _loaded_entry(self, name: str, model: dict[str, Any]) -> dict[str, Any]:
        entry = {"name": name, "model": name, "size": SIZE, "digest": digest(model), "details": texts.details(model)}
        return {**entry, "expires_at": TIMESTAMP, "size_vram": 0, "context_length": 2048}

    async def _models(self, request: web.Request) -> web.Response:
        return _openai({"object": "list", "data": [_entry(name) for name in self.models]})

    async def _one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if self._find(name) is None:
            return _v1_error(404, f"model '{name}' not found", "not_found_error")
        return _openai(_entry(name))

    async def _show(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except ValueError:
            return _error(400, "invalid character 'n' looking for beginning of object key string")
        model = body.get("model") or body.get("name") or ""
        name = self._find(model)
        if name is None:
            return _error(404, f"model '{_full(model)}' not found")
        return _api({**texts.show_answer(name, self.models[name], self.blob), **self.about})

    async def _embed(self, request: web.Request) -> web.Response:
        return _error(501, "This server does not support embeddings. Start it with `--embeddings`")

    # Blobs and models

    async def _has_blob(self, request: web.Request) -> web.Response:
        digest = request.match_info["digest"]
        if re.fullmatch(r"sha256[:-][0-9a-f]{64}", digest) is None:
            return web.Response(status=400, content_type="application/json", charset="utf-8")
        return web.Response(status=200 if self.blob(digest).exists() else 404)

    async def _take_blob(self, request: web.Request) -> web.Response:
        self.uploads += 1
        expected = request.match_info["digest"]
        if self.blob(expected).exists():
            return web.Response()  # without a look at what is sent
        hashed, content = hashlib.sha256(), bytearray()
        async for piece in request.content.iter_chunked(512):
            hashed.update(piece)
            content += piece
            if self.mood == "cut":
                assert request.transport is not None
                request.transport.abort()
                await asyncio.sleep(1)
            if self.mood == "full":
                return _error(500, "write /blobs/sha256: no space left on device")
        actual = self.keep(bytes(content))  # under its own digest, whatever was said
        if actual != expected:
            return _error(400, f'digest mismatch, expected "{expected}", got "{actual}"')
        return web.Response(status=201)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.created.append(body)
        if _NAME.fullmatch(body["model"]) is None:
            return _error(400, "invalid model name")
        if (refused := self._refused(body)) is not None:
            return refused
        files, adapters = body.get("files") or {}, body.get("adapters") or {}
        model: dict[str, Any] = {"files": list(files.values()), "adapters": list(adapters.values())}
        names = ("parameters", "template", "system", "parser", "license", "messages")
        members = {key: body[key] for key in names if body.get(key)}
        base = {"parameters": {}, "template": texts.CHATML}
        if "from" in body:
            name = self._find(body["from"])
            assert name is not None
            base = {**self.models[name], "parent": name}
        model = {**base, **members, **model, "files": model["files"] or base["files"]}
        self.models[_full(body["model"])] = model
        if body.get("stream") is False:
            return _plain({"status": "success"})
        layers = [f"{word} layer sha256:{digest(model)}" for word in ("using existing", "creating new")]
        steps = ["parsing GGUF", "verifying conversion", *layers, "writing manifest", "success"]
        return await _lines(request, [{"status": step} for step in steps])

    def _refused(self, body: dict[str, Any]) -> web.Response | None:
        files, adapters = body.get("files") or {}, body.get("adapters") or {}
        if self.mood == "refuse-create":
            return _plain({"error": "something broke in here"}, 500)
        if adapters and not (self._is_before(0, 34, 1) if self.lora is None else self.lora):
            return _error(400, "LoRA adapters are no longer supported")
        for blob in (*files.values(), *adapters.values()):
            if not self.blob(blob).exists():
                return _plain({"error": f"open {self.blob(blob)}: no such file or directory"}, 500)
            if not self.blob(blob).read_bytes().startswith(b"GGUF"):
                return _plain({"error": "supplied file was not in GGUF format"}, 400)
        if "from" in body and self._find(body["from"]) is None:
            url = f"https://registry.ollama.ai/v2/library/{body['from']}/manifests/latest"
            lookup = "dial tcp: lookup registry.ollama.ai: no such host"
            return _plain({"error": f'pull model manifest: Get "{url}": {lookup}'}, 500)
        if "from" not in body and not files:
            return _error(400, "neither 'from' or 'files' was specified")
        return None

    async def _delete(self, request: web.Request) -> web.Response:
        model_name = (await request.json())["model"]
        name = self._find(model_name)
        if name is None:
            return _error(404, f"model '{model_name}' not found")
        self.cut += [n for n in self._answering if n == name]
        removed = self.models.pop(name)
        self.deleted.append(name)
        self.loaded = [n for n in self.loaded if n != name]
        used = {blob for model in self.models.values() for blob in (*model["files"], *model["adapters"])}
        for blob in {*removed["files"], *removed["adapters"]} - used:
            self.blob(blob).unlink()
        return web.Response()

    # Answers

    def _let_go(self, name: str) -> None:
        """A place in memory is a model's file. With LoRA files, what is made of one model shares one place."""
        files = self.models[name]["files"][:1]
        self.loaded = [n for n in self.loaded if self.models[n]["files"][:1] != files]

    def _load(self, name: str) -> None:
        if name not in self.loaded:
            self._let_go(name)
            self.loaded.append(name)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """All routes that answer refuse the same things, each in its own words."""
        path, raw = request.path, await request.read()
        error = _error if path.startswith("/api/") else _messages_error if path == "/v1/messages" else _v1_error
        try:
            body = json.loads(raw)
        except ValueError:
            return error(400, "invalid character 'n' looking for beginning of object key string", charset="utf-8")
        self.asked.append((path, body))
        name = self._find(body["model"])
        if name is None:
            return error(404, f"model '{body['model']}' not found", "not_found_error")
        model = self.models[name]
        if (reason := _unfit(name, model, body, own_template=self.own_template)) is not None:
            return error(400, reason)
        if path == "/v1/chat/completions" and not body.get("messages"):
            return error(400, "[] is too short - 'messages'", charset="utf-8")
        if self.mood == "no-memory" and name not in self.loaded:
            return error(500, "model requires more system memory (9.9 GiB) than is available (3.1 GiB)")
        if any(self.made_for.get(adapter, model["files"][0]) != model["files"][0] for adapter in model["adapters"]):
            return error(500, "llama-server process has terminated: exit status 1")
        if self._renders(body):
            self.rendered.append((path, body))
            if self.mood == "hangs-up":
                assert request.transport is not None
                request.transport.abort()
            if self.mood == "refuse-render":
                return error(500, "template: no such thing")
        answer: web.StreamResponse = await getattr(self, _ANSWERS[path])(request, name, body)
        return answer

    def _renders(self, body: dict[str, Any]) -> bool:
        return bool(body.get("_debug_render_only")) and not self._is_before(0, 11, 5)

    def _prompt(self, name: str, body: dict[str, Any]) -> str:
        """Make the prompt; messages that do not fit are left out whole and in silence."""
        system = [m for m in body["messages"] if m["role"] == "system"]
        turns = [m for m in body["messages"] if m["role"] != "system"]
        return texts.prompt(self.models[name], {**body, "messages": [*system, *turns[-self.room :]]})

    def _idle(self, name: str, body: dict[str, Any]) -> str:
        """Load or unload the model, as a request without a prompt asks for; the reason that the answer gives."""
        if body.get("keep_alive") != 0:
            self._load(name)
            return "load"
        self.cut += [n for n in self._answering if n == name]
        if self.unload_s:
            asyncio.get_running_loop().call_later(self.unload_s, self._let_go, name)
        elif self.mood != "clings":
            self._let_go(name)
        return "unload"

    async def _generate(self, request: web.Request, name: str, body: dict[str, Any]) -> web.StreamResponse:
        head = {"model": body["model"], "created_at": TIMESTAMP, "response": ""}
        if not body.get("prompt"):
            return _api({**head, "done": True, "done_reason": self._idle(name, body)})
        self._load(name)
        messages = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        prompt = self._prompt(name, {**body, "messages": [*messages, _user(body["prompt"])]})
        if self._renders(body):
            return _api({**head, "done": False, "_debug_info": {"rendered_template": prompt}})
        end = {**_end(prompt), "context": [1, 2, 3]}
        if body.get("stream") is False:
            return _api({**head, "response": f"{name} " * WORDS, **end})
        pieces = [{**head, "response": f"{name} ", "done": False}] * WORDS
        return await _lines(request, [*pieces, {**head, **end}], self.pause_s)

    async def _native(self, request: web.Request, name: str, body: dict[str, Any]) -> web.StreamResponse:
        head = {"model": body["model"], "created_at": TIMESTAMP}
        if not body.get("messages"):
            nothing = {"role": "assistant", "content": ""}
            return _api({**head, "message": nothing, "done": True, "done_reason": self._idle(name, body)})
        self._load(name)
        prompt = self._prompt(name, body)
        if self._renders(body):
            message = {"role": "", "content": ""}
            return _api({**head, "message": message, "done": False, "_debug_info": {"rendered_template": prompt}})
        if body.get("stream") is False:
            message = {"role": "assistant", "content": f"{name} " * WORDS}
            reason = "length" if (body.get("options") or {}).get("num_predict") else "stop"
            return _api({**head, "message": message, **_end(prompt, reason)})
        word = {"role": "assistant", "content": f"{name} "}
        lines = [{**head, "message": word, "done": False}] * WORDS
        return await _lines(
            request, [*lines, {**head, "message": {**word, "content": ""}, **_end(prompt)}], self.pause_s
        )

    async def _chat(self, request: web.Request, name: str, body: dict[str, Any]) -> web.StreamResponse:
        self._load(name)
        head = {"id": "chatcmpl-7", "object": "chat.completion", "created": 1, "model": body["model"]}  # one of 999
        head["system_fingerprint"] = "fp_ollama"
        if any(not isinstance(argument, str) for m in body["messages"] for argument in _arguments(m)):
            return _v1_error(400, NO_TEXT, charset="utf-8")
        prompt = self._prompt(name, {**body, "messages": [part for m in body["messages"] for part in _split(m)]})
        if self._renders(body):
            choice = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
            render = {"choices": [choice], "usage": _usage(0, 0), "_debug_info": {"rendered_template": prompt}}
            return _openai({**head, **render})
        if not body.get("stream"):
            message: dict[str, Any] = {"role": "assistant", "content": f"{name} " * WORDS}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            if body.get("tools") and self.calls:
                message |= {"content": "", "tool_calls": self.calls}
                choice["finish_reason"] = "tool_calls"
            return _openai({**head, "choices": [choice], "usage": _usage(texts.tokens(prompt), WORDS)})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self._answering.append(name)
        head["object"] = "chat.completion.chunk"
        for n in range(WORDS):
            choice = {"index": 0, "delta": {"content": f"{name} "}, "finish_reason": "stop" if n == WORDS - 1 else None}
            await response.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(self.pause_s)
        self._answering.remove(name)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _unspoken(self, request: web.Request, name: str, body: dict[str, Any]) -> web.StreamResponse:
        """The real one answers here, too; nothing that is tested with the fake asks it to."""
        return web.Response(status=404, text="404 page not found")


_ANSWERS: Mapping[str, str] = {
    "/api/generate": "_generate",
    "/api/chat": "_native",
    "/v1/chat/completions": "_chat",
    "/v1/completions": "_unspoken",
    "/v1/responses": "_unspoken",
    "/v1/messages": "_unspoken",
}


def _arguments(message: dict[str, Any]) -> list[Any]:
    return [call["function"].get("arguments") for call in message.get("tool_calls") or ()]


def _split(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Chat completions become a message for each part of a message."""
    if not isinstance(parts := message.get("content"), list):
        return [{**message, "content": message.get("content") or ""}]
    return [
        {"role": message["role"], "content": part["text"]}
        if part["type"] == "text"
        else {"role": message["role"], "content": "", "images": [part["image_url"]["url"].partition(",")[2]]}
        for part in parts
    ]


def digest(model: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()


def _unfit(name: str, model: dict[str, Any], body: dict[str, Any], *, own_template: bool) -> str | None:
    """The error where a request asks for something that this model is not made for."""
    can = texts.capabilities(model)
    if own_template and body.get("tools"):
        return NO_LOGPROBS if body.get("logprobs") else None
    if body.get("tools") and "tools" not in can:
        return f"registry.ollama.ai/library/{name} does not support tools"
    if body.get("think") and "thinking" not in can:
        return f'"{body["model"]}" does not support thinking'
    if "vision" not in can and any(isinstance(m, dict) and m.get("images") for m in body.get("messages") or ()):
        message = "Multimodal data provided, but model does not support multimodal requests."
        about = {"code": 400, "message": message, "type": "invalid_request_error"}
        return json.dumps({"error": about}, separators=(",", ":"))
    return None


def _full(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "library"}


def _usage(read: int, wrote: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def _end(prompt: str, reason: str = "stop") -> dict[str, Any]:
    took = {"total_duration": 4, "load_duration": 1, "prompt_eval_count": texts.tokens(prompt)}
    took |= {"prompt_eval_duration": 1, "eval_count": WORDS, "eval_duration": 2}
    return {"done": True, "done_reason": reason, **took}


def _api(value: Any, status: int = 200) -> web.Response:
    return web.json_response(value, status=status)


def _openai(value: Any, status: int = 200, charset: str | None = None) -> web.Response:
    """Ollama's OpenAI routes name no charset, but for what is refused before the translation."""
    body = json.dumps(value).encode() + b"\n"
    return web.Response(body=body, status=status, content_type="application/json", charset=charset)


def _plain(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")


def _error(status: int, message: str, kind: str = "", charset: str | None = None) -> web.Response:
    return _api({"error": message}, status)


def _v1_error(
    status: int, message: str, kind: str = "invalid_request_error", charset: str | None = None
) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": None}
    return _openai({"error": error}, status, charset)


def _messages_error(
    status: int, message: str, kind: str = "invalid_request_error", charset: str | None = None
) -> web.Response:
    error = {"type": kind, "message": message}
    return _openai({"type": "error", "error": error, "request_id": "req_bf41eeeb3fda61269e7ed356"}, status, charset)


async def _lines(request: web.Request, lines: list[dict[str, Any]], pause_s: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
    await response.prepare(request)
    for line in lines:
        await response.write(json.dumps(line).encode() + b"\n")
        await asyncio.sleep(pause_s)
    return response
