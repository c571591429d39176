"""Anthropic Messages and Ollama's own API, for the fake backend: the shapes of their SDKs' types and documentation.

Written apart from rlproxy's own translation, so that the two can be compared.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from aiohttp import web

from scripts.fakes.native import answer_words, chosen_call, handler_for


def routes(fake: Any) -> list[web.RouteDef]:
    return [
        web.post("/v1/messages", handler_for(fake, "messages", messages)),
        web.post("/v1/messages/count_tokens", handler_for(fake, "messages", count_tokens)),
        web.post("/api/chat", handler_for(fake, "ollama", ollama)),
        web.post("/api/generate", handler_for(fake, "ollama", ollama)),
    ]


class Answer(NamedTuple):
    """The model's answer, whatever the format."""

    thoughts: list[str]
    words: list[str]
    call: dict[str, Any] | None  # name and arguments


def _answer(
    fake: Any, body: dict[str, Any], question: str, tools: list[str], result: str | None, schema: Any
) -> Answer:
    words = answer_words(fake, question)
    chosen = chosen_call(fake, body, tools, result=result is not None)
    if result is not None and not chosen:
        words = ["It ", "is ", result]
    elif schema:
        words = ['{"said": ', json.dumps(question), "}"]
    call = {"name": chosen[0], "arguments": chosen[1]} if chosen else None
    return Answer(["Let ", "me ", "think. "] if fake.thinks else [], words, call)


# --- Anthropic Messages ---


async def count_tokens(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"input_tokens": len(json.dumps(body["messages"]).split())})


async def messages(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    last = body["messages"][-1]["content"]
    blocks = [{"type": "text", "text": last}] if isinstance(last, str) else last
    results = [block["content"] for block in blocks if block["type"] == "tool_result"]
    question = "".join(block["text"] for block in blocks if block["type"] == "text")
    schema = (body.get("output_config") or {}).get("format") or body.get("output_format")
    tools = [tool["name"] for tool in body.get("tools") or ()]
    answer = _answer(fake, body, question, tools, str(results[0]) if results else None, schema)
    content: list[dict[str, Any]] = []
    if answer.thoughts:
        content.append({"type": "thinking", "thinking": "".join(answer.thoughts), "signature": "c2ln"})
    if "".join(answer.words) or not answer.call:
        content.append({"type": "text", "text": "".join(answer.words)})
    if answer.call:
        call = {"id": "toolu_1", "name": answer.call["name"], "input": answer.call["arguments"]}
        content.append({"type": "tool_use", **call})
    usage = {"input_tokens": fake.prompt_tokens, "output_tokens": len(answer.words)}
    head = {"id": "msg_7", "type": "message", "role": "assistant", "model": body["model"]}
    end = {"stop_reason": "tool_use" if answer.call else "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        return web.json_response({**head, "content": content, **end, "usage": usage})
    nothing = {"stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "content": [], **nothing}},
        {"type": "ping"},
    ]
    for index, block in enumerate(content):
        empty, deltas = _cut(block, answer)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in events:
        await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    await response.write_eof()
    return response


def _cut(block: dict[str, Any], answer: Answer) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a block begins, and what it grows by."""
    if block["type"] == "tool_use":
        text = json.dumps(block["input"])
        pieces = ("", text[:5], text[5:])
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": word} for word in answer.words]
    thoughts = [{"type": "thinking_delta", "thinking": word} for word in answer.thoughts]
    signed = {"type": "signature_delta", "signature": block["signature"]}
    return {**block, "thinking": "", "signature": ""}, [*thoughts, signed]


# --- Ollama ---


async def ollama(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    chat = request.path == "/api/chat"
    last = body["messages"][-1] if chat else {"role": "user", "content": body["prompt"]}
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    result = last["content"] if last["role"] == "tool" else None
    answer = _answer(fake, body, last["content"], tools, result, body.get("format"))
    calls = [{"function": answer.call}] if answer.call else []

    def line(text: str, thinking: str = "", calls: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
        head = {"model": body["model"], "created_at": "2026-11-21T10:00:00.123456789Z"}
        thought = {"thinking": thinking} if thinking else {}
        if not chat:
            return {**head, "response": text, **thought, "done": False, **fields}
        called = {"tool_calls": calls} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **thought, **called}, "done": False, **fields}

    counts = {"total_duration": 9, "load_duration": 1, "prompt_eval_count": 3, "prompt_eval_duration": 3,
               "eval_count": len(answer.words), "eval_duration": 5}  # fmt: skip
    ending: dict[str, Any] = {"done": True, "done_reason": "stop", **counts}
    if body.get("stream") is False:
        return web.json_response(line("".join(answer.words), "".join(answer.thoughts), calls, **ending))
    lines = [line("", word) for word in answer.thoughts] + [line(word) for word in answer.words]
    lines += [line("", "", calls)] if calls else []
    response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
    await response.prepare(request)
    for row in [*lines, line("", **ending)]:
        await response.write(json.dumps(row).encode() + b"\n")
    await response.write_eof()
    return response
