"""Anthropic Messages and Ollama's own API, for the fake backend: the shapes of their SDKs' types and documentation.

Written apart from rlproxy's own translation, so that the two can be compared.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from aiohttp import web

from scripts.fakes.native import said as spoken
from scripts.fakes.native import wanted, when


def routes(fake: Any) -> list[web.RouteDef]:
    return [
        web.post("/v1/messages", when(fake, "messages", messages)),
        web.post("/v1/messages/count_tokens", when(fake, "messages", count_tokens)),
        web.post("/api/chat", when(fake, "ollama", ollama)),
        web.post("/api/generate", when(fake, "ollama", ollama)),
    ]


class Said(NamedTuple):
    """The model's answer, whatever the format."""

    thoughts: list[str]
    words: list[str]
    call: dict[str, Any] | None  # name and arguments


def _answer(fake: Any, body: dict[str, Any], asked: str, tools: list[str], result: str | None, schema: Any) -> Said:
    words = spoken(fake, asked)
    found = wanted(fake, body, tools, result=result is not None)
    if result is not None and not found:
        words = ["It ", "is ", result]
    elif schema:
        words = ['{"said": ', json.dumps(asked), "}"]
    call = {"name": found[0], "arguments": found[1]} if found else None
    return Said(["Let ", "me ", "think. "] if fake.thinks else [], words, call)


# --- Anthropic Messages ---


async def count_tokens(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"input_tokens": len(json.dumps(body["messages"]).split())})


async def messages(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    last = body["messages"][-1]["content"]
    blocks = [{"type": "text", "text": last}] if isinstance(last, str) else last
    results = [block["content"] for block in blocks if block["type"] == "tool_result"]
    asked = "".join(block["text"] for block in blocks if block["type"] == "text")
    schema = (body.get("output_config") or {}).get("format") or body.get("output_format")
    tools = [tool["name"] for tool in body.get("tools") or ()]
    said = _answer(fake, body, asked, tools, str(results[0]) if results else None, schema)
    content: list[dict[str, Any]] = []
    if said.thoughts:
        content.append({"type": "thinking", "thinking": "".join(said.thoughts), "signature": "c2ln"})
    if "".join(said.words) or not said.call:
        content.append({"type": "text", "text": "".join(said.words)})
    if said.call:
        call = {"id": "toolu_1", "name": said.call["name"], "input": said.call["arguments"]}
        content.append({"type": "tool_use", **call})
    usage = {"input_tokens": fake.prompt_tokens, "output_tokens": len(said.words)}
    head = {"id": "msg_7", "type": "message", "role": "assistant", "model": body["model"]}
    end = {"stop_reason": "tool_use" if said.call else "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        return web.json_response({**head, "content": content, **end, "usage": usage})
    nothing = {"stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "content": [], **nothing}},
        {"type": "ping"},
    ]
    for index, block in enumerate(content):
        empty, deltas = _cut(block, said)
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


def _cut(block: dict[str, Any], said: Said) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a block begins, and what it grows by."""
    if block["type"] == "tool_use":
        text = json.dumps(block["input"])
        pieces = ("", text[:5], text[5:])
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": word} for word in said.words]
    thoughts = [{"type": "thinking_delta", "thinking": word} for word in said.thoughts]
    signed = {"type": "signature_delta", "signature": block["signature"]}
    return {**block, "thinking": "", "signature": ""}, [*thoughts, signed]


# --- Ollama ---


async def ollama(fake: Any, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    chat = request.path == "/api/chat"
    last = body["messages"][-1] if chat else {"role": "user", "content": body["prompt"]}
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    result = last["content"] if last["role"] == "tool" else None
    said = _answer(fake, body, last["content"], tools, result, body.get("format"))
    calls = [{"function": said.call}] if said.call else []

    def line(text: str, thinking: str = "", calls: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        head = {"model": body["model"], "created_at": "2026-11-21T10:00:00.123456789Z"}
        thought = {"thinking": thinking} if thinking else {}
        if not chat:
            return {**head, "response": text, **thought, "done": False, **more}
        called = {"tool_calls": calls} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **thought, **called}, "done": False, **more}

    counted = {"total_duration": 9, "load_duration": 1, "prompt_eval_count": 3, "prompt_eval_duration": 3,
               "eval_count": len(said.words), "eval_duration": 5}  # fmt: skip
    done: dict[str, Any] = {"done": True, "done_reason": "stop", **counted}
    if body.get("stream") is False:
        return web.json_response(line("".join(said.words), "".join(said.thoughts), calls, **done))
    lines = [line("", word) for word in said.thoughts] + [line(word) for word in said.words]
    lines += [line("", "", calls)] if calls else []
    response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
    await response.prepare(request)
    for one in [*lines, line("", **done)]:
        await response.write(json.dumps(one).encode() + b"\n")
    await response.write_eof()
    return response
