"""Legacy completions and Responses as vLLM has them, for the fake backend: the shapes of its source of November 2026.

Written apart from rlproxy's own translation, so that the two can be compared. A format that `speaks` does not name
answers as FastAPI does for a route that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

GAVE_UP = {"error": {"message": "out of memory", "type": "InternalServerError", "param": None, "code": 500}}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(fake: Any) -> list[web.RouteDef]:
    return [
        web.post("/v1/completions", handler_for(fake, "completions", completions)),
        web.post("/v1/responses", handler_for(fake, "responses", responses)),
        web.post("/tokenize", handler_for(fake, "tokenize", tokenize)),
        web.post("/apply-template", handler_for(fake, "apply-template", apply_template)),
    ]


def handler_for(fake: Any, name: str, handler: Callable[..., Awaitable[web.StreamResponse]]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        fake.asked.append((request.path, body))
        if name not in fake.speaks:
            return web.json_response({"detail": "Not Found"}, status=404)
        return await handler(fake, request, body)

    return handle


def _lp(word: str) -> float:
    return -len(word) / 10


def _id(word: str) -> int:
    return sum(word.encode())


def _words(text: str) -> list[str]:
    return ["You ", "said: ", *[w + " " for w in text.split()]]


def flat(content: str | list[dict[str, Any]]) -> str:
    """A text, also one in parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def answer_words(fake: Any, question: str) -> list[str]:
    """The words that a fake is to say, as in chat completions; else it repeats what it was told."""
    if fake.says is None:
        return _words(question)
    text = fake.says() if callable(fake.says) else fake.says
    return [text] if fake.letter else [word + " " for word in text.split()]


def chosen_call(
    fake: Any, body: dict[str, Any], offered: list[str], *, result: bool
) -> tuple[str, dict[str, Any]] | None:
    """The tool that it calls: the one that it is to call, if offered; else the first one, until that has a `result`.
    Where `wants` is a function of the request, that decides."""
    wants = fake.wants(body) if callable(fake.wants) else fake.wants
    if not offered or (result and not callable(fake.wants)):
        return None
    if wants is None:
        return offered[0], {"b": 1, "a": 2}
    return wants if wants[0] in offered else None


async def _sse(
    request: web.Request, events: list[dict[str, Any]], *, with_names: bool, whole: bool = True
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in events:
        head = f"event: {event['type']}\n".encode() if with_names and "type" in event else b""
        await response.write(head + b"data: " + json.dumps(event).encode() + b"\n\n")
    if not with_names:
        await response.write(b"data: [DONE]\n\n")
    if whole:
        await response.write_eof()
    return response


# --- completions ---


async def completions(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if fake.mood == "refuse-logprobs" and body.get("logprobs") is not None:
        return web.json_response({"error": {"message": "logprobs are not supported"}}, status=400)
    prompt = body["prompt"]
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    choices = [_choice(body, p, i * (body.get("n") or 1) + j) for i, p in enumerate(prompts)
               for j in range(body.get("n") or 1)]  # fmt: skip
    head = {"id": "cmpl-7", "object": "text_completion", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        return web.json_response({**head, "choices": choices, "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
    chunks = [{**head, "choices": [piece]} for choice in choices for piece in _pieces(body, choice)]
    return await _sse(request, [*chunks[:2], GAVE_UP] if fake.mood == "error-event" else chunks, with_names=False)


def _choice(body: dict[str, Any], prompt: Any, index: int) -> dict[str, Any]:
    words = _words(prompt if isinstance(prompt, str) else "ids")
    echo = [prompt] if body.get("echo") else []
    all_words = echo + words
    lps = [None] * len(echo) + [_lp(w) for w in words]
    logprobs = {"tokens": all_words, "token_logprobs": lps, "top_logprobs": [], "text_offset": []}
    ids = bool(body.get("return_token_ids"))
    return {
        "index": index,
        "text": "".join(all_words),
        "logprobs": None if body.get("logprobs") is None else logprobs,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": [_id(w) for w in words] if ids else None,
        "prompt_token_ids": [1, 2] if ids else None,
    }


def _pieces(body: dict[str, Any], choice: dict[str, Any]) -> list[dict[str, Any]]:
    """One chunk a word; an echoed prompt comes with the first."""
    head = len(body["prompt"]) if body.get("echo") else 0
    words = choice["text"][head:].split(" ")[:-1]
    extra = 1 if head else 0
    pieces: list[dict[str, Any]] = []
    for n, word in enumerate(words):
        lps, lo, hi = choice["logprobs"], n + extra if n else 0, n + extra + 1
        pieces.append({
            "index": choice["index"],
            "text": (choice["text"][:head] if n == 0 else "") + word + " ",
            "logprobs": lps and {"tokens": lps["tokens"][lo:hi], "token_logprobs": lps["token_logprobs"][lo:hi],
                                 "top_logprobs": [], "text_offset": []},
            "finish_reason": "stop" if n == len(words) - 1 else None,
            "token_ids": choice["token_ids"] and [choice["token_ids"][n]],
            "prompt_token_ids": choice["prompt_token_ids"] if n == 0 else None,
        })  # fmt: skip
    return pieces


# --- tokens: vLLM counts messages (`tokenize`), llama.cpp only text, and renders (`apply-template` beside it) ---


def _rendered(body: dict[str, Any]) -> str:
    """A template that shows the tools first."""
    tools = " ".join(tool["function"]["name"] for tool in body.get("tools") or ())
    texts = [m["content"] if isinstance(m["content"], str) else json.dumps(m["content"]) for m in body["messages"]]
    return " ".join([tools, *texts]).strip()


async def tokenize(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if body["model"] != fake.model:
        return web.json_response({"error": {"message": f"The model `{body['model']}` does not exist."}}, status=404)
    if "apply-template" in fake.speaks:  # as llama.cpp: another member than `content` is nothing to it
        return web.json_response({"tokens": [_id(word) for word in str(body.get("content") or "").split()]})
    ids = [_id(word) for word in _rendered(body).split()]
    return web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None})


async def apply_template(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"prompt": _rendered(body)})


# --- responses ---


async def responses(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if fake.lacks is not None:
        return web.json_response(fake.lacks, status=404)
    if (unknown := _unknown(fake, body)) is not None:
        return web.json_response(
            {"error": {"message": f"Item with id '{unknown}' not found.", "code": None}}, status=404
        )
    include = body.get("include") or []
    logprobs = "message.output_text.logprobs" in include
    if logprobs and fake.mood == "refuse-logprobs":
        return web.json_response({"error": {"message": "logprobs are not supported with gpt-oss models"}}, status=400)
    words, call = _reply(fake, body)
    lps = [{"token": w, "logprob": _lp(w), "bytes": list(w.encode()), "top_logprobs": []} for w in words]
    part = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": lps if logprobs else None}
    item = {
        "id": f"msg_{fake.item_id()}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    silent = call is not None and not part["text"]
    output = [*([] if silent else [item]), *([call] if call else [])]
    fake.items.update(entry["id"] for entry in output)
    base = {"id": "resp_7", "object": "response", "created_at": 1, "model": body["model"], "status": "in_progress",
            "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None,
            "previous_response_id": body.get("previous_response_id")}  # fmt: skip
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    read, wrote = fake.prompt_tokens, len(words)
    usage = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote, **details}
    messages = bool(body.get("enable_response_messages"))
    completed = {
        **base, "status": "completed", "output": output, "usage": usage,
        "input_messages": [{"message": "…", "tokens": [1, 2, 3], "type": "raw_message_tokens"}] if messages else None,
        "output_messages": [
            {"message": "".join(words), "tokens": [_id(w) for w in words], "type": "raw_message_tokens"}
        ] if messages else None,
    }  # fmt: skip
    if not body.get("stream"):
        return web.json_response(completed)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": base},
        {"type": "response.in_progress", "response": base},
        *(() if silent else _said_events(item, part, words, lps if logprobs else None)),
        *(_call_events(call, len(output) - 1) if call else ()),
        {"type": "response.completed", "response": completed},
    ]  # fmt: skip
    numbered = [{**event, "sequence_number": n} for n, event in enumerate(events)]
    if fake.mood == "error-event":
        return await _sse(request, [*numbered[:6], GAVE_UP], with_names=True)
    if fake.mood in ("cut", "error-event-and-cut"):
        ending = [] if fake.mood == "cut" else [GAVE_UP]
        await _sse(request, [*numbered[:6], *ending], with_names=True, whole=False)
        assert request.transport is not None
        request.transport.abort()
    return await _sse(request, numbered, with_names=True)


def _unknown(fake: Any, body: dict[str, Any]) -> str | None:
    """An item that is named and was never there: as servers that keep their items refuse it."""
    items = body["input"] if fake.keeps_items and isinstance(body["input"], list) else []
    ids = [item["id"] for item in items if item.get("type") in (None, "item_reference") and "role" not in item]
    return next((id for id in ids if id not in fake.items), None)


def _reply(fake: Any, body: dict[str, Any]) -> tuple[list[str], dict[str, Any] | None]:
    """Its words, and the call of the first function, until that has a result."""
    last = body["input"] if isinstance(body["input"], str) else body["input"][-1]
    result = last["output"] if isinstance(last, dict) and last.get("type") == "function_call_output" else None
    offered = [tool["name"] for tool in body.get("tools") or () if tool["type"] == "function"]
    call = chosen_call(fake, body, offered, result=result is not None)
    if result is not None and call is None:
        return ["It ", "is ", flat(result)], None
    if result is not None:
        last = ""
    content = last if isinstance(last, str) else last["content"]
    text = flat(content[:1]) if isinstance(content, list) else content
    form = (body.get("text") or {}).get("format") or {}
    words = ['{"said": ', json.dumps(text), "}"] if form.get("type") == "json_schema" else answer_words(fake, text)
    if call is None:
        return words, None
    number = fake.item_id()
    head = {"id": f"fc_{number}", "type": "function_call", "status": "completed", "call_id": f"call_{number}"}
    return words, {**head, "name": call[0], "arguments": json.dumps(call[1])}


def _said_events(
    item: dict[str, Any], part: dict[str, Any], words: list[str], lps: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    place, delta = {"item_id": item["id"], "output_index": 0}, "response.output_text.delta"
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    started = {**item, "status": "in_progress", "content": []}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": started},
        {"type": "response.content_part.added", **place, "content_index": 0, "part": empty},
        *(
            {"type": delta, **place, "content_index": 0, "delta": word, "logprobs": [lps[n]] if lps else []}
            for n, word in enumerate(words)
        ),
        {"type": "response.output_text.done", **place, "content_index": 0, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "content_index": 0, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


def _call_events(call: dict[str, Any], index: int) -> list[dict[str, Any]]:
    place, text = {"item_id": call["id"], "output_index": index}, call["arguments"]
    started = {**call, "status": "in_progress", "arguments": ""}
    delta = "response.function_call_arguments.delta"
    return [
        {"type": "response.output_item.added", "output_index": index, "item": started},
        {"type": delta, **place, "delta": text[:5]},
        {"type": delta, **place, "delta": text[5:]},
        {"type": "response.function_call_arguments.done", **place, "name": call["name"], "arguments": text},
        {"type": "response.output_item.done", "output_index": index, "item": call},
    ]
