"""The routes of the built-in backend, as vLLM has them: chat, tokens, models, and adapters that come and go.

Owns the names of adapters and the life of a request: a client that hangs up frees its rows. Tools go into the chat
template, and a template that has no place for them drops them (vLLM does the same). Replies are text; nothing is parsed
out of them. Not here: field names and shapes (chat_wire), generation (engine), the process (serve).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from trainer.formats.manifest import AdapterError
from trainer.pictures.pixels import BadPicture
from trainer.policy import eos
from trainer.serve.batched_lora import BatchedAdapter, read_adapter
from trainer.serve.chat_wire import (
    ChatRequest,
    WireAnswer,
    WireError,
    has_pictures,
    json_object,
    parse,
    parse_adapter,
    pictures_in,
    template_messages,
)
from trainer.serve.constraints import Compiler, Constraint, ConstraintError
from trainer.serve.engine import Delta, Engine, EngineError, GenerationRequest, Stream
from trainer.serve.reply_forms import FormError, ReplyForm, call_form, reply_form
from trainer.serve.sampling import Sampling
from trainer.serve.sight import SeenPrompt
from trainer.serve.strict_templates import attempts

MAX_BODY = 64 << 20  # aiohttp's default is 1 MiB; a long conversation resends its whole history
LONG = 32 << 10  # bytes that take some ten milliseconds to make a prompt of
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)


def make_app(
    engine: Engine, *, name: str, weights: Path, key: str | None = None, blind: str = "its weights read text alone"
) -> web.Application:
    """`blind`: why pictures are refused, where the engine has no sight."""
    api = _Api(engine, name, weights, None if engine.sight else blind)
    app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors, _authorise(key), _json_only])
    app.add_routes(
        [
            web.post("/v1/chat/completions", api.chat),
            web.post("/tokenize", api.tokenize),
            web.get("/v1/models", api.models),
            web.post("/v1/load_lora_adapter", api.load),
            web.post("/v1/unload_lora_adapter", api.unload),
            web.get("/health", api.health),
        ]
    )
    return app


class _Api:
    def __init__(self, engine: Engine, name: str, weights: Path, blind: str | None) -> None:
        self._engine, self._name, self._weights, self._blind = engine, name, weights, blind
        self._needs_parts = eos.needs_parts(engine.tokenizer)
        self._created = int(time.time())
        self._adapters: dict[str, BatchedAdapter] = {}
        self._loading: set[str] = set()
        self._compiler = Compiler(engine.tokenizer, engine.vocabulary, sorted(engine.ends))
        self._compiler.prepare()
        self._compiling = asyncio.Semaphore(1)  # else compilations would take all threads
        self._calls = call_form(engine.tokenizer)

    # --- chat ---

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        chat = parse(body)
        adapter = self._adapter(chat.model)
        async with self._place_for_pictures(chat) as give_back:
            return await self._answer(request, chat, adapter, len(body), give_back)

    async def _answer(
        self,
        request: web.Request,
        chat: ChatRequest,
        adapter: BatchedAdapter | None,
        size: int,
        give_back: Callable[[], None],
    ) -> web.StreamResponse:
        """`give_back`: called once the prompt was read."""
        prompt = await self._prompt(chat, size)
        room = self._engine.context - len(prompt.ids)
        if room <= 0:
            raise WireError(
                400,
                f"This model's maximum context length is {self._engine.context} tokens. However, your request has "
                f"{len(prompt.ids)} input tokens. Please reduce the length of the input messages.",
                "messages",
                "context_length_exceeded",
            )
        form, constraint = await self._form(chat)
        generation = GenerationRequest(
            prompt=prompt.ids,
            pictures=prompt.pictures,
            max_tokens=min(chat.limit or room, room),
            sampling=self._sampling(chat),
            constraint=constraint,
            stop=chat.stops,
            adapter=adapter,
            likeliest=chat.top_logprobs or 0,
            ignore_eos=bool(chat.ignore_eos),
        )
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": chat.model or self._name,
        }
        answer = WireAnswer(chat, self._engine.tokenizer, prompt.wire_ids, head, form, self._calls)
        stream = self._engine.generate(generation, chat.n or 1)
        deltas = _calling_at_first(stream, give_back)
        try:
            if chat.stream:
                return await _stream_answer(request, deltas, answer)
            replies: list[list[Delta]] = [[] for _ in range(chat.n or 1)]
            async for choice, delta in deltas:
                replies[choice].append(delta)
            return web.json_response(answer.whole(replies))
        finally:
            stream.cancel()  # of no effect once it has ended; else the client has gone, or an error ended it

    @contextlib.asynccontextmanager
    async def _place_for_pictures(self, chat: ChatRequest) -> AsyncIterator[Callable[[], None]]:
        """Few requests hold decoded pictures at once. Gives what gives the place back, once."""
        sight = self._engine.sight
        if sight is None or not has_pictures(chat.messages):
            yield lambda: None
            return
        await sight.unread.acquire()
        with contextlib.ExitStack() as place:
            place.callback(sight.unread.release)
            yield place.close

    def _sampling(self, chat: ChatRequest) -> Sampling:
        bias = tuple((int(token), value) for token, value in (chat.logit_bias or {}).items())
        if bias and (unknown := max(token for token, _ in bias)) >= self._engine.vocabulary:
            raise WireError(400, f"logit_bias: there is no token {unknown}", "logit_bias", "invalid_value")
        return Sampling(
            temperature=1.0 if chat.temperature is None else chat.temperature,
            top_p=1.0 if chat.top_p is None else chat.top_p,
            top_k=max(chat.top_k or 0, 0),
            seed=chat.seed,
            presence_penalty=chat.presence_penalty or 0.0,
            frequency_penalty=chat.frequency_penalty or 0.0,
            bias=bias,
        )

    async def _form(self, chat: ChatRequest) -> tuple[ReplyForm | None, Constraint | None]:
        """Read which form the reply has to have, and compile it beside the event loop and the engine."""
        try:
            form = reply_form(chat.tool_choice, chat.tools, chat.response_format, self._calls)
        except FormError as error:
            raise WireError(400, f"{error.param}: {error.message}", error.param, "invalid_value") from None
        if form is None:
            return None, None
        try:
            async with self._compiling:
                return form, await asyncio.to_thread(self._compiler.compile, form.options)
        except ConstraintError as error:
            place = ".".join((form.places[error.option], *error.path))
            message = f"{place}: this server cannot keep to it: {error}"
            raise WireError(400, message, place, "invalid_json_schema") from None

    def _adapter(self, model: str | None) -> BatchedAdapter | None:
        if model is None or model == self._name:
            return None
        if model not in self._adapters:
            names = ", ".join(f"`{name}`" for name in (self._name, *self._adapters))
            raise WireError(404, f"The model `{model}` does not exist; there is {names}.", "model", "model_not_found")
        return self._adapters[model]

    async def _prompt(self, chat: ChatRequest, size: int) -> SeenPrompt:
        """A long one in a thread of its own: all replies that run would wait for it."""
        images = await self._images(chat.messages)
        return self._place(chat, images) if size < LONG else await asyncio.to_thread(self._place, chat, images)

    async def _images(self, messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
        """sha256 and Pillow's image of each picture, in their order."""
        sight = self._engine.sight
        if sight is None:
            return []
        pictures = await asyncio.to_thread(pictures_in, messages, sight.most_pictures)
        try:
            return await sight.decode(pictures)
        except BadPicture as error:
            raise WireError(400, f"messages: {error}", "messages", "invalid_image") from None

    def _place(self, chat: ChatRequest, images: list[tuple[str, Any]]) -> SeenPrompt:
        rendered = self._render(chat, tokenize=not images)
        if not images:
            return SeenPrompt(tuple(rendered), tuple(rendered), ())
        assert self._engine.sight is not None
        try:
            return self._engine.sight.place(rendered, images)
        except BadPicture as error:
            raise WireError(400, f"messages: {error}", "messages", "invalid_image") from None

    def _render(self, chat: ChatRequest, *, tokenize: bool) -> Any:
        """The prompt's ids; its text where they are not to be tokenised."""
        messages = template_messages(chat.messages, self._blind)
        tools = None if chat.tool_choice == "none" else chat.tools
        render = self._engine.tokenizer.apply_chat_template
        variables = chat.chat_template_kwargs or {}
        if reserved := sorted(variables.keys() & inspect.signature(render).parameters.keys()):
            member = "chat_template_kwargs"
            raise WireError(400, f"{member}: {reserved[0]} is not a template's own.", member)
        refusals: list[Exception] = []
        for form in attempts(messages, str(self._engine.tokenizer.chat_template)):
            chat_form = [eos.in_parts(message) for message in form] if self._needs_parts else form
            try:
                rendered = render(
                    chat_form, tools=tools or None, add_generation_prompt=True, return_dict=False, tokenize=tokenize,
                    **variables,
                )  # fmt: skip
            except Exception as error:  # a template is a program of the model's: what it raises is about these messages
                refusals.append(error)
                continue
            if not rendered:
                raise WireError(400, "The chat template made an empty prompt of the messages.", "messages")
            return rendered
        raise WireError(400, f"The chat template refused the messages: {refusals[0]}", "messages") from refusals[0]

    async def tokenize(self, request: web.Request) -> web.Response:
        """The prompt that chat completions would make of these messages."""
        body = await request.read()
        chat = parse(body)
        self._adapter(chat.model)
        async with self._place_for_pictures(chat):
            ids = (await self._prompt(chat, len(body))).wire_ids
        return web.json_response(
            {"count": len(ids), "max_model_len": self._engine.context, "tokens": ids, "token_strs": None}
        )

    # --- models and adapters ---

    async def models(self, request: web.Request) -> web.Response:
        common = {"object": "model", "owned_by": "rlproxy", "max_model_len": self._engine.context}
        base = {"id": self._name, "created": self._created, "root": str(self._weights), "parent": None, **common}
        adapters = [
            {"id": a.name, "created": a.created, "root": str(a.path), "parent": self._name, **common}
            for a in self._adapters.values()
        ]
        return web.json_response({"object": "list", "data": [base, *adapters]})

    async def load(self, request: web.Request) -> web.Response:
        adapter_request = parse_adapter(await request.read())
        name, folder = adapter_request.lora_name, Path(adapter_request.lora_path)
        if not adapter_request.lora_path:
            raise WireError(400, "Both 'lora_name' and 'lora_path' must be provided.", "lora_path")
        if name == self._name or name in self._adapters or name in self._loading:
            raise WireError(400, f"The lora adapter '{name}' has already been loaded.", "lora_name")
        self._loading.add(name)
        try:
            if not await asyncio.to_thread(folder.is_dir):
                raise WireError(404, f"There is no adapter folder {folder} on this machine.", "lora_path")
            # Beside generation, not in its thread: running replies go on.
            adapter = await asyncio.to_thread(read_adapter, name, folder, self._engine.model)
        except AdapterError as error:
            raise WireError(400, str(error), "lora_path") from error
        finally:
            self._loading.discard(name)
        self._adapters[name] = adapter
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = json_object(await request.read()).get("lora_name")
        if not isinstance(name, str) or not name:
            raise WireError(400, "'lora_name' must be provided.", "lora_name")
        if self._adapters.pop(name, None) is None:
            raise WireError(404, f"The lora adapter '{name}' cannot be found.", "lora_name")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def health(self, request: web.Request) -> web.Response:
        running, waiting = self._engine.load
        return web.json_response({"status": "ok", "running": running, "waiting": waiting})


async def _calling_at_first(stream: Stream, call: Callable[[], None]) -> AsyncIterator[tuple[int, Delta]]:
    """The stream, and a call with its first token."""
    async for choice, delta in stream:
        call()
        yield choice, delta


async def _stream_answer(
    request: web.Request, deltas: AsyncIterator[tuple[int, Delta]], answer: WireAnswer
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    tokens = 0
    try:
        async for choice, delta in deltas:
            # The status waits for the first token: until then an error can still have its own.
            if not response.prepared:
                await response.prepare(request)
                await _event(response, answer.opening())
            tokens += 1
            await _event(response, answer.delta(choice, delta))
        if answer.request.include_usage:
            await _event(response, answer.closing(tokens))
    except EngineError as error:
        if not response.prepared:
            raise
        await _event(response, WireError(500, str(error)).body())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _event(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n")


# --- around every route ---


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except WireError as error:
        return web.json_response(error.body(), status=error.status)
    except EngineError as error:
        return web.json_response(WireError(503, str(error)).body(), status=503)
    except web.HTTPException as error:  # no such route, wrong method, body too large
        if error.status < 400:
            raise
        return web.json_response(WireError(error.status, error.reason).body(), status=error.status)
    except ConnectionResetError:
        raise  # the client has gone: nobody to tell
    except Exception:
        log.exception("request failed")
        return web.json_response(WireError(500, "The server failed; its log says why.").body(), status=500)


def _authorise(key: str | None) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        if key is not None and request.path != "/health" and not hmac.compare_digest(token, key.encode()):
            raise WireError(401, "Unauthorized: send the key as a Bearer token.", code="invalid_api_key")
        return await handler(request)

    return check


@web.middleware
async def _json_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer as vLLM does. It also keeps web pages out: a browser sends JSON to another origin only after
    asking first."""
    routed = request.match_info.http_exception is None  # else that is what is wrong with it
    if routed and request.method == "POST" and request.content_type != "application/json":
        raise WireError(415, "Unsupported Media Type: Only 'application/json' is allowed")
    return await handler(request)
