"""Anthropic's own SDK through the whole proxy, sync and async, native and translated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from scripts.harness.in_process import Proxy
from tests.clients.calls import captured, clients, final, made, streams, ways

TOOL: dict[str, Any] = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Said(BaseModel):
    said: str


@pytest.fixture
async def client(proxy: Proxy, sync: bool) -> AsyncIterator[Any]:
    kind = anthropic.Anthropic if sync else anthropic.AsyncAnthropic
    client = kind(base_url=proxy.url, api_key="any", max_retries=0)
    yield client
    await made(sync, client.close)


@clients
@streams
@ways
async def test_messages(proxy: Proxy, client: Any, sync: bool, stream: bool, way: str) -> None:
    if way == "native":
        proxy.backend.speaks.add("messages")

    async def ask(messages: list[Any], **more: Any) -> Any:
        request: dict[str, Any] = {"model": "fake", "max_tokens": 2048, "messages": messages, **more}
        if stream:
            return await final(sync, client.messages.stream, "get_final_message", **request)
        create = client.messages.parse if "output_format" in more else client.messages.create
        return await made(sync, create, **request)

    hi = [{"role": "user", "content": "hi there"}]
    answer = await ask(hi)
    assert answer.content[0].text == "You said: hi there " and answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 4)
    await captured(proxy, answer.id, way=way, dialect="messages")

    proxy.backend.thinks = True
    called = await ask(hi, tools=[TOOL], thinking=THINKING)
    blocks = {block.type: block for block in called.content}
    assert next(iter(blocks)) == "thinking" and set(blocks) == {"thinking", "text", "tool_use"}
    assert called.content[0].thinking == "Let me think. " and called.stop_reason == "tool_use"
    use = blocks["tool_use"]
    assert (use.name, use.input) == ("look", {"a": 2, "b": 1})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "here"}
    turns = [*hi, {"role": "assistant", "content": called.to_dict()["content"]}, {"role": "user", "content": [result]}]
    assert (await ask(turns, tools=[TOOL], thinking=THINKING)).content[-1].text == "It is here"
    proxy.backend.thinks = False

    assert (await ask(hi, output_format=Said)).parsed_output == Said(said="hi there")

    reply = {"role": "assistant", "content": "You said: hi there "}
    rated = await ask([*hi, reply, {"role": "user", "content": "/rl good"}])
    assert "rated good" in rated.content[0].text


@clients
@pytest.mark.parametrize("speaks", ["messages", "tokenize", "tokenize apply-template"])
async def test_count_tokens(proxy: Proxy, client: Any, sync: bool, speaks: str) -> None:
    """By the backend's own route, else by its tokenizer: vLLM's counts messages, llama.cpp's text."""
    proxy.backend.speaks |= set(speaks.split())
    request: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi there"}]}
    request |= {"system": "Be kind.", "tools": [TOOL]}
    counted = await made(sync, client.messages.count_tokens, **request)
    assert counted.input_tokens == 5  # look Be kind. hi there
    assert await proxy.store.completions.page() == []


@clients
async def test_what_cannot_be_counted_is_not_guessed(proxy: Proxy, client: Any, sync: bool) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    request: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(anthropic.NotFoundError, match="cannot count the tokens of a prompt"):
        await made(sync, client.messages.count_tokens, **request)
    proxy.backend.speaks.add("tokenize")
    shown = {**request, "messages": [{"role": "user", "content": [picture]}]}
    with pytest.raises(anthropic.NotFoundError, match="of pictures"):
        await made(sync, client.messages.count_tokens, **shown)
    with pytest.raises(anthropic.NotFoundError, match="cannot count"):
        await made(sync, client.messages.count_tokens, **{**request, "model": "another"})
    with pytest.raises(anthropic.BadRequestError, match="`messages`"):
        await made(sync, client.messages.count_tokens, model="fake", messages=[])
