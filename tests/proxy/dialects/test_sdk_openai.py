"""Chat completions through the real OpenAI client: what an agent's owner sees after changing one base URL."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from scripts.harness.in_process import Proxy

LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def test_whole_and_streamed(proxy: Proxy, client: AsyncOpenAI) -> None:
    asked: Any = {"model": "fake", "messages": [{"role": "user", "content": "hi there"}]}
    whole = await client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == "You said: hi there " and whole.id.startswith("rl-")
    async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage is not None and final.usage.completion_tokens == 4
    for id in (whole.id, final.id):
        found = await proxy.store.completions.get(id)
        assert found is not None and found.end is not None and found.end.exact and not found.end.translated


async def test_sync(proxy: Proxy) -> None:
    def ask() -> str:
        with OpenAI(base_url=proxy.url + "/v1", api_key="any", max_retries=0) as client:
            chunks = client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert await asyncio.to_thread(ask) == "You said: hi "


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_and_their_results(proxy: Proxy, client: AsyncOpenAI, streamed: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "where?"}]
    asked: Any = {"model": "fake", "messages": messages, "tools": [LOOK]}
    if streamed:
        async with client.chat.completions.stream(**asked) as stream:
            message: Any = (await stream.get_final_completion()).choices[0].message
    else:
        message = (await client.chat.completions.create(**asked)).choices[0].message
    call = message.tool_calls[0]
    assert call.function.name == "look"
    messages += [
        {"role": "assistant", "content": message.content,
         "tool_calls": [{"id": call.id, "type": "function",
                         "function": {"name": "look", "arguments": call.function.arguments}}]},
        {"role": "tool", "tool_call_id": call.id, "content": "here"},
    ]  # fmt: skip
    answer = await client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "It is here"


class Said(BaseModel):
    said: str


async def test_structured_output(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model="fake", messages=[{"role": "user", "content": "hello"}], response_format=Said
    )
    assert answer.choices[0].message.parsed == Said(said="hello")


async def test_errors_are_the_clients_own(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(BadRequestError) as caught:
        await client.chat.completions.create(model="fake", n=129, messages=[{"role": "user", "content": "x"}])
    assert caught.value.param == "n"
