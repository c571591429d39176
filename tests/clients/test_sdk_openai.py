"""OpenAI's own SDK through the whole proxy: chat, completions and Responses, sync and async, native and translated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from scripts.harness.in_process import Proxy
from tests.clients.calls import captured, clients, final, made, pieces, streams, ways

LOOK: dict[str, Any] = {"type": "object", "properties": {}}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": LOOK}}
TOOL = {"type": "function", "name": "look", "parameters": LOOK, "strict": False}


class Said(BaseModel):
    said: str


@pytest.fixture
async def client(proxy: Proxy, sync: bool) -> AsyncIterator[OpenAI | AsyncOpenAI]:
    kind = OpenAI if sync else AsyncOpenAI
    client = kind(base_url=proxy.url + "/v1", api_key="any", max_retries=0)
    yield client
    await made(sync, client.close)


@clients
@streams
async def test_chat(proxy: Proxy, client: Any, sync: bool, stream: bool) -> None:
    async def ask(messages: list[Any], **more: Any) -> Any:
        request: dict[str, Any] = {"model": "fake", "messages": messages, **more}
        chat = client.chat.completions
        if stream:
            return await final(sync, chat.stream, "get_final_completion", **request)
        return await made(sync, chat.parse if "response_format" in more else chat.create, **request)

    hi = [{"role": "user", "content": "hi there"}]
    answer = await ask(hi)
    assert answer.choices[0].message.content == "You said: hi there " and answer.choices[0].finish_reason == "stop"
    await captured(proxy, answer.id, way="native", dialect="chat")

    message = (await ask(hi, tools=[CHAT_TOOL])).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "look" and json.loads(call.function.arguments) == {"a": 2, "b": 1}
    sent = {"id": call.id, "type": "function", "function": {"name": "look", "arguments": call.function.arguments}}
    back = {"role": "assistant", "content": message.content, "tool_calls": [sent]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "here"}
    answer = await ask([*hi, back, result], tools=[CHAT_TOOL])
    assert answer.choices[0].message.content == "It is here"

    answer = await ask(hi, response_format=Said)
    assert answer.choices[0].message.parsed == Said(said="hi there")

    reply = {"role": "assistant", "content": "You said: hi there "}
    rated = await ask([*hi, reply, {"role": "user", "content": "/rl good"}])
    assert "rated good" in rated.choices[0].message.content


@clients
@streams
@ways
async def test_completions(proxy: Proxy, client: Any, sync: bool, stream: bool, way: str) -> None:
    if way == "native":
        proxy.backend.speaks.add("completions")

    async def ask(prompt: str) -> tuple[str, str]:
        request: dict[str, Any] = {"model": "fake", "prompt": prompt}
        if stream:
            parts = await pieces(sync, client.completions.create, **request, stream=True)
            return parts[0].id, "".join(part.choices[0].text for part in parts)
        answer = await made(sync, client.completions.create, **request)
        return answer.id, answer.choices[0].text

    id, text = await ask("hi there")
    assert text == "You said: hi there "
    await captured(proxy, id, way=way, dialect="completions")
    assert "rated good" in (await ask("/rl good"))[1]
    assert await proxy.store.ratings.live(id, "owner") is not None


@clients
@streams
@ways
async def test_responses(proxy: Proxy, client: Any, sync: bool, stream: bool, way: str) -> None:
    if way == "native":
        proxy.backend.speaks.add("responses")

    async def ask(said: Any, **more: Any) -> Any:
        request: dict[str, Any] = {"model": "fake", "input": said, **more}
        if stream:
            return await final(sync, client.responses.stream, "get_final_response", **request)
        return await made(sync, client.responses.parse if "text_format" in more else client.responses.create, **request)

    answer = await ask("hi there")
    assert answer.output_text == "You said: hi there " and answer.status == "completed"
    await captured(proxy, answer.id, way=way, dialect="responses")

    asked = [{"role": "user", "content": "hi there"}]
    called = await ask(asked, tools=[TOOL])
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert call.name == "look" and json.loads(call.arguments) == {"a": 2, "b": 1}
    sent = {"type": "function_call", "call_id": call.call_id, "name": "look", "arguments": call.arguments}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "here"}
    assert (await ask([*asked, sent, result], tools=[TOOL])).output_text == "It is here"

    assert (await ask("hi there", text_format=Said)).output_parsed == Said(said="hi there")

    rated = await ask("/rl good", previous_response_id=answer.id)
    assert "rated good" in rated.output_text and await proxy.store.ratings.live(answer.id, "owner") is not None
